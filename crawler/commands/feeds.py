"""`scrapy feeds`: the feeds that are collected; in and out, and how they are doing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from crawler.cli.base import Action, ActionsCommand, Functions


class Command(ActionsCommand):
    """Feeds: add, import, export, list, remove and push."""

    actions: ClassVar[Mapping[str, Action]] = {
        "import": Action(
            "put in the feeds of an OPML file or of a list of URLs",
            "scrapy feeds import subscriptions.opml",
        ),
        "add": Action(
            "add a feed, or the feed that a page names",
            "scrapy feeds add https://blog.example/ --category News/Local",
        ),
        "export": Action(
            "write all feeds as OPML; import reads it again", "scrapy feeds export feeds.opml"
        ),
        "list": Action(
            "how each feed is doing: posts a week, posts it holds (S), visits, losses, trouble",
            "scrapy feeds list --errors",
        ),
        "remove": Action(
            "remove feeds with their posts, versions and visits",
            "scrapy feeds remove https://blog.example/feed --yes",
        ),
        "push": Action(
            "let hubs tell when there is something new",
            "scrapy feeds push --callback https://public.example/push",
        ),
    }
    example = "scrapy feeds import subscriptions.opml"

    def short_desc(self) -> str:
        """One line for `scrapy -h`."""
        return "Import, add, export, list or remove the feeds that are collected"

    def functions(self, action: str) -> Functions:
        """Import the functions of an action."""
        from crawler.cli import feeds, feeds_list
        from crawler.web.websub.options import add_options as push_options

        functions: Mapping[str, Functions] = {
            "import": (feeds.import_options, feeds.run_import),
            "add": (feeds.add_options, feeds.run_add),
            "export": (feeds.export_options, feeds.run_export),
            "list": (feeds_list.add_options, feeds_list.run),
            "remove": (feeds.remove_options, feeds.run_remove),
            "push": (push_options, feeds.run_push),
        }
        return functions[action]
