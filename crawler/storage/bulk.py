"""Bulk writes that may be repeated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import BulkWriteError

from crawler.storage.client import Document

Value = TypeVar("Value")
DUPLICATE_KEY = 11000


def in_batches(values: Sequence[Value], size: int) -> Iterator[list[Value]]:
    """`values` in lists of `size` at most: a query of 50,000 URLs would be too large."""
    for start in range(0, len(values), size):
        yield list(values[start : start + size])


async def insert_new(collection: AsyncCollection[Document], documents: list[Document]) -> int:
    """Insert those documents whose `_id` is not there yet; how many were."""
    if not documents:
        return 0
    try:
        await collection.insert_many(documents, ordered=False)
    except BulkWriteError as error:
        problems = error.details["writeErrors"]
        if any(problem["code"] != DUPLICATE_KEY for problem in problems):
            raise
        return len(documents) - len(problems)
    return len(documents)
