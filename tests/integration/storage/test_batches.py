"""Batches wait for more visits only while requests are in flight."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from tests.integration.claiming import text
from tests.integration.writing import BEGIN, process, refused, visit

# Much longer than a test may take.
WAIT_MS = 600_000
AT = BEGIN + timedelta(minutes=1)


def test_last_visits_and_new_links_are_stored_immediately(databases: Any) -> None:
    async def run(uri: str) -> None:
        async with process(uri, BEGIN, commit_ms=WAIT_MS) as crawl, asyncio.timeout(60):
            await crawl.begin()
            page, item = await crawl.due("list", "item-1")
            assert refused(await crawl.store([visit(page, "item-1", AT)])) == [False]
            crawl.writer.in_flight = lambda: 1
            assert refused(await crawl.store([visit(item, text(1), AT)])) == [False]

    with databases() as (db, uri):
        asyncio.run(run(uri))
        assert db.visits.count_documents({}) == 2
