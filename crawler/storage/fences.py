"""Fencing tokens: a stalled process cannot overwrite what other processes stored meanwhile.

Each target has a number that only grows. An acknowledged visit raises it to the next multiple of
VISIT; a process that takes the target over from another one raises it by 1. A visit writes with the
number that its target had when the visit began. The database compares the numbers: an update
applies only to documents without a higher number, an acknowledgment only to a target with the same
number.

All attempts at one visit have the same quotient by VISIT.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pymongo import UpdateOne
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import BulkWriteError

from crawler.items import Target
from crawler.storage.client import Document
from crawler.storage.outages import DUPLICATE_KEY

VISIT = 1000


def begin(now: datetime) -> int:
    """Return the number of a new target, higher than that of a deleted one with its key."""
    return int(now.timestamp()) * VISIT


def after(number: int) -> int:
    """Return the number of a target after the visit with this number is acknowledged."""
    return first(number) + VISIT


def first(number: int) -> int:
    """Return the lowest number of all attempts at the same visit."""
    return number - number % VISIT


def passed(number: int, field: str = "fence") -> Document:
    """Return a condition: no process wrote the document with a higher number."""
    return {field: {"$not": {"$gt": number}}}


def fence_of(target: Target) -> tuple[str, int]:
    """Return the field of a post's signature for a target's number, and the number.

    A feed's post is stored by its feed and by its page, which have independent numbers.
    """
    return "page_fence" if target.post else "fence", target.fence


def same(number: int) -> Document:
    """Return a condition: the target has this number. A missing number counts as 0."""
    return {"fence": number or {"$in": [0, None]}}


async def write(collection: AsyncCollection[Document], updates: Sequence[UpdateOne]) -> None:
    """Apply updates; upserts of documents with a higher number change nothing."""
    if not updates:
        return
    try:
        await collection.bulk_write(updates, ordered=False)
    except BulkWriteError as error:
        if any(not is_refusal(problem) for problem in error.details["writeErrors"]):
            raise


def is_refusal(problem: Any) -> bool:
    """Return whether a write failed because its document has a higher number."""
    return bool(problem["code"] == DUPLICATE_KEY)
