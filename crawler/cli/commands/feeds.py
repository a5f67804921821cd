"""`scrapy feeds`: manage the feeds that Freshet collects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from crawler.cli.base import Action, ActionsCommand


class Command(ActionsCommand):
    """Import, add, export, list and remove feeds, and receive pushed updates."""

    summary = "Import, add, export, list or remove feeds; receive updates from WebSub hubs"
    example = "scrapy feeds import subscriptions.opml"
    documents: ClassVar = {
        "scrapy feeds import FILE --json": "crawler.reports.feeds.ImportReport",
        "scrapy feeds add URL --json": "crawler.reports.feeds.AddReport",
        "scrapy feeds export --json": "list[crawler.cli.feeds.ExportedFeed]",
        "scrapy feeds export FILE --json": "crawler.cli.feeds.ExportReport",
        "scrapy feeds list --json": "list[crawler.reports.feeds.FeedState]",
        "scrapy feeds remove URL --yes --json": "crawler.reports.feeds.RemovalReport",
        "scrapy feeds push --callback URL --for 3600 --json": (
            "crawler.web.websub.service.PushReport"
        ),
    }

    @property
    def actions(self) -> Mapping[str, Action]:
        """Import and return the actions."""
        from crawler.cli import feeds
        from crawler.web.options import add_push_options

        return {
            "import": Action(
                "Add the feeds of an OPML file or of a list of URLs",
                "scrapy feeds import subscriptions.opml", feeds.run_import, feeds.import_options,
            ),
            "add": Action(
                "Add a feed, or the feed that a web page links to",
                "scrapy feeds add https://blog.example/ --category News/Local",
                feeds.run_add, feeds.add_options,
            ),
            "export": Action(
                "Write all feeds as OPML, which import can read",
                "scrapy feeds export feeds.opml", feeds.run_export, feeds.export_options,
            ),
            "list": Action(
                "List feeds: posts a week, feed size in posts, visits, missed posts, errors",
                "scrapy feeds list --errors", feeds.run_list, feeds.list_options,
            ),
            "remove": Action(
                "Remove feeds with their posts, versions and visits",
                "scrapy feeds remove https://blog.example/feed --yes",
                feeds.run_remove, feeds.remove_options,
            ),
            "push": Action(
                "Subscribe to WebSub hubs and receive their updates",
                "scrapy feeds push --callback https://public.example/push",
                feeds.run_push, add_push_options,
            ),
        }  # fmt: skip
