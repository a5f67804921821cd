"""Comparison candidates built from stored posts, in the same way as a crawl builds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from crawler.dedup import posts
from crawler.dedup.boilerplate import Sourced
from crawler.dedup.posts import Candidate, created_at, id_of
from crawler.dedup.sketch import Scheme, Sketch
from crawler.extract.plain_text import as_texts
from crawler.storage.client import Database, Document

FIELDS = (
    "title", "text", "fields", "markup", "page.at", "page.fields", "page.markup", "changed_at",
    "compare", "published", "first_seen", "item", "spider", "feed", "url", "page.url", "fence",
    "page.fence",
)  # fmt: skip


def compared_text(post: Document) -> str:
    """Return the text by which a post is compared."""
    title, fields = _content(post)
    return posts.text_of(title, post.get("text"), fields, post.get("compare"))


def compared(post: Document, scheme: Scheme) -> tuple[Sketch | None, Sourced | None]:
    """Return the sketch and the text of a post, as `crawler.dedup.posts` does."""
    title, fields = _content(post)
    return posts.compared(
        scheme, source_of(post), title, post.get("text"), fields, post.get("compare")
    )


def candidate_of(post: Document, scheme: Scheme) -> Candidate | None:
    """Return a post as a candidate for a claim; None if the post has no text."""
    sketch, text = compared(post, scheme)
    if sketch is None:
        return None
    item = id_of(post["item"]) if post.get("item") else None
    origin = posts.source_of(
        post["spider"], post.get("feed") or post.get("url") or "", is_feed="feed" in post
    )
    # If a newer visit has claimed the post but not stored it yet, this text is outdated.
    fences = {"fence": post.get("fence"), "page_fence": (post.get("page") or {}).get("fence")}
    return Candidate(
        post["_id"], created_of(post), sketch, item=item, text=text,
        fences={name: number for name, number in fences.items() if number is not None},
        seen=post["first_seen"], source=id_of(origin),
    )  # fmt: skip


def source_of(post: Document) -> str:
    """Return the source of a post's text: its feed, or the host of its page."""
    page = post.get("page")
    if page and page["at"] >= post.get("changed_at", page["at"]):
        return posts.source_of(post["spider"], page.get("url") or "", is_feed=False)
    url = post.get("feed") or post.get("url") or ""
    return posts.source_of(post["spider"], url, is_feed="feed" in post)


async def candidates_of(db: Database, scheme: Scheme, keys: Sequence[str]) -> list[Candidate]:
    """Return candidates for the given posts that are stored and have a text."""
    cursor = db.posts.find({"_id": {"$in": list(keys)}}, FIELDS)
    candidates = [candidate_of(post, scheme) async for post in cursor]
    return [candidate for candidate in candidates if candidate is not None]


def created_of(post: Document) -> datetime:
    """Return the stated date of a post if it is plausible, else when it was first seen."""
    seen = post["first_seen"]
    created = created_at(post.get("published"), seen)
    for holder in (post, post.get("page") or {}):
        date = (holder.get("fields") or {}).get("published")
        if isinstance(date, datetime):
            created = min(created, created_at(date, seen))
    return created


def _content(post: Document) -> tuple[str | None, Mapping[str, Any]]:
    """Return title and fields as plain text, from whichever of feed and page was read last."""
    page = post.get("page")
    if page and page["at"] >= post.get("changed_at", page["at"]):
        fields = as_texts(page.get("fields") or {}, page.get("markup") or ())
        return fields.get("title"), fields
    return post.get("title"), as_texts(post.get("fields") or {}, post.get("markup") or ())
