"""Bulk writes that may be repeated."""

from __future__ import annotations

from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import BulkWriteError

from crawler.storage.client import Document

DUPLICATE_KEY = 11000


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
