"""Share of planned visits per host, as input for the dispatcher's minimum ratio."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from crawler.config import Config
from crawler.storage import due
from crawler.storage.store import opened
from tests.integration.harness import Db

NOW = datetime(2026, 11, 22, tzinfo=UTC)
HOURLY = 168


def target(name: str, host: str, **more: Any) -> dict[str, Any]:
    return {
        "_id": f"s {name}", "spider": "s", "url": name, "kind": "cell", "host": host,
        "first_seen": NOW, "next_visit": NOW, "requested": 6, "refreshed": 6, "missed_visits": 2,
        "plan": {"id": "period", "visits_per_week": HOURLY},
    } | more  # fmt: skip


TARGETS = [
    target("a", "pg", execution_ms=1_800_000.0),
    target("b", "pg", execution_ms=3_600_000.0),
    target("c", "lite", execution_ms=36_000.0, missed_visits=0),
    target("d", "site.example", requested=1, missed_visits=3),
]


async def insert_and_read_shares(uri: str) -> tuple[float, dict[str | None, due.VisitShare]]:
    async with opened(Config.load(mongo_uri=uri)) as db:
        await db.targets.insert_many(TARGETS)
        return await due.served(db, "s"), await due.served_of_hosts(db, "s")


def test_visit_share_and_load_by_host(stored: tuple[Db, str]) -> None:
    of_all, of_hosts = asyncio.run(insert_and_read_shares(stored[1]))
    assert of_all == pytest.approx(19 / 26)
    assert of_hosts["pg"] == due.VisitShare(12 / 16, pytest.approx(1.5))
    assert of_hosts["lite"] == due.VisitShare(1.0, pytest.approx(0.01))
    assert of_hosts["site.example"] == due.VisitShare(0.25, 0.0)
