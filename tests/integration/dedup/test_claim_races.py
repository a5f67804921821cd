"""Concurrent claims and crashed processes: each group has one original."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import Any

import pytest
from pymongo.errors import PyMongoError

from crawler.dedup.model import Candidate
from crawler.storage.client import Database
from crawler.storage.dedup.registry import Registry
from crawler.storage.embedded import EmbeddedServer
from crawler.storage.invariants import Invariant, check
from tests.conftest import Databases
from tests.faults.cutting import Cutter, Holder
from tests.integration import claimers
from tests.integration.claimers import Claimers
from tests.integration.claiming import (
    HOUR,
    NOW,
    SCHEME,
    Posts,
    candidate,
    edited,
    index,
    stored,
    text,
)
from tests.integration.harness import Db, Row

# Raise this number for a longer test.
TURNS = int(os.environ.get("CLAIM_TURNS", "2"))


def groups_of(db: Db) -> dict[str, list[Row]]:
    """Return the stored posts of each group."""
    groups = defaultdict(list)
    for row in db.signatures.find():
        groups[row["post"].rpartition(":")[0]].append(row)
    return groups


def originals_of(db: Db, groups: dict[str, list[Row]]) -> dict[str, list[str]]:
    """Return the posts of each group that a search would show."""
    shown = {row["_id"]: row["original"] for row in db.clusters.find()}
    return {
        name: [
            row["post"] for row in group if shown.get(row.get("cluster"), row["_id"]) == row["_id"]
        ]
        for name, group in groups.items()
    }


def wrong_groups(db: Db, groups: dict[str, list[Row]]) -> dict[str, list[str]]:
    """Return the groups that have no original or several."""
    return {
        name: originals
        for name, originals in originals_of(db, groups).items()
        if len(originals) != 1
    }


@pytest.fixture(params=["mongodb", "redis"])
def backend(request: pytest.FixtureRequest) -> str | None:
    """Return the URL of the Redis that stores the claims; None: MongoDB."""
    return request.getfixturevalue("redis") if request.param == "redis" else None


@pytest.mark.soak
def test_four_processes_find_one_original_in_every_group(
    stored: tuple[Db, str], backend: str | None
) -> None:
    db, uri = stored
    Posts(uri, backend).clusters()
    assert Claimers(uri, TURNS, backend).codes() == [0] * claimers.PROCESSES
    groups = groups_of(db)
    assert len(groups) == TURNS * claimers.GROUPS
    assert {len(group) for group in groups.values()} == {claimers.PROCESSES}
    assert wrong_groups(db, groups) == {}
    earliest = {
        name: [min(group, key=lambda row: row["created"])["post"]] for name, group in groups.items()
    }
    assert originals_of(db, groups) == earliest


@pytest.mark.soak
def test_a_process_that_is_killed_leaves_one_original_in_every_group(
    stored: tuple[Db, str], backend: str | None
) -> None:
    db, uri = stored
    Posts(uri, backend).clusters()
    started = Claimers(uri, 1, backend)
    while started.running and db.signatures.estimated_document_count() < claimers.GROUPS // 2:
        time.sleep(0.002)
    started.kill(0)
    assert started.codes() == [-signal.SIGKILL, 0, 0, 0]
    groups = groups_of(db)
    assert len(groups) == claimers.GROUPS
    assert wrong_groups(db, groups) == {}


# Similarities to the original's first text (OLD): COPY 0.88, STRAY 0.85; to its next text (NEXT):
# COPY 0.88, STRAY 0.68; COPY and STRAY to each other: 0.75.
OLD = text(1, 200)
COPY, STRAY = edited(OLD, 8, seed=3), edited(OLD, 8, seed=2)
NEXT, OTHER = edited(COPY, 8, seed=4), text(2, 200)
MOST_WRITES = 40
OF_CLUSTERS = (
    Invariant.POST_SIGNATURE,
    Invariant.CLUSTER_ORIGINAL,
    Invariant.CLUSTER_MEMBERS,
    Invariant.ONE_ORIGINAL,
)


def numbered(post: Candidate, fence: int) -> Candidate:
    """Return a post with the fence of a visit."""
    return replace(post, fences={"fence": fence})


def is_deletion(command: str, collection: str, _: dict[str, Any]) -> bool:
    """Return true if a write deletes signatures."""
    return (command, collection) == ("delete", "signatures")


def is_of_posts(command: str, collection: str, _: dict[str, Any]) -> bool:
    """Return true if a write stores posts."""
    return (command, collection) == ("update", "posts")


async def wrong_clusters(db: Database, _: Registry) -> dict[str, list[str]]:
    """Return violations of the clusters' invariants in a database."""
    broken = (await check(db)).broken
    return {
        invariant: broken[invariant].examples
        for invariant in OF_CLUSTERS
        if broken[invariant].count
    }


async def overtaken(
    uri: str, redis: str | None, holder: Holder, slow: Candidate, fast: Iterable[Candidate]
) -> dict[str, list[str]]:
    """Pause one process at a write, store the posts of another process, then resume the first.

    Returns the violated invariants of the clusters.
    """
    way = f"mongodb://127.0.0.1:{holder.port}/{uri.rpartition('/')[2]}"
    async with index(way, redis) as one, index(uri, redis) as other:
        holder.arm()
        storing = asyncio.ensure_future(stored(*one, [slow]))
        await asyncio.to_thread(holder.held.wait, 30)
        assert holder.is_cut
        for post in fast:
            await stored(*other, [post])
        holder.go_on()
        await storing
        return await wrong_clusters(*other)


def test_an_original_that_leaves_while_it_gets_its_first_copy_has_an_heir(
    mongo: EmbeddedServer, stored: tuple[Db, str], backend: str | None
) -> None:
    db, uri = stored
    posts = Posts(uri, backend)
    posts.claim(candidate("x a", OLD))
    with Holder(mongo.socket, 1, is_deletion) as holder:
        slow = candidate("x a", OTHER, edit=True)
        copies = [candidate("x b", COPY, NOW + HOUR)]
        assert asyncio.run(overtaken(uri, backend, holder, slow, copies)) == {}
    assert posts.originals() == {"x a", "x b"}
    assert {row["post"] for row in posts.clusters()} <= {"x b"}
    assert db.signatures.count_documents({}) == 2


def test_a_stray_that_has_another_cluster_by_now_stays_in_it(
    mongo: EmbeddedServer, stored: tuple[Db, str], backend: str | None
) -> None:
    _, uri = stored
    posts = Posts(uri, backend)
    for key, words, hours in (("x a", OLD, 0), ("x b", COPY, 1), ("x c", STRAY, 2)):
        posts.claim(numbered(candidate(key, words, NOW + hours * HOUR), 1000))
    assert posts.originals() == {"x a"}
    with Holder(mongo.socket, 1, is_deletion) as holder:
        slow = numbered(candidate("x a", NEXT, edit=True), 2000)
        fast = [
            numbered(candidate("x c", OTHER, NOW + 2 * HOUR, edit=True), 2000),
            numbered(candidate("x d", edited(OTHER, 4), NOW + 3 * HOUR), 1000),
        ]
        assert asyncio.run(overtaken(uri, backend, holder, slow, fast)) == {}
    assert posts.originals() == {"x a", "x c"}
    assert posts.post("x d")["duplicate_of"] == "x c"
    assert posts.signature("x c")["fence"] == 2000


def test_a_stray_that_was_seen_meanwhile_keeps_its_number(
    mongo: EmbeddedServer, stored: tuple[Db, str], backend: str | None
) -> None:
    _, uri = stored
    posts = Posts(uri, backend)
    for key, words, hours in (("x a", OLD, 0), ("x b", COPY, 1), ("x c", STRAY, 2)):
        posts.claim(numbered(candidate(key, words, NOW + hours * HOUR), 1000))
    with Holder(mongo.socket, 1, is_deletion) as holder:
        slow = numbered(candidate("x a", NEXT, edit=True), 2000)
        fast = [numbered(candidate("x c", STRAY, NOW + 2 * HOUR, edit=True), 3000)]
        assert asyncio.run(overtaken(uri, backend, holder, slow, fast)) == {}
    assert posts.originals() == {"x a", "x c"}
    assert posts.signature("x c")["fence"] == 3000


@pytest.mark.parametrize("copies", [[], [("x b", COPY)]])
def test_a_copy_that_is_none_any_more_when_its_post_is_written_is_shown_as_it_is(
    mongo: EmbeddedServer,
    stored: tuple[Db, str],
    backend: str | None,
    copies: list[tuple[str, str]],
) -> None:
    _, uri = stored
    posts = Posts(uri, backend)
    posts.claim(candidate("x a", OLD))
    for key, words in copies:
        posts.claim(candidate(key, words, NOW + HOUR))
    with Holder(mongo.socket, 1, is_of_posts) as holder:
        slow = candidate("x c", STRAY, NOW + 2 * HOUR)
        fast = [candidate("x a", NEXT, edit=True)]
        assert asyncio.run(overtaken(uri, backend, holder, slow, fast)) == {}
    assert posts.originals() == {"x a", "x c"}


# PyMongo does not close sockets whose connection was never accepted.
@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_an_edit_that_is_cut_at_any_write_and_repeated_leaves_clusters_whole(
    mongo: EmbeddedServer, databases: Databases, backend: str | None
) -> None:
    for nth in range(1, MOST_WRITES):
        with databases() as (_, uri), Cutter(mongo.socket, nth, answers=True) as cutter:
            posts = Posts(uri, backend)
            for key, words, hours in (("x a", OLD, 0), ("x b", COPY, 1), ("x c", STRAY, 2)):
                posts.claim(candidate(key, words, NOW + hours * HOUR))
            edit = candidate("x a", NEXT, edit=True)
            asyncio.run(cut(uri, backend, cutter, edit))
            posts.claim(edit)
            assert posts.on(wrong_clusters) == {}, (nth, cutter.seen)
            assert posts.originals() == {"x a", "x c"}, (nth, cutter.seen)
        gc.collect()
        if not cutter.is_cut:
            break
    assert 5 < nth < MOST_WRITES - 1, cutter.seen


async def cut(uri: str, redis: str | None, cutter: Cutter, edit: Candidate) -> None:
    """Store an edit in a process that loses its connection to MongoDB."""
    way = f"mongodb://127.0.0.1:{cutter.port}/{uri.rpartition('/')[2]}?timeoutMS=500"
    with suppress(PyMongoError):
        async with index(way, redis) as one:
            cutter.arm()
            await stored(*one, [edit])


def is_update(command: str, collection: str, _: dict[str, Any]) -> bool:
    """Return true if a write changes signatures."""
    return (command, collection) == ("update", "signatures")


def is_insertion(command: str, collection: str, _: dict[str, Any]) -> bool:
    """Return true if a write adds signatures."""
    return (command, collection) == ("insert", "signatures")


@pytest.mark.parametrize("words", [STRAY, edited(STRAY, 2, seed=9)])
def test_a_visit_of_a_stray_that_is_on_its_way_is_what_counts(
    mongo: EmbeddedServer, stored: tuple[Db, str], backend: str | None, words: str
) -> None:
    _, uri = stored
    posts = Posts(uri, backend)
    for key, text_of, hours in (("x a", OLD, 0), ("x b", COPY, 1), ("x c", STRAY, 2)):
        posts.claim(numbered(candidate(key, text_of, NOW + hours * HOUR), 1000))
    visited = numbered(candidate("x c", words, NOW + 2 * HOUR, edit=True), 3000)
    with (
        Holder(mongo.socket, 1, is_update) as of_visit,
        Holder(mongo.socket, 1, is_insertion) as of_edit,
    ):
        edit = numbered(candidate("x a", NEXT, edit=True), 2000)
        found = asyncio.run(crossed(uri, backend, (of_visit, visited), (of_edit, edit)))
    assert found == {}
    assert posts.originals() == {"x a", "x c"}
    row = posts.signature("x c")
    assert (row["fence"], row["sketch"]) == (3000, visited.sketch.encode())


async def crossed(
    uri: str, redis: str | None, first: tuple[Holder, Candidate], second: tuple[Holder, Candidate]
) -> dict[str, list[str]]:
    """Pause one process at a write, then another one; resume the first process first.

    Returns the violated invariants of the clusters.
    """
    async with AsyncExitStack() as stack:
        storing = []
        for holder, post in (first, second):
            way = f"mongodb://127.0.0.1:{holder.port}/{uri.rpartition('/')[2]}"
            one = await stack.enter_async_context(index(way, redis))
            holder.arm()
            storing.append(asyncio.ensure_future(stored(*one, [post])))
            await asyncio.to_thread(holder.held.wait, 30)
            assert holder.is_cut
        for (holder, _), done in zip((first, second), storing, strict=True):
            holder.go_on()
            await done
        return await wrong_clusters(*one)


def test_bands_of_a_refused_post_go_to_a_post_of_its_batch(
    stored: tuple[Db, str], backend: str | None
) -> None:
    posts, refused = Posts(stored[1], backend), candidate("a", OLD)
    text_of_b = edited(OLD, 34, seed=1)
    other = candidate("b", text_of_b)
    copy = candidate("c", edited(text_of_b, 14, seed=24), NOW + HOUR)
    # The copy is found only by bands that the refused post, which comes first, has too.
    assert copy.bands & other.bands
    assert copy.bands & other.bands <= refused.bands
    assert refused.sketch.similarity(other.sketch) < SCHEME.threshold
    # A newer visit has stored another text.
    posts.claim(numbered(candidate("a", OTHER), 2))
    assert posts.claim(numbered(refused, 1), other)["b"].is_original
    assert posts.claim(copy)["c"].duplicate_of == "b"
