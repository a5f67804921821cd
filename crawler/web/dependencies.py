"""Dependencies of routes: the open database, the current time, and the position in a list.

The first request opens the database; requests open it again after an outage. Dependencies for users
are in `crawler.web.auth`: UserDep and EditorDep.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypeVar

from bson import ObjectId
from bson.errors import InvalidId
from fastapi import Depends, HTTPException, Query
from pydantic import AfterValidator, AwareDatetime
from starlette.requests import Request

from crawler.config import Config
from crawler.errors import StorageError, Unreachable
from crawler.storage.client import raising_unreachable
from crawler.storage.paging import Key
from crawler.storage.store import Store
from crawler.utils.time import NEVER

# Time after a failure in which requests fail immediately, instead of waiting for the server.
PAUSE_SECONDS = 2.0
PING_SECONDS = 2.0
MAX_ROWS, USUAL_ROWS = 200, 50
MAX_CURSOR_CHARACTERS = 4000
# The largest integer that MongoDB stores.
MAX_INTEGER = 2**63 - 1
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIME, ID = "t", "o"
Value = TypeVar("Value")


class WebDatabase:
    """Opens the store when it is first needed, and checks it after each failure.

    While the database is unavailable, one request at a time tries it again; the others fail
    immediately.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self._store: Store | None = None
        self._problem: StorageError | None = None
        self._retry_at = 0.0
        self._opening = asyncio.Lock()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Store]:
        """Open the store during a block; raises StorageError, also for outages inside the block."""
        store = await self._working_store()
        try:
            with raising_unreachable():
                yield store
        except Unreachable as error:
            self._failed(error)
            raise

    async def problem(self) -> str | None:
        """Return why the database cannot be used now, in one line; None if it answers."""
        try:
            store = await self._working_store()
        except StorageError as error:
            return str(error)
        return await store.problem(PING_SECONDS)

    async def close(self) -> None:
        """Close the connections."""
        if self._store is not None:
            await self._store.close()
            self._store = None

    async def _working_store(self) -> Store:
        if self._store is not None and self._problem is None:
            return self._store
        if self._problem is not None and (
            self._opening.locked() or time.monotonic() < self._retry_at
        ):
            # A copy: raising the same error again would extend its traceback.
            raise type(self._problem)(*self._problem.args)
        async with self._opening:
            if self._store is not None and self._problem is None:
                return self._store
            try:
                if self._store is None:
                    self._store = await Store.open(self.config)
                else:
                    await self._store.revive()
                    if reason := await self._store.problem(PING_SECONDS):
                        raise Unreachable(reason)
            except StorageError as error:
                self._failed(error)
                raise
            self._problem = None
            return self._store

    def _failed(self, error: StorageError) -> None:
        self._problem = error
        self._retry_at = time.monotonic() + PAUSE_SECONDS


async def _store(request: Request) -> AsyncIterator[Store]:
    async with request.app.state.database.opened() as store:
        yield store


def _now(request: Request) -> datetime:
    config: Config = request.app.state.database.config
    return config.clock.now()


def _in_utc(value: datetime) -> datetime:
    """Return an aware time in UTC; raises ValueError if it is outside of the years 1 to 9998."""
    try:
        at = value.astimezone(UTC)
    except OverflowError:
        at = NEVER
    if at >= NEVER:
        raise ValueError("must be before the year 9999 in UTC, and not before the year 1")
    return at


# A time with its zone in a request. Times at the ends of the calendar would overflow in UTC.
Time = Annotated[AwareDatetime, AfterValidator(_in_utc)]
StoreDep = Annotated[Store, Depends(_store)]
NowDep = Annotated[datetime, Depends(_now)]


@dataclass(frozen=True, slots=True)
class Pagination:
    """The page of a list that a request asks for.

    limit: maximum number of rows
    after: key of the last row of the page before; None: from the first row
    """

    limit: int = USUAL_ROWS
    after: Key | None = None

    def value(self, kind: type[Value]) -> Value | None:
        """Return the key of a list that is ordered by one value; None: from the first row.

        Raises HTTPException (422) for the cursor of another list.
        """
        value = self.after[0] if self.after else None
        if value is not None and not isinstance(value, kind):
            raise HTTPException(422, "cursor: not valid. Begin with the first page")
        return value


def cursor_of(key: Key | None) -> str | None:
    """Return a key as text for URLs and JSON; None for None."""
    if key is None:
        return None
    packed = json.dumps([_packed(value) for value in key], separators=(",", ":"))
    return base64.urlsafe_b64encode(packed.encode()).decode().rstrip("=")


def key_of(cursor: str) -> Key:
    """Return the key of a cursor; raises ValueError for a text that is not one.

    Values are scalars, so that a forged cursor cannot add operators to a query.
    """
    try:
        packed = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        values = json.loads(packed)
    except (binascii.Error, UnicodeDecodeError, RecursionError) as error:
        raise ValueError("not a cursor") from error
    if not isinstance(values, list) or not values:
        raise ValueError("not a cursor")
    return tuple(_unpacked(value) for value in values)


def _packed(value: Any) -> Any:
    if isinstance(value, datetime):
        return {TIME: round((value - EPOCH) / timedelta(milliseconds=1))}
    if isinstance(value, ObjectId):
        return {ID: str(value)}
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise TypeError(f"cannot sort by values of type {type(value).__name__}")


def _unpacked(value: Any) -> Any:
    if isinstance(value, str):
        # Raises UnicodeEncodeError, a ValueError, for lone surrogates, which MongoDB rejects.
        value.encode()
    if isinstance(value, list) or (isinstance(value, int) and abs(value) > MAX_INTEGER):
        raise ValueError("not a cursor")
    if not isinstance(value, dict):
        return value
    try:
        ((kind, inner),) = value.items()
        if kind == TIME and isinstance(inner, int):
            return EPOCH + timedelta(milliseconds=inner)
        if kind == ID and isinstance(inner, str):
            return ObjectId(inner)
    except (OverflowError, InvalidId, ValueError):
        pass
    raise ValueError("not a cursor")


CursorQuery = Annotated[
    str | None,
    Query(
        max_length=MAX_CURSOR_CHARACTERS,
        description="value of next in the page before; absent: first page",
    ),
]
LimitQuery = Annotated[int, Query(ge=1, le=MAX_ROWS, description="maximum number of rows")]


def _pagination(limit: LimitQuery = USUAL_ROWS, cursor: CursorQuery = None) -> Pagination:
    return pagination_of(limit, cursor)


def pagination_of(limit: int, cursor: str | None) -> Pagination:
    """Return the page for a cursor; raises HTTPException (422) for a text that is not one."""
    try:
        return Pagination(limit, key_of(cursor) if cursor else None)
    except ValueError:
        raise HTTPException(
            422, "cursor: not valid. Use `next` of the page before, or begin with the first page"
        ) from None


PaginationDep = Annotated[Pagination, Depends(_pagination)]
