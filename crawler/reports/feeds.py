"""Reports on feeds: their state, feeds that were added or removed, and posts in the feed reader."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from typing_extensions import TypedDict

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.feeds.subscriptions import FeedList, Refused
from crawler.reports.history import compared
from crawler.storage import feed_reader as storage
from crawler.storage import feeds as subscriptions
from crawler.storage.client import Database, Document
from crawler.storage.feed_reader import View
from crawler.storage.feeds import Added
from crawler.storage.paging import Key
from crawler.storage.plans import VisitPlan, plan_of
from crawler.storage.readers import Reader
from crawler.storage.target_queries import names_of, nearest
from crawler.utils.edits import FieldDiff
from crawler.utils.sandbox import ProcessPool
from crawler.utils.shapes import copied
from crawler.utils.text import count, is_known

WEEK = timedelta(weeks=1)
# With fewer posts, the uncertainty of the rate is more than a factor of ten.
MIN_POSTS = 3
# The spider that collects feeds unless another one is named.
COMMAND = "feeds"


class PushState(TypedDict):
    """A WebSub subscription."""

    hub: str | None
    """URL of the hub."""
    topic: str | None
    """URL of the feed at the hub."""
    state: str | None
    """`requested` from the hub; `active`: confirmed; `refused` by the hub; `ended`."""
    lease_until: datetime | None
    """End of the subscription."""
    requested_at: datetime | None
    """Time of the last request to the hub."""
    delivered_at: datetime | None
    """Time of the last delivery; null if polls found undelivered posts since."""
    deliveries: int
    """Number of deliveries."""


class FeedState(TypedDict):
    """A feed."""

    spider: str
    """Name of the spider."""
    url: str
    """URL of the feed."""
    title: str | None
    """Title that was imported, else the title in the document."""
    site: str | None
    """URL of the site in the document."""
    format: str | None
    """Format, such as `rss20`, `atom10`, `json11`."""
    categories: list[str]
    """Categories."""
    rate_per_week: float | None
    """Posts per week by the plan, else by the history; null while it is not known."""
    feed_size: int | None
    """Number of posts in the document."""
    full: bool
    """Whether posts have left the document, so that it never holds more than `feed_size`."""
    posts: int
    """Number of collected posts."""
    missed_posts: float
    """Estimated number of missed posts."""
    gaps: int
    """Number of visits that missed posts."""
    last_visit: datetime | None
    """Time of the last visit; null before the first."""
    next_visit: datetime
    """Time from which the feed is due."""
    outcome: str | None
    """Outcome of the last visit."""
    error: str | None
    """Cause of the last failure; null after a success."""
    problems: list[str]
    """Errors in the document."""
    consecutive_errors: int
    """Number of consecutive visits that failed."""
    push: PushState | None
    """WebSub subscription; null before the first request."""
    plan: VisitPlan | None
    """Schedule; null before the first plan."""
    gone: bool
    """Whether `FRESHET_GONE_CONFIRMATIONS` responses confirmed that the feed is gone."""
    alias_of: str | None
    """URL of the feed to which this URL redirects permanently."""
    state: str
    """State in a few words."""
    needs_attention: bool
    """Whether the feed is gone, has an error, or has errors in its document."""


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


async def feed_states(db: Database, query: Document) -> AsyncIterator[FeedState]:
    """Yield feeds by URL, in constant memory. query: of `crawler.storage.feeds`."""
    async for target, monitor in subscriptions.listed(db, query):
        yield state_of(target, monitor)


def state_of(target: Document, monitor: Document) -> FeedState:
    """Return the state of a feed. target, monitor: its documents in `targets` and `feeds`."""
    state, needs_attention = _state(target, monitor)
    push = monitor.get("push")
    return {
        **copied(FeedState, monitor | target),
        "spider": target["_id"].partition(" ")[0],
        "title": target.get("title") or monitor.get("title"),
        "rate_per_week": _rate_per_week(target),
        "last_visit": target.get("visited_at"),
        "error": _error(target, monitor),
        "push": copied(PushState, push) if push else None,
        "plan": plan_of(target),
        "state": state,
        "needs_attention": needs_attention,
    }


def _rate_per_week(target: Document) -> float | None:
    plan, history = target.get("plan") or {}, target.get("history") or {}
    if (planned := plan.get("rate_per_week")) is not None:
        return float(planned) if is_known(plan.get("rate_low"), plan.get("rate_high")) else None
    if "since" not in history or target["changes"] < MIN_POSTS:
        return None
    weeks = max(history["until"] - history["since"], WEEK) / WEEK
    return round(float(target["changes"] / weeks), 3)


def _state(target: Document, monitor: Document) -> tuple[str, bool]:
    """Return a feed's state in a few words, and whether it needs attention."""
    if alias_of := target.get("alias_of"):
        return f"alias of {alias_of}", False
    if target.get("gone"):
        return "gone", True
    if not target.get("visited_at"):
        return "never fetched", False
    if error := _error(target, monitor):
        return error, True
    if problems := monitor.get("problems"):
        return count(len(problems), "problem"), True
    active = (monitor.get("push") or {}).get("state") == "active"
    return ("push active" if active else "ok"), False


def _error(target: Document, monitor: Document) -> str | None:
    """Return why the last visit failed; None if it succeeded."""
    if not (target.get("consecutive_errors") or target.get("consecutive_gone")):
        return None
    last = target.get("last_visit") or {}
    if not target.get("consecutive_errors"):
        return ": ".join(filter(None, ("gone", last.get("reason"))))
    return str(monitor.get("error") or last.get("reason") or target.get("outcome") or "error")


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
    return copied(RefusedFeed, refusal)


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
    db: Database, config: Config, spider: str, urls: Iterable[str], now: datetime, *, delete: bool
) -> RemovalReport:
    """Remove feeds with their posts, versions and visits, or only count these.

    urls: URLs of feeds, or of their aliases. Raises ConfigError for feeds that are not stored.
    """
    from crawler.storage.dedup.index import as_stored  # slow: loads numpy

    async with as_stored(db, config) as registry:
        feeds = await owned(db, config, spider, urls)
        counts = await subscriptions.remove(db, registry, spider, feeds, now, delete=delete)
    return {"dry_run": not delete, "urls": feeds, "removed": counts}


MAX_VERSIONS = 10
MAX_COPIES = 20
# Copies of one post in a list of posts.
MAX_SHOWN_COPIES = 5
# Maximum number of feeds to search for a page of feeds that need attention.
MAX_SEARCHED = 500
# Characters of a version that are compared.
MAX_TEXT = 100_000


class PostCopy(TypedDict):
    """A near-duplicate that is folded under its original."""

    id: str
    """Id of the post."""
    feed: str | None
    """Id of the feed; null for a page of a site."""
    source: str
    """Title of the feed, or name of the spider."""
    title: str | None
    """Title."""
    url: str | None
    """URL of the page."""


class ReaderPost(TypedDict):
    """A post in a list."""

    id: str
    """Id of the post."""
    feed: str
    """Id of the feed."""
    source: str
    """Title of the feed."""
    title: str | None
    """Title."""
    url: str | None
    """URL of the page."""
    excerpt: str
    """Beginning of the text."""
    published: datetime | None
    """Stated date of publication."""
    first_seen: datetime
    """Time of the first visit that saw the post."""
    read: bool
    """Whether the reader has read the post."""
    duplicate_of: str | None
    """Id of the original, if the post is a near-duplicate of a post outside of the list."""
    copies: int
    """Number of near-duplicates."""
    some_copies: list[PostCopy]
    """Some of the near-duplicates."""


class Folder(TypedDict):
    """A folder of feeds."""

    name: str
    """Path, such as `News/Local`."""
    feeds: int
    """Number of feeds in the folder, without the folders below it."""


class UnreadFeed(TypedDict):
    """A feed with unread posts."""

    id: str
    """Id of the feed."""
    title: str
    """Title of the feed."""
    unread: int
    """Number of unread posts, among the newest 2,000 of all feeds and without near-duplicates."""


class PostVersion(TypedDict):
    """A version of a post."""

    at: datetime
    """Time when this version was first seen."""
    fields: list[FieldDiff]
    """Fields that differ from the version before; empty for the oldest one that is shown."""


class FullPost(TypedDict):
    """A post with its text, near-duplicates and versions."""

    id: str
    """Id of the post."""
    spider: str
    """Name of the spider."""
    feed: str | None
    """Id of the feed; null for a page of a site."""
    source: str
    """Title of the feed, or name of the spider."""
    title: str | None
    """Title."""
    url: str | None
    """URL of the page."""
    text: str | None
    """Main text."""
    published: datetime | None
    """Stated date of publication."""
    first_seen: datetime
    """Time of the first visit that saw the post."""
    changed_at: datetime | None
    """Time of the visit that found the current content."""
    read: bool
    """Whether the reader has read the post; true for pages of a site."""
    cluster: str | None
    """Id of the cluster of near-duplicates."""
    duplicate_of: str | None
    """Id of the original."""
    copies: list[PostCopy]
    """Near-duplicates of the post, at most 20."""
    versions: list[PostVersion]
    """Newest versions, at most 10."""


@dataclass(frozen=True, slots=True)
class FeedSelection:
    """The feeds that a reader views: a feed, a folder, or all feeds.

    title: name of the feed or folder; empty for all feeds
    """

    title: str
    view: View
    feed: str = ""
    folder: str = ""


async def selection_of(db: Database, feed: str, folder: str) -> FeedSelection | None:
    """Return a feed or a folder, or all feeds if both are empty; None if it does not exist."""
    if feed:
        names = await storage.titles(db, [feed])
        return FeedSelection(names[feed], View(frozenset([feed])), feed=feed) if names else None
    if folder:
        feeds = await storage.feeds_within(db, folder)
        return FeedSelection(folder, View(feeds), folder=folder) if feeds else None
    return FeedSelection("", View())


async def newest_posts(
    db: Database,
    selection: FeedSelection,
    reader: Reader,
    limit: int,
    after: Key | None,
    *,
    every: bool,
) -> tuple[list[ReaderPost], Key | None]:
    """Return posts, newest first, and the key after which to continue; None at the end.

    every: also return posts that the reader has read
    """
    part = await storage.river(db, selection.view, None if every else reader, limit, after)
    shown_copies = {key: rows[:MAX_SHOWN_COPIES] for key, rows in part.copies.items()}
    every_post = [*part.posts, *(row for rows in shown_copies.values() for row in rows)]
    names = await storage.titles(db, {storage.feed_of(p) for p in every_post if "feed" in p})
    posts: list[ReaderPost] = [
        {
            **copied(ReaderPost, post),
            **_copy(post, names),
            "feed": storage.feed_of(post),
            "read": storage.has_read(reader, post),
            "copies": part.counts.get(post["_id"], 0),
            "some_copies": [_copy(row, names) for row in shown_copies.get(post["_id"], ())],
        }
        for post in part.posts
    ]
    return posts, part.last


def _copy(post: Document, names: dict[str, str]) -> PostCopy:
    feed = storage.feed_of(post) if "feed" in post else None
    return {
        **copied(PostCopy, post),
        "id": post["_id"],
        "feed": feed,
        "source": names.get(feed) or str(post["feed"]) if feed else str(post["spider"]),
    }


async def unread_feeds(db: Database, reader: Reader) -> list[UnreadFeed]:
    """Return the feeds with unread posts, by title."""
    counts = await storage.unread_counts(db, reader)
    names = await storage.titles(db, counts)
    rows: list[UnreadFeed] = [
        {"id": key, "title": names.get(key, key), "unread": n} for key, n in counts.items()
    ]
    return sorted(rows, key=lambda row: row["title"].casefold())


async def folders(db: Database) -> list[Folder]:
    """Return the folders of feeds, by name."""
    return [{"name": name, "feeds": n} for name, n in await subscriptions.folders(db)]


async def full_post(
    db: Database, reader: Reader, key: str, sandbox: ProcessPool
) -> FullPost | None:
    """Return a post with its text, near-duplicates and versions; None if it is not stored."""
    post = await storage.post_of(db, key)
    if post is None:
        return None
    copies = await storage.copies_of(db, key, MAX_COPIES)
    keys = {storage.feed_of(each) for each in (post, *copies) if "feed" in each}
    names = await storage.titles(db, keys)
    versions = await storage.versions_of(db, post, MAX_VERSIONS)
    # The versions are listed with the newest first.
    differences = await compared([_shortened(row["content"]) for row in versions[::-1]], sandbox)
    fields = [
        [field for field in difference["fields"] if field["kind"] != "same"]
        for difference in differences[::-1]
    ]
    fields.append([])
    return {
        **copied(FullPost, post),
        **_copy(post, names),
        "read": "feed" not in post or storage.has_read(reader, post),
        "cluster": str(post["cluster"]) if "cluster" in post else None,
        "copies": [_copy(row, names) for row in copies],
        "versions": [
            {"at": row["at"], "fields": changed}
            for row, changed in zip(versions, fields, strict=False)
        ],
    }


def _shortened(content: Document) -> Document:
    """Return a content with long texts cut, so that many versions are compared in time."""
    return {
        name: value[:MAX_TEXT] if isinstance(value, str) else value
        for name, value in content.items()
    }


async def feeds_page(
    db: Database, folder: str, limit: int, after: Key | None, *, attention: bool
) -> tuple[list[FeedState], Key | None]:
    """Return the state of feeds by URL, and the key after which to continue.

    attention: only feeds that are gone, fail, or have errors in their document
    """
    query: Document = {"kind": subscriptions.FEED}
    if folder:
        query |= subscriptions.within(folder)
    states: list[FeedState] = []
    rows, last = await subscriptions.page_of(db, query, MAX_SEARCHED if attention else limit, after)
    for target, monitor in rows:
        state = state_of(target, monitor)
        if attention and not state["needs_attention"]:
            continue
        states.append(state)
        if len(states) == limit and target is not rows[-1][0]:
            return states, (target["_id"],)
    return states, last


async def feed_state(db: Database, key: str) -> FeedState | None:
    """Return the state of a feed; None if it is not stored."""
    query = {"_id": key, "kind": subscriptions.FEED}
    async for target, monitor in subscriptions.listed(db, query):
        return state_of(target, monitor)
    return None


async def feed_to_read(db: Database, post: str) -> Document:
    """Return a post of a feed; raises ConfigError for any other id."""
    document = await storage.post_of(db, post)
    if document is None or "feed" not in document:
        raise ConfigError("post not found. It may have been removed with its feed")
    return document
