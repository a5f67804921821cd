"""`scrapy feeds`: manage the feeds that Freshet collects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from crawler.cli.base import Action, ActionsCommand, Functions, JsonTypes


class Command(ActionsCommand):
    """Import, add, export, list and remove feeds, and receive pushed updates."""

    actions: ClassVar[Mapping[str, Action]] = {
        "import": Action(
            "Add the feeds of an OPML file or of a list of URLs",
            "scrapy feeds import subscriptions.opml",
        ),
        "add": Action(
            "Add a feed, or the feed that a web page links to",
            "scrapy feeds add https://blog.example/ --category News/Local",
        ),
        "export": Action(
            "Write all feeds as OPML, which import can read", "scrapy feeds export feeds.opml"
        ),
        "list": Action(
            "List feeds: posts a week, feed size in posts, visits, missed posts, errors",
            "scrapy feeds list --errors",
        ),
        "remove": Action(
            "Remove feeds with their posts, versions and visits",
            "scrapy feeds remove https://blog.example/feed --yes",
        ),
        "push": Action(
            "Subscribe to WebSub hubs and receive their updates",
            "scrapy feeds push --callback https://public.example/push",
        ),
    }
    summary = "Import, add, export, list or remove feeds; receive updates from WebSub hubs"
    example = "scrapy feeds import subscriptions.opml"

    def functions(self, action: str) -> Functions:
        """Import and return the functions of an action."""
        from crawler.cli import feeds, feeds_list
        from crawler.web.options import add_push_options

        functions: Mapping[str, Functions] = {
            "import": (feeds.import_options, feeds.run_import),
            "add": (feeds.add_options, feeds.run_add),
            "export": (feeds.export_options, feeds.run_export),
            "list": (feeds_list.add_options, feeds_list.run),
            "remove": (feeds.remove_options, feeds.run_remove),
            "push": (add_push_options, feeds.run_push),
        }
        return functions[action]

    def json_types(self) -> JsonTypes:
        """Return the types of feeds and of the results of actions."""
        from crawler.cli.feeds import ExportedFeed, ExportReport
        from crawler.reports.feeds import AddReport, FeedState, ImportReport, RemovalReport
        from crawler.web.websub.service import PushReport

        return {
            "scrapy feeds import FILE --json": ImportReport,
            "scrapy feeds add URL --json": AddReport,
            "scrapy feeds export --json": list[ExportedFeed],
            "scrapy feeds export FILE --json": ExportReport,
            "scrapy feeds list --json": list[FeedState],
            "scrapy feeds remove URL --yes --json": RemovalReport,
            "scrapy feeds push --callback URL --for 3600 --json": PushReport,
        }
