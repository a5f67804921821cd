"""Batches wait for more visits only while requests are in flight."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from crawler.storage.in_flight import InFlight
from tests.integration.claiming import text
from tests.integration.writing import BEGIN, process, refused, visit

# Much longer than a test may take.
WAIT_MS = 600_000
AT = BEGIN + timedelta(minutes=1)


def test_last_visits_and_new_links_are_stored_immediately(databases: Any) -> None:
    async def run(uri: str) -> None:
        in_flight = InFlight()
        started = process(uri, BEGIN, commit_ms=WAIT_MS, in_flight=in_flight)
        async with started as crawl, asyncio.timeout(60):
            await crawl.begin()
            page, item = await crawl.due("list", "item-1")
            in_flight.keys.update({page.key, item.key})
            assert refused(await crawl.store([visit(page, "item-1", AT)])) == [False]
            in_flight.release(page.key)
            assert refused(await crawl.store([visit(item, text(1), AT)])) == [False]

    with databases() as (db, uri):
        asyncio.run(run(uri))
        assert db.visits.count_documents({}) == 2
