"""Batches of the writer: unchanged pages wait for each other, if more pages can come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from crawler.items import Outcome
from crawler.storage.writer import UNCHANGED_SECONDS
from tests.integration.harness import Db
from tests.integration.writing import BEGIN, HOUR, Process, process, visit

NAMES = [f"item-{n}" for n in range(6)]
Case = Callable[[Process, list[int]], Awaitable[None]]


def batches(uri: str, in_flight: int, case: Case) -> tuple[list[int], float]:
    """Return the sizes of the batches of known pages that a case stores, and its seconds."""

    async def run() -> tuple[list[int], float]:
        async with process(uri, BEGIN) as first:
            await first.store([visit(t, t.url, BEGIN) for t in await first.due(*NAMES)])
        sizes: list[int] = []
        async with process(uri, BEGIN + HOUR) as crawl:
            crawl.writer.in_flight = lambda: in_flight
            crawl.writer.on_stored = lambda stored, _: sizes.append(len(stored))
            began = time.monotonic()
            await case(crawl, sizes)
            return sizes, time.monotonic() - began

    return asyncio.run(run())


async def commit(crawl: Process, name: str, text: str | None = None) -> Outcome:
    """Store a visit of a page: unchanged without a text."""
    (target,) = await crawl.due(name)
    made = visit(target, text or target.url, BEGIN + HOUR)
    await crawl.writer.commit(made)
    return made.outcome


def test_unchanged_pages_that_arrive_one_after_the_other_are_one_batch(
    stored: tuple[Db, str],
) -> None:
    async def case(crawl: Process, _: list[int]) -> None:
        tasks = []
        for name in NAMES:
            tasks.append(asyncio.create_task(commit(crawl, name)))
            await asyncio.sleep(0.01)
        assert set(await asyncio.gather(*tasks)) == {Outcome.UNCHANGED}

    sizes, _ = batches(stored[1], len(NAMES), case)
    assert sizes == [len(NAMES)]
    assert stored[0].visits.count_documents({"outcome": "unchanged"}) == len(NAMES)


@pytest.mark.parametrize("n", [1, 3])
def test_a_batch_of_all_pages_in_flight_does_not_wait(stored: tuple[Db, str], n: int) -> None:
    async def case(crawl: Process, _: list[int]) -> None:
        # Twice, as each batch begins with the end of the one before.
        for _ in range(2):
            await asyncio.gather(*(commit(crawl, name) for name in NAMES[:n]))

    sizes, seconds = batches(stored[1], n, case)
    assert sizes == [n, n]
    assert seconds < 2 * UNCHANGED_SECONDS


def test_a_page_that_changed_ends_the_wait_of_unchanged_ones(stored: tuple[Db, str]) -> None:
    async def case(crawl: Process, sizes: list[int]) -> None:
        unchanged = asyncio.create_task(commit(crawl, "item-0"))
        await asyncio.sleep(0.05)
        assert sizes == []
        assert await commit(crawl, "item-1", "another text") is Outcome.CHANGED
        assert await unchanged is Outcome.UNCHANGED

    assert batches(stored[1], 100, case)[0] == [2]


def test_unchanged_pages_are_stored_after_half_a_second(stored: tuple[Db, str]) -> None:
    async def case(crawl: Process, _: list[int]) -> None:
        await commit(crawl, "item-0")

    sizes, seconds = batches(stored[1], 100, case)
    assert sizes == [1]
    assert seconds >= UNCHANGED_SECONDS
