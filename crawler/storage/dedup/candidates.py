"""A stored post as it is compared: what a crawl made a sketch of, made again from `posts`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from crawler.dedup import post_text
from crawler.dedup.boilerplate import Sourced
from crawler.dedup.model import Candidate, created_at, id_of
from crawler.dedup.scheme import Scheme
from crawler.dedup.sketch import Sketch
from crawler.extract.plain_text import as_texts
from crawler.storage.client import Database, Document

FIELDS = (
    "title", "text", "fields", "markup", "page.at", "page.fields", "page.markup", "changed_at",
    "compare", "published", "first_seen", "item", "spider", "feed", "url", "page.url",
)  # fmt: skip


def compared_text(post: Document) -> str:
    """What says whether a post is the same as another."""
    title, fields = _content(post)
    return post_text.text_of(title, post.get("text"), fields, post.get("compare"))


def sketch_of(post: Document, scheme: Scheme) -> Sketch | None:
    """The sketch of a post; None where it has no text."""
    title, fields = _content(post)
    return post_text.sketch_of(scheme, title, post.get("text"), fields, post.get("compare"))


def candidate_of(post: Document, scheme: Scheme) -> Candidate | None:
    """A post as it asks whether it is an original; None where it has no text."""
    sketch = sketch_of(post, scheme)
    if sketch is None:
        return None
    item = id_of(post["item"]) if post.get("item") else None
    text = sourced_of(post) if scheme.weighs else None
    origin = post_text.source_of(
        post["spider"], post.get("feed") or post.get("url") or "", is_feed="feed" in post
    )
    return Candidate(
        post["_id"], created_of(post), sketch, item=item, text=text,
        seen=post["first_seen"], source=id_of(origin),
    )  # fmt: skip


def sourced_of(post: Document) -> Sourced | None:
    """The text of a post with its source; None where no boilerplate is looked for in it."""
    title, fields = _content(post)
    return post_text.sourced_text(
        source_of(post), title, post.get("text"), fields, post.get("compare")
    )


def source_of(post: Document) -> str:
    """The source of a post's text: the feed, or the host of the page, that it was read from."""
    page = post.get("page")
    if page and page["at"] >= post.get("changed_at", page["at"]):
        return post_text.source_of(post["spider"], page.get("url") or "", is_feed=False)
    url = post.get("feed") or post.get("url") or ""
    return post_text.source_of(post["spider"], url, is_feed="feed" in post)


async def candidates_of(db: Database, scheme: Scheme, keys: Sequence[str]) -> list[Candidate]:
    """Those of these posts that are stored and have a text, as they are post_text."""
    cursor = db.posts.find({"_id": {"$in": list(keys)}}, FIELDS)
    candidates = [candidate_of(post, scheme) async for post in cursor]
    return [candidate for candidate in candidates if candidate is not None]


def created_of(post: Document) -> datetime:
    """When a post was written, by its own word as far as that can be."""
    seen = post["first_seen"]
    created = created_at(post.get("published"), seen)
    for holder in (post, post.get("page") or {}):
        date = (holder.get("fields") or {}).get("published")
        if isinstance(date, datetime):
            created = min(created, created_at(date, seen))
    return created


def _content(post: Document) -> tuple[str | None, Mapping[str, Any]]:
    """Title and fields, HTML as its text; of the page behind a feed's post if read last."""
    page = post.get("page")
    if page and page["at"] >= post.get("changed_at", page["at"]):
        fields = as_texts(page.get("fields") or {}, page.get("markup") or ())
        return fields.get("title"), fields
    return post.get("title"), as_texts(post.get("fields") or {}, post.get("markup") or ())
