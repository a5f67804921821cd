"""Visits and versions of a URL, and the difference between two versions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from itertools import pairwise
from typing import Any

from typing_extensions import TypedDict

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.storage import posts, targets, visits
from crawler.storage.client import Database, Document
from crawler.storage.target_queries import TargetState, names_of, state_of, target_of
from crawler.utils.diff import Matcher
from crawler.utils.edits import Difference, FieldDiff, difference
from crawler.utils.sandbox import LimitExceeded, ProcessPool
from crawler.utils.shapes import copied
from crawler.utils.text import listed

# Comparing contents of this size takes a few milliseconds.
QUICK_CHARACTERS = 20_000
# Limits of the sandbox; the largest difference takes about 1.5 s.
COMPARE_SECONDS, COMPARE_MB = 5, 512


class VisitRow(TypedDict):
    """A visit, from the change log."""

    id: str
    """Id of the visit."""
    at: datetime
    """Time of the response."""
    outcome: str
    """Result of the visit."""
    reason: str | None
    """Cause of an error, a refusal or a redirect, or how the page broke."""
    broken: str | None
    """How the page broke: `selector`, `shrunk` or `login`; null if it works."""
    changed: bool
    """Whether a change was found; false for the first visit."""
    event: bool
    """Whether the page is new, changed, gone for the first time, or back."""
    status: int | None
    """HTTP status."""
    elapsed_ms: float | None
    """Time to the response in milliseconds."""
    get_size: int
    """Bytes of the response body; 0 for a 304."""
    update_size: int
    """Bytes by which the body differs from the previous one."""
    diff_size: int
    """Characters inserted into and deleted from the content."""
    content_hash: str | None
    """Hash of the content."""
    final_url: str | None
    """URL after redirects; null without redirects."""
    hint: str | None
    """Change hint that caused the visit: `lastmod` or `list`."""
    posts_new: int
    """For a feed: number of new posts."""
    posts_edited: int
    """For a feed: number of edited posts."""
    missed_posts: float
    """For a feed: estimated number of posts missed before the visit."""
    pushed: bool
    """Whether a hub delivered the content, without a request."""
    shared_fetch: bool
    """Whether a cell shared the fetch of another cell."""


class Version(TypedDict):
    """A version of the content."""

    content_hash: str
    """Hash of the content."""
    at: datetime
    """Time when the content was first seen."""
    visit: str | None
    """Id of the visit that stored the version."""
    size: int
    """Uncompressed bytes."""
    content: dict[str, Any]
    """Fields by name, `title` and `main_text`; for a list page `links`."""


class Source(TypedDict):
    """A post of a feed with the same URL."""

    id: str
    """Id of the post."""
    spider: str
    """Name of the spider."""
    feed: str
    """URL of the feed, for `--source`."""


class FeedPost(TypedDict):
    """A post of a feed."""

    id: str
    """Id of the post: spider, feed and id in the feed."""
    feed: str
    """URL of the feed."""
    guid: str | None
    """Id in the feed."""
    title: str | None
    """Title."""
    categories: list[str]
    """Categories."""
    published: datetime | None
    """Date of publication; null if unknown or implausible."""
    first_seen: datetime
    """Time of the first visit of the feed that saw the post."""
    changed_at: datetime | None
    """Time of the visit that stored the current content."""


class History(TypedDict):
    """Visits and versions of a URL."""

    url: str
    """Canonical URL, or `cell:NAME`."""
    spider: str
    """Name of the spider."""
    target: TargetState | None
    """The target; null for a post that is known only from a feed, or with `--source`."""
    post: FeedPost | None
    """The feed's post; null for a target."""
    visits: list[VisitRow]
    """Visits, oldest first. Visits of a feed are recorded for the feed, not for its posts."""
    versions: list[Version]
    """Versions, oldest first."""
    sources: list[Source]
    """Posts of feeds with the same URL."""


async def history_of(
    db: Database, config: Config, url: str, spider: str | None, source: str | None, last: int = 0
) -> History:
    """Return the history of a target or of a feed's post. Raises ConfigError if there is none.

    spider: required if several spiders visit the URL
    source: URL of a feed, to return its post instead of the page
    last:   maximum number of visits, the latest ones; 0: all
    """
    names = names_of(url, config)
    items = await posts.named(db, [url, *names], spider)
    feed_posts = [item for item in items if "feed" in item]
    # A post's link may differ from the page's URL, such as http instead of https.
    named = [*names, *(item["url"] for item in items if "feed" not in item)]
    watched = await targets.of_url(db, named, spider)
    # Targets with `post` are fetched only to complete the post of a feed.
    pages = [target for target in watched if "post" not in target] or watched
    if source is not None or (feed_posts and not pages):
        post = _post_of_source(feed_posts, url, source)
        key, spider_name = post["_id"], post["spider"]
        return {
            "url": post["url"],
            "spider": spider_name,
            "target": None,
            "post": {**copied(FeedPost, post), "id": key},
            "visits": [],
            "versions": await _versions(db, spider_name, key.removeprefix(f"{spider_name} ")),
            "sources": _sources(other for other in feed_posts if other["_id"] != key),
        }
    target = (
        pages[0]
        if len(pages) == 1
        else await target_of(db, config, url, spider, among=("targets", "posts"))
    )
    spider_name, stored_url = target["spider"], target["url"]
    rows = await visits.of_target(db, spider_name, stored_url, last)
    return {
        "url": stored_url,
        "spider": spider_name,
        "target": state_of(target),
        "post": None,
        "visits": [visit_row(row) for row in rows],
        "versions": await _versions(db, spider_name, stored_url),
        "sources": _sources(feed_posts),
    }


def _post_of_source(feed_posts: Sequence[Document], url: str, source: str | None) -> Document:
    """Return the post of a feed, or the first post if no feed is given; raises ConfigError."""
    if not feed_posts:
        raise ConfigError(f"no feed has a post with the URL {url}")
    post = next((post for post in feed_posts if source in (None, post["feed"])), None)
    if post is None:
        feeds = listed([post["feed"] for post in feed_posts])
        raise ConfigError(
            f"--source {source}: this feed has no post with the URL {url}. Available: {feeds}"
        )
    return post


def _sources(feed_posts: Iterable[Document]) -> list[Source]:
    return [{**copied(Source, post), "id": post["_id"]} for post in feed_posts]


async def _versions(db: Database, spider: str, target: str) -> list[Version]:
    return [
        {**copied(Version, row), "visit": None if row.get("visit") is None else str(row["visit"])}
        for row in await posts.of_target(db, spider, target)
    ]


def visit_row(row: Document) -> VisitRow:
    """Return the report of a stored visit."""
    return {**copied(VisitRow, row), "id": str(row["_id"])}


class StoredVersion(TypedDict):
    """A version of the content, without the content."""

    content_hash: str
    """Hash of the content."""
    at: datetime
    """Time when the content was first seen."""
    size: int
    """Uncompressed bytes of the page."""


class VersionDiff(TypedDict):
    """The difference between two versions of a target."""

    before: StoredVersion
    """The first version."""
    after: StoredVersion
    """The second version."""
    fields: list[FieldDiff]
    """All fields, at most 200, in the order of the second version."""
    truncated: bool
    """Whether a part of the difference was left out because it is too long."""


async def compared(contents: Sequence[Document], sandbox: ProcessPool) -> list[Difference]:
    """Return the difference of each content to the next one; large ones are compared in a sandbox.

    Raises ConfigError if the comparison exceeds the limits of the sandbox.
    """
    work = partial(differences, contents)
    if not is_large(contents):
        return await asyncio.to_thread(work)
    try:
        compared: list[Difference] = await sandbox.run(work)
    except LimitExceeded as problem:
        raise ConfigError(f"these versions cannot be compared: the comparison {problem}") from None
    return compared


def differences(contents: Sequence[Document]) -> list[Difference]:
    """Return the difference of each content to the next one."""
    matcher = Matcher()
    return [difference(before, after, matcher) for before, after in pairwise(contents)]


def is_large(contents: Sequence[Document]) -> bool:
    """Return whether comparing some contents would block other work noticeably."""
    room = QUICK_CHARACTERS
    for text in (text for content in contents for text in _texts(content)):
        room -= len(text)
        if room < 0:
            return True
    return False


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, entry in value.items():
            yield str(key)
            yield from _texts(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from _texts(entry)
    else:
        yield value if isinstance(value, str) else " " * 20


def version_diff(
    before: Document | Version, after: Document | Version, difference: Difference
) -> VersionDiff:
    """Return the difference between two versions, with their hashes and times."""
    return {"before": version_of(before), "after": version_of(after), **difference}


def version_of(version: Document | Version) -> StoredVersion:
    """Return a version without the content."""
    return copied(StoredVersion, version)
