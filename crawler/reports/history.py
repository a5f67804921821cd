"""Report of `scrapy history`: visits and versions of a URL, and the difference between two."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from typing_extensions import TypedDict

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.storage import posts, targets, visits
from crawler.storage.client import Database, Document
from crawler.storage.target_queries import TargetState, names_of, state_of, target_of
from crawler.utils.diff import unified
from crawler.utils.text import listed


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


class VersionDifference(TypedDict):
    """The difference between two versions."""

    url: str
    """Canonical URL, or `cell:NAME`."""
    before: Version
    """The first version."""
    after: Version
    """The second version."""
    diff: list[str]
    """Lines of the difference: `-` deleted, `+` inserted, `~` with both, space unchanged."""


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
            "post": {
                "id": key,
                "feed": post["feed"],
                "guid": post.get("guid"),
                "title": post.get("title"),
                "categories": post.get("categories", []),
                "published": post.get("published"),
                "first_seen": post["first_seen"],
                "changed_at": post.get("changed_at"),
            },
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


def difference(history: History, positions: tuple[int, int]) -> VersionDifference:
    """Return the difference between two versions of a history, by their positions."""
    versions = history["versions"]
    before, after = versions[positions[0]], versions[positions[1]]
    return {
        "url": history["url"],
        "before": before,
        "after": after,
        "diff": unified(
            posts.as_lines(before["content"]),
            posts.as_lines(after["content"]),
            (version_name(before, positions[0]), version_name(after, positions[1])),
        ),
    }


def version_name(version: Version, position: int) -> str:
    """Return the number and the time of a version."""
    return f"version {position + 1}, {version['at']:%Y-%m-%d %H:%M}"


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
    return [
        {"id": post["_id"], "spider": post["spider"], "feed": post["feed"]} for post in feed_posts
    ]


async def _versions(db: Database, spider: str, target: str) -> list[Version]:
    return [
        {
            "content_hash": row["content_hash"],
            "at": row["at"],
            "visit": None if row.get("visit") is None else str(row["visit"]),
            "size": row["size"],
            "content": row["content"],
        }
        for row in await posts.of_target(db, spider, target)
    ]


def visit_row(row: Document) -> VisitRow:
    """Return the report of a stored visit."""
    return {
        "id": str(row["_id"]),
        "at": row["at"],
        "outcome": row["outcome"],
        "reason": row.get("reason"),
        "broken": row.get("broken"),
        "changed": bool(row["changed"]),
        "event": bool(row.get("event")),
        "status": row.get("status"),
        "elapsed_ms": row.get("elapsed_ms"),
        "get_size": row["get_size"],
        "update_size": row["update_size"],
        "diff_size": row["diff_size"],
        "content_hash": row.get("content_hash"),
        "final_url": row.get("final_url"),
        "hint": row.get("hint"),
        "posts_new": row.get("posts_new", 0),
        "posts_edited": row.get("posts_edited", 0),
        "missed_posts": row.get("missed_posts", 0.0),
        "pushed": bool(row.get("pushed")),
        "shared_fetch": bool(row.get("shared_fetch")),
    }
