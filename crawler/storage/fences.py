"""Fencing tokens: a process that stalled cannot overwrite what others have stored meanwhile.

Each target has a number that only grows: an acknowledged visit raises it to the next multiple of
VISIT, a process that takes the target over from another one raises it by one. A visit writes under
the number that its target had when the visit began, and the database compares: an update applies
only to documents without a higher number, an acknowledgment only to a target with the same number.

Numbers of one visit and its repetitions have the same quotient by VISIT.
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
from crawler.storage.retry import DUPLICATE_KEY

VISIT = 1000


def begin(now: datetime) -> int:
    """Return the number of a new target: higher than that of a deleted one with its name."""
    return int(now.timestamp()) * VISIT


def after(number: int) -> int:
    """Return the number of a target whose visit under this number is acknowledged."""
    return first(number) + VISIT


def first(number: int) -> int:
    """Return the lowest number of all attempts at the same visit."""
    return number - number % VISIT


def passed(number: int, field: str = "fence") -> Document:
    """Return a condition: nobody has written a document under a higher number."""
    return {field: {"$not": {"$gt": number}}}


def fence_of(target: Target) -> tuple[str, int]:
    """Return the field of a post's signature for the number of a target, and the number.

    A feed's post is stored by its feed and by its page, whose numbers have nothing in common.
    """
    return "page_fence" if target.post else "fence", target.fence


def same(number: int) -> Document:
    """Return a condition: a target has this number. No number counts as 0."""
    return {"fence": number or {"$in": [0, None]}}


async def write(collection: AsyncCollection[Document], updates: Sequence[UpdateOne]) -> None:
    """Apply updates; an upsert of a document with a higher number changes nothing."""
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
