"""Visits and versions of a URL, and the difference between two versions, as text or by field.

By field, lines are compared first, then the words of changed lines. Long unchanged parts are
folded. The texts are untrusted, so time and output are bounded; `compare` belongs in a sandbox if
`is_large`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Literal

from typing_extensions import TypedDict

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.storage import posts, targets, visits
from crawler.storage.client import Database, Document
from crawler.storage.target_queries import TargetState, names_of, state_of, target_of
from crawler.utils.diff import Matcher, by_word, unified
from crawler.utils.sandbox import LimitExceeded, ProcessPool
from crawler.utils.text import is_price, listed, price


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


SegmentKind = Literal["same", "deleted", "inserted", "folded"]
PartKind = Literal["same", "changed", "folded"]
FieldKind = Literal["same", "changed", "deleted", "inserted"]
# Unchanged lines that are shown before and after a change.
CONTEXT_LINES = 2
# Unchanged text within a changed line that is shown before and after a change.
CONTEXT_CHARACTERS = 200
# Longer changed texts are shortened in the middle.
MAX_SEGMENT = 2000
# Characters of all parts; the rest of the difference is left out.
MAX_CHARACTERS = 200_000
MAX_FIELDS = 200
MAX_NAME = 200
# Comparing contents of this size takes a few milliseconds.
QUICK_CHARACTERS = 20_000
# Limits of the sandbox; the largest difference takes about 1.5 s.
COMPARE_SECONDS, COMPARE_MB = 5, 512


class Segment(TypedDict):
    """Consecutive text of one kind."""

    kind: SegmentKind
    """`same`: in both versions; `deleted`: in the first; `inserted`: in the second; `folded`."""
    text: str
    """The text; for `folded` empty."""
    characters: int
    """Number of characters in the versions; more than in `text` if it was shortened."""


class DiffPart(TypedDict):
    """Consecutive lines of a field."""

    kind: PartKind
    """`same`: unchanged; `changed`; `folded`: unchanged and left out."""
    lines: int
    """Number of lines, of the longer side."""
    segments: list[Segment]
    """The text of both versions; empty for `folded`."""


class FieldDiff(TypedDict):
    """The difference of a field."""

    name: str
    """Name of the field."""
    kind: FieldKind
    """`same`, `changed`, `deleted`: only in the first version, `inserted`: only in the second."""
    parts: list[DiffPart]
    """The lines of the field; empty for `same`."""


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


async def compared(before: Document, after: Document, sandbox: ProcessPool) -> VersionDiff:
    """Return the difference between two rows of `versions`; large ones are compared in a sandbox.

    Raises ConfigError if the comparison exceeds the limits of the sandbox.
    """
    work = partial(compare, before, after)
    if not is_large(before["content"], after["content"]):
        return await asyncio.to_thread(work)
    try:
        difference: VersionDiff = await sandbox.run(work)
    except LimitExceeded as problem:
        raise ConfigError(f"these versions cannot be compared: the comparison {problem}") from None
    return difference


def is_large(before: Document, after: Document) -> bool:
    """Return whether comparing two contents would block other work noticeably."""
    texts = (text for content in (before, after) for text in _texts(content))
    room = QUICK_CHARACTERS
    for text in texts:
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


def compare(before: Document, after: Document) -> VersionDiff:
    """Return the difference between two rows of `versions`."""
    old, new = before["content"], after["content"]
    names = [*new, *(name for name in old if name not in new)]
    builder = DiffBuilder(Matcher(), MAX_CHARACTERS, CONTEXT_CHARACTERS)
    fields = [builder.field(name, old, new) for name in names[:MAX_FIELDS]]
    return {
        "before": version_of(before),
        "after": version_of(after),
        "fields": fields,
        "truncated": builder.is_full or len(names) > MAX_FIELDS,
    }


def version_of(row: Document) -> StoredVersion:
    """Return a row of `versions` without the content."""
    return {"content_hash": row["content_hash"], "at": row["at"], "size": row["size"]}


class DiffBuilder:
    """Builds the differences of fields, within one budget of time and of characters.

    context: characters of unchanged text within a line that are shown before and after a change
    is_full: whether more than `max_characters` were returned, so that the rest is left out
    """

    def __init__(self, matcher: Matcher, max_characters: int, context: int) -> None:
        self._matcher = matcher
        self._room = max_characters
        self._context = context
        self.is_full = False

    def field(self, name: str, old: Document, new: Document) -> FieldDiff:
        """Return the difference of a field of two contents, by line."""
        shown = name if len(name) <= MAX_NAME else f"{name[:MAX_NAME]}…"
        if name in old and name in new and old[name] == new[name]:
            return {"name": shown, "kind": "same", "parts": []}
        kind: FieldKind = (
            "deleted" if name not in new else "inserted" if name not in old else "changed"
        )
        before = field_lines(old[name]) if name in old else []
        after = field_lines(new[name]) if name in new else []
        parts = [] if self.is_full else list(self._parts(before, after))
        return {"name": shown, "kind": kind, "parts": parts}

    def _parts(self, before: Sequence[str], after: Sequence[str]) -> Iterator[DiffPart]:
        opcodes = list(self._matcher.opcodes(before, after))
        for n, (equal, i, i_end, j, j_end) in enumerate(opcodes):
            if self.is_full:
                return
            if equal:
                head = CONTEXT_LINES if n else 0
                tail = CONTEXT_LINES if n < len(opcodes) - 1 else 0
                yield from self._unchanged(before[i:i_end], head, tail)
                continue
            lines = max(i_end - i, j_end - j)
            old, new = "\n".join(before[i:i_end]), "\n".join(after[j:j_end])
            yield {"kind": "changed", "lines": lines, "segments": list(self.words(old, new))}

    def _unchanged(self, lines: Sequence[str], head: int, tail: int) -> Iterator[DiffPart]:
        """Yield unchanged lines, of which only the first `head` and last `tail` are shown."""
        # A fold takes one line, so folding one line gains nothing.
        if len(lines) <= head + tail + 1:
            yield self._same(lines)
            return
        if head:
            yield self._same(lines[:head])
        yield {"kind": "folded", "lines": len(lines) - head - tail, "segments": []}
        if tail:
            yield self._same(lines[-tail:])

    def _same(self, lines: Sequence[str]) -> DiffPart:
        text = "\n".join(lines)
        return {"kind": "same", "lines": len(lines), "segments": [self._segment("same", text)]}

    def words(self, old: str, new: str) -> Iterator[Segment]:
        """Yield the segments of two texts, compared by word, until the budget is used up."""
        if not old or not new:
            yield from self._replaced(old, new)
            return
        changes = by_word(old, new, self._matcher)
        for n, change in enumerate(changes):
            if self.is_full:
                return
            is_last = n == len(changes) - 1 and not (change.old or change.new)
            yield from self._around(change.same, is_first=n == 0, is_last=is_last)
            yield from self._replaced(change.old, change.new)

    def _replaced(self, old: str, new: str) -> Iterator[Segment]:
        if old:
            yield self._segment("deleted", old)
        if new:
            yield self._segment("inserted", new)

    def _around(self, text: str, *, is_first: bool, is_last: bool) -> Iterator[Segment]:
        """Yield the unchanged text between two changes, folded if it is long."""
        head = 0 if is_first else self._context
        tail = 0 if is_last else self._context
        left_out = len(text) - head - tail
        if left_out <= self._context:
            if text:
                yield self._segment("same", text)
            return
        if head:
            yield self._segment("same", text[:head])
        yield {"kind": "folded", "text": "", "characters": left_out}
        if tail:
            yield self._segment("same", text[-tail:])

    def _segment(self, kind: SegmentKind, text: str) -> Segment:
        shown = text
        if len(text) > MAX_SEGMENT:
            half = MAX_SEGMENT // 2 - 1
            shown = f"{text[:half]}…{text[-half:]}"
        self._room -= len(shown)
        self.is_full = self.is_full or self._room < 0
        return {"kind": kind, "text": shown, "characters": len(text)}


def field_lines(value: Any) -> list[str]:
    """Return the value of a field as lines of text: one for each entry of a list."""
    if isinstance(value, list):
        return [entry if isinstance(entry, str) else _as_text(entry) for entry in value]
    if isinstance(value, str):
        return value.splitlines() or [""]
    return [_as_text(value)]


def _as_text(value: Any) -> str:
    """Return a value as readable text: a price as `12.50 EUR`, nothing for null."""
    if value is None:
        return ""
    if isinstance(value, dict):
        if is_price(value):
            return price(value)
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)
