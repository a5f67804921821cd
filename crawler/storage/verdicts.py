"""Near-duplicate verdicts as posts show them."""

from __future__ import annotations

from crawler.dedup.posts import Verdict
from crawler.storage.client import Document

FIELDS = ("duplicate_of", "similarity", "cluster")


def update_of(verdict: Verdict | None) -> Document:
    """Return the update that shows a verdict on a post; without one, a new post is original."""
    if verdict is None:
        return {"$setOnInsert": {"original": True}}
    values = (verdict.duplicate_of, verdict.similarity, verdict.cluster)
    fields = dict(zip(FIELDS, values, strict=True))
    there = {name: value for name, value in fields.items() if value is not None}
    update: Document = {"$set": {"original": verdict.is_original} | there}
    if gone := [name for name in FIELDS if name not in there]:
        update["$unset"] = dict.fromkeys(gone, "")
    return update


def with_verdict(update: Document, verdict: Verdict | None) -> Document:
    """Return an update of a post with its verdict added."""
    flags = update_of(verdict)
    return {name: update.get(name, {}) | flags.get(name, {}) for name in update.keys() | flags}
