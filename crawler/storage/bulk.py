"""Bulk writes that may be repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from typing import TypeVar

from pymongo import UpdateMany
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import BulkWriteError

from crawler.storage.client import Document

Value = TypeVar("Value")
DUPLICATE_KEY = 11000


def in_batches(values: Sequence[Value], size: int) -> Iterator[list[Value]]:
    """`values` in lists of `size` at most: a query of 50,000 URLs would be too large."""
    for start in range(0, len(values), size):
        yield list(values[start : start + size])


def keep_newest(
    query: Document, field: str, values: Iterable[str], most: int
) -> Iterator[UpdateMany]:
    """The writes that add values to an array, which keeps the newest `most` without repetitions.

    Other people's pages decide how many there are, and a document has 16 MB at most.
    """
    for value in values:
        added = {"$each": [value], "$slice": -most}
        yield UpdateMany(query | {field: {"$ne": value}}, {"$push": {field: added}})


async def all_of(works: Iterable[Awaitable[Value]]) -> list[Value]:
    """The results of works that go on at once; where one fails the others end before it is told."""
    done = await asyncio.gather(*works, return_exceptions=True)
    for one in done:
        if isinstance(one, BaseException):
            raise one
    return [one for one in done if not isinstance(one, BaseException)]


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
