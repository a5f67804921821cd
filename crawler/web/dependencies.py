"""Dependencies of routes: the open database, the current time, and the position in a list.

Dependencies for users are in `crawler.web.auth`: UserDep and EditorDep.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypeVar

from bson import ObjectId
from bson.errors import InvalidId
from fastapi import Depends, HTTPException, Query
from pydantic import AfterValidator, AwareDatetime
from starlette.requests import Request

from crawler.config import Config
from crawler.storage.client import Store
from crawler.storage.paging import Key
from crawler.utils.time import NEVER

MAX_ROWS, USUAL_ROWS = 200, 50
MAX_CURSOR_CHARACTERS = 4000
# The largest integer that MongoDB stores.
MAX_INTEGER = 2**63 - 1
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIME, ID = "t", "o"
Value = TypeVar("Value")


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
class Place:
    """The part of a list that a request asks for.

    after: key of the last row of the page before; None: from the first row
    """

    limit: int
    after: Key | None

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


def _place(
    limit: Annotated[
        int, Query(ge=1, le=MAX_ROWS, description="maximum number of rows")
    ] = USUAL_ROWS,
    cursor: Annotated[
        str | None,
        Query(
            max_length=MAX_CURSOR_CHARACTERS,
            description="value of next in the page before; absent: first page",
        ),
    ] = None,
) -> Place:
    try:
        return Place(limit, key_of(cursor) if cursor else None)
    except ValueError:
        raise HTTPException(
            422, "cursor: not valid. Use `next` of the page before, or begin with the first page"
        ) from None


PlaceDep = Annotated[Place, Depends(_place)]
