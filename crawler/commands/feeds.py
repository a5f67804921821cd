"""`scrapy feeds`: the feeds that are collected; in and out, and how they are doing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from crawler.actions import Action, ActionsCommand

OF_LISTS = "crawler.subscriptions"


class Command(ActionsCommand):
    """One action of the table, with options of its own."""

    actions: ClassVar[Mapping[str, Action]] = {
        "import": Action(
            "put in the feeds of an OPML file or of a list of URLs",
            "scrapy feeds import subscriptions.opml",
            f"{OF_LISTS}.importing",
        ),
        "add": Action(
            "add a feed, or the feed that a page names",
            "scrapy feeds add https://blog.example/ --category News/Local",
            f"{OF_LISTS}.adding",
        ),
        "export": Action(
            "write all feeds as OPML; import reads it again",
            "scrapy feeds export feeds.opml",
            f"{OF_LISTS}.exporting",
        ),
        "list": Action(
            "how each feed is doing: posts a week, posts it holds (S), visits, losses, trouble",
            "scrapy feeds list --errors",
            f"{OF_LISTS}.listing",
        ),
        "remove": Action(
            "remove feeds with their posts, versions and visits",
            "scrapy feeds remove https://blog.example/feed --yes",
            f"{OF_LISTS}.removing",
        ),
        "push": Action(
            "let hubs tell when there is something new",
            "scrapy feeds push --callback https://public.example/push",
            "crawler.push.serve",
            "serve",
        ),
    }
    example = "scrapy feeds import subscriptions.opml"

    def short_desc(self) -> str:
        """One line for `scrapy -h`."""
        return "Import, add, export, list or remove the feeds that are collected"
