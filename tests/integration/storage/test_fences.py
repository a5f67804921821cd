"""After late and interrupted writers, log, targets, versions and claims agree."""

from __future__ import annotations

import asyncio
import gc
from datetime import datetime, timedelta
from typing import Any

import pytest

from crawler.items import Target, Visit
from crawler.storage import recovery
from crawler.storage.embedded import EmbeddedServer
from crawler.storage.health import Report, check
from tests.faults.cutting import Cutter, Holder
from tests.integration.claiming import edited, text
from tests.integration.writing import BEGIN, HOUR, lost, process, refused, visit

pytestmark = pytest.mark.soak

MINUTE = timedelta(minutes=1)
NAMES = ("list", "item-1", "item-2", "item-3")
OLD, NEW, LATER, OTHER = text(1), text(2), text(3), text(4)
FIRST = ("item-1 item-2 item-3", OLD, edited(OLD, 3), OTHER)
# The last item briefly had other content, then its previous content again.
THIRD = ("item-1 item-3", LATER, edited(LATER, 3), OTHER)
BETWEEN = ("item-2 item-3", NEW, edited(LATER, 2), text(5))
MAX_WRITES = 40
LEASE_SECONDS = 1.0


def broken(report: Report) -> dict[str, list[str]]:
    return {
        str(invariant): violations.examples
        for invariant, violations in report.broken.items()
        if violations.count
    }


def uri_through(uri: str, cutter: Cutter) -> str:
    return f"mongodb://127.0.0.1:{cutter.port}/{uri.rpartition('/')[2]}"


def visits(targets: list[Target], contents: tuple[str, ...], at: datetime) -> list[Visit]:
    return [visit(target, content, at) for target, content in zip(targets, contents, strict=True)]


async def first_run(uri: str) -> None:
    async with process(uri, BEGIN) as one:
        await one.begin()
        batch = visits(await one.due(*NAMES), FIRST, BEGIN + MINUTE)
        assert refused(await one.store(batch)) == [False] * len(NAMES)
        await one.db.runs.update_many({}, {"$set": {"finished": BEGIN + HOUR}})


async def cut_run(uri: str, cutter: Cutter) -> bool:
    """Run a crawl whose connection to MongoDB is cut; return true if its batch was not stored."""
    async with process(uri_through(uri, cutter), BEGIN + 2 * HOUR) as one:
        batch = visits(await one.due(*NAMES), BETWEEN, BEGIN + 2 * HOUR + MINUTE)
        cutter.arm()
        return lost(await one.store(batch))


async def next_run(uri: str, contents: tuple[str, ...]) -> dict[str, list[str]]:
    async with process(uri, BEGIN + 4 * HOUR) as one:
        await one.begin()
        batch = visits(await one.due(*NAMES), contents, BEGIN + 4 * HOUR + MINUTE)
        assert not any(refused(await one.store(batch)))
        return broken(await check(one.db))


# PyMongo does not close sockets whose connection was never accepted.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize(("answers", "contents"), [(False, THIRD), (True, FIRST)])
def test_connection_loss_at_any_write_keeps_data_consistent(
    mongo: EmbeddedServer,
    databases: Any,
    answers: bool,
    contents: tuple[str, ...],
) -> None:
    for nth in range(1, MAX_WRITES):
        with databases() as (db, uri), Cutter(mongo.socket, nth, answers=answers) as cutter:
            asyncio.run(first_run(uri))
            was_cut = asyncio.run(_cut_and_interrupted(uri, cutter))
            assert asyncio.run(next_run(uri, contents)) == {}, (nth, cutter.seen)
            edges = db.listings.find({"shown": True})
            shown = {edge["item"].rpartition("/")[2] for edge in edges}
            assert shown == set(contents[0].split()), (nth, cutter.seen)
        # Collect the sockets while their warnings are ignored.
        gc.collect()
        if not was_cut:
            break
    assert 8 < nth < MAX_WRITES - 1, cutter.seen


async def _cut_and_interrupted(uri: str, cutter: Cutter) -> bool:
    from tests.integration.writing import interrupted as left

    async with process(uri, BEGIN + 2 * HOUR) as one:
        await left(one.db, BEGIN + 2 * HOUR)
    return await cut_run(uri, cutter)


@pytest.mark.parametrize("contents", [FIRST, THIRD])
def test_worker_paused_at_any_write_leaves_no_stale_data(
    mongo: EmbeddedServer,
    databases: Any,
    contents: tuple[str, ...],
) -> None:
    were_late = set()
    for nth in range(1, MAX_WRITES):
        with databases() as (db, uri), Holder(mongo.socket, nth) as holder:
            asyncio.run(first_run(uri))
            late = asyncio.run(store_while_overtaken(uri, holder, contents))
            were_late.add(late)
            hashes = {row["url"]: row["content_hash"] for row in db.posts.find()}
            seen = {row["url"]: row["content_hash"] for row in db.targets.find({"kind": "item"})}
            assert hashes == seen, (nth, holder.seen)
            assert asyncio.run(next_run(uri, contents)) == {}, (nth, holder.seen)
            edges = db.listings.find({"shown": True})
            shown = {edge["item"].rpartition("/")[2] for edge in edges}
            assert shown == set(contents[0].split()), (nth, holder.seen)
            if not holder.is_cut:
                break
    assert 8 < nth < MAX_WRITES - 1, holder.seen
    assert were_late == {True, False}, "writes are rejected only before the targets are written"


async def store_while_overtaken(uri: str, holder: Holder, contents: tuple[str, ...]) -> bool:
    """Pause one process while another takes over its targets; return true if it was rejected."""
    at = BEGIN + 2 * HOUR
    async with (
        process(uri_through(uri, holder), at) as slow,
        process(uri, at) as other,
    ):
        found = visits(await slow.due(*NAMES), BETWEEN, at + MINUTE)
        holder.arm()
        storing = asyncio.ensure_future(slow.store(found))
        held = asyncio.ensure_future(asyncio.to_thread(holder.held.wait))
        await asyncio.wait({storing, held}, return_when=asyncio.FIRST_COMPLETED)
        holder.held.set()
        await recovery.take_over(other.db, [one.fetched.target.key for one in found])
        newer = visits(await other.due(*NAMES), contents, at + 5 * MINUTE)
        assert not any(refused(await other.store(newer)))
        holder.go_on()
        rejections = set(refused(await storing))
        assert len(rejections) == 1, rejections
        assert broken(await check(other.db)) == {}, holder.seen
        await other.db.runs.update_many({}, {"$set": {"finished": at}})
        return rejections == {True}


def stores_versions(_: str, collection: str, __: dict[str, Any]) -> bool:
    """Return true if a write stores versions."""
    return collection == "versions"


def test_lease_lost_within_a_batch_leaves_no_versions(
    mongo: EmbeddedServer, databases: Any
) -> None:
    with databases() as (db, uri), Holder(mongo.socket, 1, stores_versions) as holder:
        asyncio.run(first_run(uri))
        asyncio.run(_store_after_lease_loss(uri, holder))
        assert db.visits.count_documents({}) == 2 * len(NAMES)


async def _store_after_lease_loss(uri: str, holder: Holder) -> None:
    at = BEGIN + 2 * HOUR
    async with process(uri_through(uri, holder), at, lease_seconds=LEASE_SECONDS) as slow:
        found = visits(await slow.due(*NAMES), BETWEEN, at + MINUTE)
        holder.arm()
        storing = asyncio.ensure_future(slow.store(found))
        assert await asyncio.to_thread(holder.held.wait, 30)
        await asyncio.sleep(LEASE_SECONDS)
        async with process(uri, at, lease_seconds=60) as other:
            await recovery.take_over(other.db, [one.fetched.target.key for one in found])
            await recovery.undo(other.db, None, "site", BEGIN + HOUR, at)
            newer = visits(await other.due(*NAMES), THIRD, at + 5 * MINUTE)
            assert not any(refused(await other.store(newer)))
            holder.go_on()
            assert refused(await storing) == [True] * len(NAMES)
            assert broken(await check(other.db)) == {}
