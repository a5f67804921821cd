"""Pages with a history, written directly to the database as if by weeks of crawls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pymongo import AsyncMongoClient

from crawler.items import Kind
from crawler.storage.client import Database
from crawler.storage.schema import prepare
from crawler.storage.targets import history_document, in_minutes, new_document
from schedules.history import History
from tests.integration.harness import Db, Row

NOW = datetime(2026, 3, 2, 0, 5, tzinfo=UTC)  # a Monday
BEGIN = datetime(2026, 2, 9, tzinfo=UTC)  # a Monday three weeks earlier
DAY, HOUR, MINUTE = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)
POLL = 20 * MINUTE


@dataclass
class Since:
    """The real time that corresponds to NOW."""

    real: datetime


_since = Since(datetime.now(UTC))


def clock() -> float:
    """Return FRESHET_CLOCK_OFFSET_HOURS for `hours=` of a command: NOW is the time of `put`.

    The clock runs on between commands. If each command started at NOW, the plan of a previous
    command would be in its future.
    """
    return (NOW - _since.real) / HOUR


def on(uri: str, call: Callable[[Database], Awaitable[Any]]) -> Any:
    """Run a coroutine on the database and return its result."""

    async def there() -> Any:
        client: AsyncMongoClient[Row]
        async with AsyncMongoClient(uri, tz_aware=True) as client:
            return await call(client.get_default_database())

    # Playwright's loop is the current one of the thread of browser tests.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, there()).result()


def page(
    url: str,
    changes: Iterable[datetime] = (),
    *,
    spider: str = "shop",
    kind: Kind = Kind.ITEM,
    categories: Sequence[str] = (),
    **own: object,
) -> Row:
    """Return a target polled every 20 minutes for three weeks; `changes`: polls with a change."""
    past = History.begin(in_minutes(BEGIN))
    for at in sorted(changes):
        past = past.seen(in_minutes(at - POLL), changed=False)
        past = past.seen(in_minutes(at), changed=True)
    past = past.seen(in_minutes(NOW - HOUR), changed=False)
    row = new_document(spider, url, kind, NOW + 5 * HOUR, BEGIN, categories)
    seen = {"visited_at": NOW - HOUR, "requested": 1512, "refreshed": 1512, "outcome": "unchanged"}
    return row | seen | {"history": history_document(past)} | own


def never_seen(url: str, **own: object) -> Row:
    """Return a target that was discovered a moment ago."""
    return new_document("shop", url, Kind.ITEM, NOW, NOW) | own


def put(db: Db, uri: str, rows: Sequence[Row]) -> None:
    """Store targets in a prepared database, and set the time to NOW."""
    on(uri, prepare)
    db.targets.insert_many(list(rows))
    _since.real = datetime.now(UTC)


def spread(n: int, hour: int) -> list[datetime]:
    """Return n changes in three weeks at this hour, on days spread evenly."""
    return [BEGIN + (i * 21 // max(n, 1)) * DAY + hour * HOUR for i in range(n)]


# The paper's example: changes in three weeks, by day (12:00) or by night (22:00).
BY_DAY = {"u1": 14, "u2": 8, "u3": 10, "u4": 7, "u5": 10, "u10": 6, "u11": 7, "u13": 1, "u14": 0}
BY_NIGHT = {"u6": 3, "u7": 3, "u8": 3, "u9": 3, "u12": 3, "u15": 2}


def of_the_paper() -> list[Row]:
    """Return the fifteen pages of the paper's example."""
    counts = [(name, n, 12) for name, n in BY_DAY.items()]
    counts += [(name, n, 22) for name, n in BY_NIGHT.items()]
    return [page(f"https://shop.example/{name}", spread(n, hour)) for name, n, hour in counts]
