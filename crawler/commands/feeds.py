"""`scrapy feeds`: the feeds that are collected; in and out, and how they are doing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from crawler.cli.base import Action, ActionsCommand


class Command(ActionsCommand):
    """One action of the table, with options of its own."""

    actions: ClassVar[Mapping[str, Action]] = {
        "import": Action(
            "put in the feeds of an OPML file or of a list of URLs",
            "scrapy feeds import subscriptions.opml",
            "crawler.cli.feeds",
            "run_import",
            "import_options",
        ),
        "add": Action(
            "add a feed, or the feed that a page names",
            "scrapy feeds add https://blog.example/ --category News/Local",
            "crawler.cli.feeds",
            "run_add",
            "add_options",
        ),
        "export": Action(
            "write all feeds as OPML; import reads it again",
            "scrapy feeds export feeds.opml",
            "crawler.cli.feeds",
            "run_export",
            "export_options",
        ),
        "list": Action(
            "how each feed is doing: posts a week, posts it holds (S), visits, losses, trouble",
            "scrapy feeds list --errors",
            "crawler.cli.feeds_list",
        ),
        "remove": Action(
            "remove feeds with their posts, versions and visits",
            "scrapy feeds remove https://blog.example/feed --yes",
            "crawler.cli.feeds",
            "run_remove",
            "remove_options",
        ),
        "push": Action(
            "let hubs tell when there is something new",
            "scrapy feeds push --callback https://public.example/push",
            "crawler.cli.websub",
            "serve",
        ),
    }
    example = "scrapy feeds import subscriptions.opml"

    def short_desc(self) -> str:
        """One line for `scrapy -h`."""
        return "Import, add, export, list or remove the feeds that are collected"
