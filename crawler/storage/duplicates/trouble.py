"""Errors of MongoDB's driver as the user's, in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pymongo.errors import PyMongoError

from crawler.errors import StorageError
from crawler.storage.patience import in_short


@contextmanager
def told(advice: str = "") -> Iterator[None]:
    """Raise StorageError for what the driver raises; advice: what to do then."""
    try:
        yield
    except PyMongoError as error:
        raise StorageError(f"MongoDB: {in_short(error)}{advice and f' ({advice})'}") from None
