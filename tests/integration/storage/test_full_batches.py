"""The writer delays items and unchanged pages until a batch is full or nothing is in flight."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from crawler.items import Outcome
from crawler.storage import old_contents, writer
from crawler.storage.client import Document
from crawler.storage.in_flight import InFlight
from crawler.storage.writer import MAX_BYTES, PATIENT_SECONDS
from tests.integration.harness import Db
from tests.integration.writing import BEGIN, HOUR, SITE, Process, process, visit

NAMES = [f"item-{n}" for n in range(6)]
# A wait that only something else than its end can end before a test's limit.
LONG_SECONDS = 30.0
Case = Callable[[Process, list[int]], Awaitable[None]]


def batches(uri: str, in_flight: int, case: Case) -> tuple[list[int], float]:
    """Return the batch sizes of known pages that a case stores, and its seconds."""

    async def run() -> tuple[list[int], float]:
        async with process(uri, BEGIN) as first:
            await first.store([visit(t, t.url, BEGIN) for t in await first.due(*NAMES)])
        sizes: list[int] = []
        async with process(uri, BEGIN + HOUR, in_flight=flying(in_flight)) as crawl:
            crawl.writer.on_stored = lambda stored, _: sizes.append(len(stored))
            began = time.monotonic()
            await case(crawl, sizes)
            return sizes, time.monotonic() - began

    return asyncio.run(run())


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make waits so long that a busy machine cannot end them."""
    for module in (writer, old_contents):
        monkeypatch.setattr(module, "PATIENT_SECONDS", LONG_SECONDS)


def flying(n: int) -> InFlight:
    """Return n targets in flight."""
    in_flight = InFlight()
    in_flight.keys.update(map(str, range(n)))
    return in_flight


async def commit(crawl: Process, name: str, text: str | None = None) -> Outcome:
    """Store a visit of a page; without a text, the page is unchanged."""
    (target,) = await crawl.due(name)
    made = visit(target, text or target.url, BEGIN + HOUR)
    await crawl.writer.commit(made)
    return made.outcome


@pytest.mark.usefixtures("patient")
def test_unchanged_pages_are_collected_into_one_batch(
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


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("n", [1, 3])
def test_batch_of_all_pages_in_flight_is_stored_immediately(stored: tuple[Db, str], n: int) -> None:
    async def case(crawl: Process, _: list[int]) -> None:
        # Twice, because each batch begins when the previous batch ends.
        for _ in range(2):
            await asyncio.gather(*(commit(crawl, name) for name in NAMES[:n]))

    sizes, seconds = batches(stored[1], n, case)
    assert sizes == [n, n]
    assert seconds < LONG_SECONDS


@pytest.mark.usefixtures("patient")
def test_changed_page_waits_for_unchanged_ones(stored: tuple[Db, str]) -> None:
    async def case(crawl: Process, sizes: list[int]) -> None:
        changed = asyncio.create_task(commit(crawl, "item-0", "another text"))
        await asyncio.sleep(0.05)
        assert sizes == []
        assert await commit(crawl, "item-1") is Outcome.UNCHANGED
        assert await changed is Outcome.CHANGED

    assert batches(stored[1], 2, case)[0] == [2]


@pytest.mark.usefixtures("patient")
def test_new_links_end_the_wait(stored: tuple[Db, str]) -> None:
    async def case(crawl: Process, sizes: list[int]) -> None:
        unchanged = asyncio.create_task(commit(crawl, "item-0"))
        await asyncio.sleep(0.05)
        assert sizes == []
        (target,) = await crawl.due("list")
        await crawl.writer.commit(visit(target, "item-7", BEGIN + HOUR))
        await unchanged

    sizes, seconds = batches(stored[1], 100, case)
    assert sizes == [2]
    assert seconds < LONG_SECONDS


@pytest.mark.usefixtures("patient")
def test_large_pages_are_stored_without_waiting(stored: tuple[Db, str]) -> None:
    async def case(crawl: Process, _: list[int]) -> None:
        (target,) = await crawl.due("item-0")
        made = visit(target, "another text", BEGIN + HOUR)
        made.fetched.size = MAX_BYTES
        await crawl.writer.commit(made)

    sizes, seconds = batches(stored[1], 100, case)
    assert sizes == [1]
    assert seconds < LONG_SECONDS


def test_unchanged_pages_are_stored_after_half_a_second(stored: tuple[Db, str]) -> None:
    async def case(crawl: Process, _: list[int]) -> None:
        await commit(crawl, "item-0")

    sizes, seconds = batches(stored[1], 100, case)
    assert sizes == [1]
    assert seconds >= PATIENT_SECONDS


async def old_content(crawl: Process, name: str, size: int = 1000) -> Document | None:
    """Return the stored content of a page that changes."""
    (target,) = await crawl.due(name)
    fetched = visit(target, "another text", BEGIN + HOUR).fetched
    fetched.size = size
    assert crawl.old_contents is not None
    return await crawl.old_contents.of(fetched)


def reads_of(db: Db, uri: str, in_flight: int, case: Case) -> tuple[int, float]:
    """Return the number of reads of versions that a case makes, and its seconds."""
    db.command("profile", 2)
    try:
        _, seconds = batches(uri, in_flight, case)
    finally:
        db.command("profile", 0)
    query = {"ns": f"{db.name}.versions", "command.find": "versions"}
    return db["system.profile"].count_documents(query), seconds


@pytest.mark.usefixtures("patient")
def test_old_contents_are_read_in_one_command(stored: tuple[Db, str]) -> None:
    async def case(crawl: Process, _: list[int]) -> None:
        reads = []
        for name in NAMES:
            reads.append(asyncio.create_task(old_content(crawl, name)))
            await asyncio.sleep(0.01)
        found = await asyncio.gather(*reads)
        assert [old and old["main_text"] for old in found] == [SITE + name for name in NAMES]

    reads, seconds = reads_of(*stored, len(NAMES), case)
    assert reads == 1
    assert seconds < LONG_SECONDS


def test_old_content_is_read_after_half_a_second(stored: tuple[Db, str]) -> None:
    async def case(crawl: Process, _: list[int]) -> None:
        assert await old_content(crawl, "item-0") is not None

    reads, seconds = reads_of(*stored, 100, case)
    assert reads == 1
    assert seconds >= PATIENT_SECONDS


@pytest.mark.usefixtures("patient")
def test_large_pages_and_the_end_of_a_run_skip_the_wait(stored: tuple[Db, str]) -> None:
    async def case(crawl: Process, _: list[int]) -> None:
        assert await old_content(crawl, "item-0", MAX_BYTES) is not None
        waiting = asyncio.create_task(old_content(crawl, "item-1"))
        await asyncio.sleep(0.01)
        assert crawl.old_contents is not None
        crawl.old_contents.close()
        assert await waiting is not None

    assert reads_of(*stored, 100, case)[1] < LONG_SECONDS
