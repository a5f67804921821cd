"""Pages with a past, straight into the database, as weeks of crawls would have left them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
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
BEGIN = datetime(2026, 2, 9, tzinfo=UTC)  # a Monday three weeks before
DAY, HOUR, MINUTE = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)
POLL = 20 * MINUTE


@dataclass
class Since:
    """When, by the machine's clock, it was NOW."""

    real: datetime


_since = Since(datetime.now(UTC))


def clock() -> float:
    """FRESHET_CLOCK_OFFSET_HOURS for `hours=` of a command: it was NOW when pages were put.

    From then on time goes by: a command that began before the last one ended its work would take
    that one's plan for one from the future.
    """
    return (NOW - _since.real) / HOUR


def on(uri: str, call: Callable[[Database], Awaitable[Any]]) -> Any:
    """The result of a coroutine on the database."""

    async def there() -> Any:
        client: AsyncMongoClient[Row]
        async with AsyncMongoClient(uri, tz_aware=True) as client:
            return await call(client.get_default_database())

    return asyncio.run(there())


def page(
    url: str,
    changes: Iterable[datetime] = (),
    *,
    spider: str = "shop",
    kind: Kind = Kind.ITEM,
    categories: Sequence[str] = (),
    **own: object,
) -> Row:
    """A target that was polled every 20 minutes for three weeks, and changed before these polls."""
    past = History.begin(in_minutes(BEGIN))
    for at in sorted(changes):
        past = past.seen(in_minutes(at - POLL), changed=False)
        past = past.seen(in_minutes(at), changed=True)
    past = past.seen(in_minutes(NOW - HOUR), changed=False)
    row = new_document(spider, url, kind, NOW + 5 * HOUR, BEGIN, categories)
    seen = {"visited_at": NOW - HOUR, "requested": 1512, "refreshed": 1512, "outcome": "unchanged"}
    return row | seen | {"history": history_document(past)} | own


def never_seen(url: str, **own: object) -> Row:
    """A target that was found a moment ago."""
    return new_document("shop", url, Kind.ITEM, NOW, NOW) | own


def put(db: Db, uri: str, rows: Sequence[Row]) -> None:
    """Store targets in a prepared database; it is NOW."""
    on(uri, prepare)
    db.targets.insert_many(list(rows))
    _since.real = datetime.now(UTC)


def spread(n: int, hour: int) -> list[datetime]:
    """So many changes in three weeks, at this hour of days as far apart as can be."""
    return [BEGIN + (i * 21 // max(n, 1)) * DAY + hour * HOUR for i in range(n)]


# The paper's example: changes in three weeks, by day (12:00) or by night (22:00).
BY_DAY = {"u1": 14, "u2": 8, "u3": 10, "u4": 7, "u5": 10, "u10": 6, "u11": 7, "u13": 1, "u14": 0}
BY_NIGHT = {"u6": 3, "u7": 3, "u8": 3, "u9": 3, "u12": 3, "u15": 2}


def of_the_paper() -> list[Row]:
    """The fifteen pages."""
    counts = [(name, n, 12) for name, n in BY_DAY.items()]
    counts += [(name, n, 22) for name, n in BY_NIGHT.items()]
    return [page(f"https://shop.example/{name}", spread(n, hour)) for name, n, hour in counts]
