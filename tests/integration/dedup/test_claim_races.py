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

from crawler.dedup.posts import Candidate
from crawler.storage.client import Database
from crawler.storage.dedup.signatures import Registry
from crawler.storage.embedded import EmbeddedServer
from crawler.storage.health import Invariant, check
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
ROUNDS = int(os.environ.get("CLAIM_TURNS", "2"))


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


@pytest.mark.soak
def test_four_processes_find_one_original_in_every_group(stored: tuple[Db, str]) -> None:
    db, uri = stored
    Posts(uri).clusters()
    assert Claimers(uri, ROUNDS).codes() == [0] * claimers.PROCESSES
    groups = groups_of(db)
    assert len(groups) == ROUNDS * claimers.GROUPS
    assert {len(group) for group in groups.values()} == {claimers.PROCESSES}
    assert wrong_groups(db, groups) == {}
    earliest = {
        name: [min(group, key=lambda row: row["created"])["post"]] for name, group in groups.items()
    }
    assert originals_of(db, groups) == earliest


@pytest.mark.soak
def test_killed_process_leaves_one_original_in_every_group(stored: tuple[Db, str]) -> None:
    db, uri = stored
    Posts(uri).clusters()
    started = Claimers(uri, 1)
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
MAX_WRITES = 40
CLUSTER_INVARIANTS = (
    Invariant.POST_SIGNATURE,
    Invariant.CLUSTER_ORIGINAL,
    Invariant.CLUSTER_MEMBERS,
    Invariant.ONE_ORIGINAL,
)


def fenced(post: Candidate, fence: int) -> Candidate:
    """Return a post with the fence of a visit."""
    return replace(post, fences={"fence": fence})


def is_deletion(command: str, collection: str, _: dict[str, Any]) -> bool:
    """Return true if a write deletes signatures."""
    return (command, collection) == ("delete", "signatures")


def is_post_update(command: str, collection: str, _: dict[str, Any]) -> bool:
    """Return true if a write stores posts."""
    return (command, collection) == ("update", "posts")


async def wrong_clusters(db: Database, _: Registry) -> dict[str, list[str]]:
    """Return violations of the clusters' invariants in a database."""
    broken = (await check(db)).broken
    return {
        invariant: broken[invariant].examples
        for invariant in CLUSTER_INVARIANTS
        if broken[invariant].count
    }


async def overtake(
    uri: str, holder: Holder, slow: Candidate, fast: Iterable[Candidate]
) -> dict[str, list[str]]:
    """Pause one process at a write, store the posts of another process, then resume the first.

    Returns the violated invariants of the clusters.
    """
    proxy_uri = f"mongodb://127.0.0.1:{holder.port}/{uri.rpartition('/')[2]}"
    async with index(proxy_uri) as one, index(uri) as other:
        holder.arm()
        storing = asyncio.ensure_future(stored(*one, [slow]))
        await asyncio.to_thread(holder.held.wait, 30)
        assert holder.is_cut
        for post in fast:
            await stored(*other, [post])
        holder.go_on()
        await storing
        return await wrong_clusters(*other)


def test_copy_stored_while_original_is_rewritten_is_original(
    mongo: EmbeddedServer, stored: tuple[Db, str]
) -> None:
    db, uri = stored
    posts = Posts(uri)
    posts.claim(candidate("x a", OLD))
    with Holder(mongo.socket, 1, is_deletion) as holder:
        slow = candidate("x a", OTHER, edit=True)
        copies = [candidate("x b", COPY, NOW + HOUR)]
        assert asyncio.run(overtake(uri, holder, slow, copies)) == {}
    assert posts.originals() == {"x a", "x b"}
    assert {row["post"] for row in posts.clusters()} <= {"x b"}
    assert db.signatures.count_documents({}) == 2


def test_former_copy_stays_in_its_new_cluster(
    mongo: EmbeddedServer, stored: tuple[Db, str]
) -> None:
    _, uri = stored
    posts = Posts(uri)
    for key, words, hours in (("x a", OLD, 0), ("x b", COPY, 1), ("x c", STRAY, 2)):
        posts.claim(fenced(candidate(key, words, NOW + hours * HOUR), 1000))
    assert posts.originals() == {"x a"}
    with Holder(mongo.socket, 1, is_deletion) as holder:
        slow = fenced(candidate("x a", NEXT, edit=True), 2000)
        fast = [
            fenced(candidate("x c", OTHER, NOW + 2 * HOUR, edit=True), 2000),
            fenced(candidate("x d", edited(OTHER, 4), NOW + 3 * HOUR), 1000),
        ]
        assert asyncio.run(overtake(uri, holder, slow, fast)) == {}
    assert posts.originals() == {"x a", "x c"}
    assert posts.post("x d")["duplicate_of"] == "x c"
    assert posts.signature("x c")["fence"] == 2000


def test_former_copy_keeps_fence_of_newer_visit(
    mongo: EmbeddedServer, stored: tuple[Db, str]
) -> None:
    _, uri = stored
    posts = Posts(uri)
    for key, words, hours in (("x a", OLD, 0), ("x b", COPY, 1), ("x c", STRAY, 2)):
        posts.claim(fenced(candidate(key, words, NOW + hours * HOUR), 1000))
    with Holder(mongo.socket, 1, is_deletion) as holder:
        slow = fenced(candidate("x a", NEXT, edit=True), 2000)
        fast = [fenced(candidate("x c", STRAY, NOW + 2 * HOUR, edit=True), 3000)]
        assert asyncio.run(overtake(uri, holder, slow, fast)) == {}
    assert posts.originals() == {"x a", "x c"}
    assert posts.signature("x c")["fence"] == 3000


@pytest.mark.parametrize("copies", [[], [("x b", COPY)]])
def test_slow_copy_is_original_if_its_original_was_rewritten(
    mongo: EmbeddedServer,
    stored: tuple[Db, str],
    copies: list[tuple[str, str]],
) -> None:
    _, uri = stored
    posts = Posts(uri)
    posts.claim(candidate("x a", OLD))
    for key, words in copies:
        posts.claim(candidate(key, words, NOW + HOUR))
    with Holder(mongo.socket, 1, is_post_update) as holder:
        slow = candidate("x c", STRAY, NOW + 2 * HOUR)
        fast = [candidate("x a", NEXT, edit=True)]
        assert asyncio.run(overtake(uri, holder, slow, fast)) == {}
    assert posts.originals() == {"x a", "x c"}


# PyMongo does not close sockets whose connection was never accepted.
@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_edit_repeated_after_interruption_keeps_invariants(
    mongo: EmbeddedServer, databases: Databases
) -> None:
    for nth in range(1, MAX_WRITES):
        with databases() as (_, uri), Cutter(mongo.socket, nth, answers=True) as cutter:
            posts = Posts(uri)
            for key, words, hours in (("x a", OLD, 0), ("x b", COPY, 1), ("x c", STRAY, 2)):
                posts.claim(candidate(key, words, NOW + hours * HOUR))
            edit = candidate("x a", NEXT, edit=True)
            asyncio.run(interrupt(uri, cutter, edit))
            posts.claim(edit)
            assert posts.on(wrong_clusters) == {}, (nth, cutter.seen)
            assert posts.originals() == {"x a", "x c"}, (nth, cutter.seen)
        gc.collect()
        if not cutter.is_cut:
            break
    assert 5 < nth < MAX_WRITES - 1, cutter.seen


async def interrupt(uri: str, cutter: Cutter, edit: Candidate) -> None:
    """Store an edit in a process that loses its connection to MongoDB."""
    proxy_uri = f"mongodb://127.0.0.1:{cutter.port}/{uri.rpartition('/')[2]}?timeoutMS=500"
    with suppress(PyMongoError):
        async with index(proxy_uri) as one:
            cutter.arm()
            await stored(*one, [edit])


def is_update(command: str, collection: str, _: dict[str, Any]) -> bool:
    """Return true if a write changes signatures."""
    return (command, collection) == ("update", "signatures")


def is_insertion(command: str, collection: str, _: dict[str, Any]) -> bool:
    """Return true if a write adds signatures."""
    return (command, collection) == ("insert", "signatures")


@pytest.mark.parametrize("words", [STRAY, edited(STRAY, 2, seed=9)])
def test_concurrent_visit_of_former_copy_wins(
    mongo: EmbeddedServer, stored: tuple[Db, str], words: str
) -> None:
    _, uri = stored
    posts = Posts(uri)
    for key, text_of, hours in (("x a", OLD, 0), ("x b", COPY, 1), ("x c", STRAY, 2)):
        posts.claim(fenced(candidate(key, text_of, NOW + hours * HOUR), 1000))
    visited = fenced(candidate("x c", words, NOW + 2 * HOUR, edit=True), 3000)
    with (
        Holder(mongo.socket, 1, is_update) as of_visit,
        Holder(mongo.socket, 1, is_insertion) as of_edit,
    ):
        edit = fenced(candidate("x a", NEXT, edit=True), 2000)
        found = asyncio.run(interleave(uri, (of_visit, visited), (of_edit, edit)))
    assert found == {}
    assert posts.originals() == {"x a", "x c"}
    row = posts.signature("x c")
    assert (row["fence"], row["sketch"]) == (3000, visited.sketch.encode())


async def interleave(
    uri: str, first: tuple[Holder, Candidate], second: tuple[Holder, Candidate]
) -> dict[str, list[str]]:
    """Pause one process at a write, then another one; resume the first process first.

    Returns the violated invariants of the clusters.
    """
    async with AsyncExitStack() as stack:
        storing = []
        for holder, post in (first, second):
            proxy_uri = f"mongodb://127.0.0.1:{holder.port}/{uri.rpartition('/')[2]}"
            one = await stack.enter_async_context(index(proxy_uri))
            holder.arm()
            storing.append(asyncio.ensure_future(stored(*one, [post])))
            await asyncio.to_thread(holder.held.wait, 30)
            assert holder.is_cut
        for (holder, _), done in zip((first, second), storing, strict=True):
            holder.go_on()
            await done
        return await wrong_clusters(*one)


def test_bands_of_rejected_post_go_to_post_of_same_batch(stored: tuple[Db, str]) -> None:
    posts, refused = Posts(stored[1]), candidate("a", OLD)
    text_of_b = edited(OLD, 34, seed=1)
    other = candidate("b", text_of_b)
    copy = candidate("c", edited(text_of_b, 16, seed=30), NOW + HOUR)
    # Only bands that the rejected post, which comes first, also has lead to the copy.
    assert copy.bands & other.bands
    assert copy.bands & other.bands <= refused.bands
    assert refused.sketch.similarity(other.sketch) < SCHEME.threshold
    # A newer visit has stored another text.
    posts.claim(fenced(candidate("a", OTHER), 2))
    assert posts.claim(fenced(refused, 1), other)["b"].is_original
    assert posts.claim(copy)["c"].duplicate_of == "b"
