"""Slow replan of one spider that a test can kill: `… URI TARGETS PAUSE_SECONDS`.

Moves every target to the plan "new" and prints `active` when done.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from pymongo import AsyncMongoClient

from crawler.storage import plans
from crawler.storage.plans import TargetPlan

SPIDER = "shop"
READ_AT = datetime(2026, 1, 5, 12, tzinfo=UTC)
SOON = READ_AT + timedelta(hours=30)
LONGEST = timedelta(days=28)
BATCH = 500


def key(i: int) -> str:
    return f"{SPIDER} https://shop.example/item/{i}"


def batches(targets: int, pause_seconds: float) -> Iterator[list[TargetPlan]]:
    for start in range(0, targets, BATCH):
        time.sleep(pause_seconds)
        yield plans_of(range(start, min(start + BATCH, targets)))


def plans_of(numbers: range) -> list[TargetPlan]:
    return [TargetPlan(key(i), part_of(i), SOON) for i in numbers]


def part_of(i: int) -> dict[str, Any]:
    return {"policy": "freshet", "weeks": 1, "slots": [i % 168], "visits_per_week": 1.0}


def document() -> dict[str, Any]:
    return {"_id": "new", "at": READ_AT, "spiders": [SPIDER], "policy": "freshet"}


async def main(uri: str, targets: int, pause_seconds: float) -> None:
    client: AsyncMongoClient[dict[str, Any]]
    async with AsyncMongoClient(uri, tz_aware=True, w="majority", journal=True) as client:
        db = client.get_default_database()
        moved = batches(targets, pause_seconds)
        print(await plans.activate(db, document(), moved, LONGEST), "active", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
