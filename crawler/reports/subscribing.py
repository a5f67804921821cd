"""Reports of `scrapy feeds`: feeds that were imported, added, edited and removed."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from typing_extensions import TypedDict

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.feeds.subscriptions import FeedList, Refused
from crawler.storage import feeds as subscriptions
from crawler.storage.client import Database
from crawler.storage.feeds import Added
from crawler.storage.target_queries import names_of, nearest

# The spider that collects feeds unless another one is named.
COMMAND = "feeds"


class RefusedFeed(TypedDict):
    """An entry that is not a feed."""

    where: str
    """Position such as `line 3`, with the title if there is one; empty on the command line."""
    url: str
    """The URL, without secrets."""
    reason: str
    """Why the URL was refused."""


class ImportReport(TypedDict):
    """Result of an import."""

    added: int
    """Number of new feeds."""
    known: int
    """Number of feeds that were stored already."""
    categories: int
    """Number of categories in the list."""
    refused: list[RefusedFeed]
    """Entries that are not feeds."""
    problems: list[str]
    """Problems of the list as a whole."""


class AddedFeed(TypedDict):
    """A feed that was added, or was stored already."""

    url: str
    """URL of the feed."""
    title: str | None
    """Title that was given, else the title in the document."""
    format: str | None
    """Format, such as `rss20`, `atom10`, `json11`; null with `--no-fetch`."""
    given: str
    """URL as given: of the feed, or of a page that links to it."""
    added: bool
    """Whether the feed is new."""


class AddReport(TypedDict):
    """Added feeds."""

    added: int
    """Number of new feeds."""
    known: int
    """Number of feeds that were stored already."""
    feeds: list[AddedFeed]
    """The feeds."""
    refused: list[RefusedFeed]
    """URLs without a feed."""


class RemovalReport(TypedDict):
    """Removed feeds."""

    dry_run: bool
    """Whether nothing was removed."""
    urls: list[str]
    """URLs of the feeds, including aliases."""
    removed: dict[str, int]
    """Number of removed documents by collection."""


async def owned(db: Database, config: Config, spider: str, urls: Iterable[str]) -> list[str]:
    """Return the stored URLs of feeds. URLs may be those of aliases.

    Raises ConfigError for a URL that is not stored, with similar URLs that are.
    """
    feeds: dict[str, None] = {}
    for url in urls:
        stored = await subscriptions.feeds_named(db, spider, names_of(url, config))
        if not stored:
            near = await nearest(db, url, ("targets",))
            mean = f"Did you mean {' or '.join(near)}? " if near else ""
            raise ConfigError(
                f"feed not found: {url}. {mean}scrapy feeds list shows the feeds of {spider}"
            )
        feeds |= dict.fromkeys(stored)
    return list(feeds)


def refused_feed(refusal: Refused) -> RefusedFeed:
    """Return the report of an entry that is not a feed."""
    return {"where": refusal.where, "url": refusal.url, "reason": refusal.reason}


def import_report(feed_list: FeedList, stored: Added) -> ImportReport:
    """Return the report of a list whose feeds were stored."""
    return {
        "added": stored.added,
        "known": stored.known,
        "categories": len({name for feed in feed_list.feeds for name in feed.categories}),
        "refused": [*map(refused_feed, feed_list.refused)],
        "problems": list(feed_list.problems),
    }


async def remove_feeds(
    db: Database, config: Config, spider: str, urls: Iterable[str], now: datetime, *, really: bool
) -> RemovalReport:
    """Remove feeds with their posts, versions and visits, or only count these.

    urls: URLs of feeds, or of their aliases. Raises ConfigError for feeds that are not stored.
    """
    from crawler.storage.dedup.index import as_stored  # slow: loads numpy

    async with as_stored(db, config) as registry:
        feeds = await owned(db, config, spider, urls)
        counts = await subscriptions.remove(db, registry, spider, feeds, now, really=really)
    return {"dry_run": not really, "urls": feeds, "removed": counts}
