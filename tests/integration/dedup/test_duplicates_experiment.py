"""The experiment with near-duplicates: its three layouts agree; its output and cleanup."""

from __future__ import annotations

import asyncio
import json
import lzma
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from itertools import combinations, count, product
from pathlib import Path
from typing import Any

import pytest
from pymongo import AsyncMongoClient, IndexModel

from crawler.errors import StorageError
from crawler.storage.client import Database
from tests.bench.__main__ import arguments
from tests.bench.dedup import experiment
from tests.bench.dedup.indexes import METHODS, RULES, OfBands, in_mongodb
from tests.bench.dedup.layouts import (
    LAYOUTS,
    Found,
    Layout,
    create_indexes,
    fill,
    index_bytes,
    scratch,
)
from tests.database_pool import DatabasePool
from tests.integration.harness import ROOT, Db, Result, Row

# The benchmark's own tests.
pytestmark = [pytest.mark.soak, pytest.mark.empty_database]
PAIRS = list(combinations(range(6), 2))
POSTS, QUERIES = 300, 100
FAMILY = ("B6D1", "R15D2", "R1D3", "supershingles")
WORDS = ["".join(letters) * 2 for letters in product("bdfg", "aeiou", "klmnp")]
LONG = 50
# A small number of values, so that one or two features often agree.
VALUES = 60


def on(uri: str, call: Callable[[Database], Awaitable[Any]]) -> Any:
    """Run a coroutine on the database and return its result."""

    async def there() -> Any:
        client: AsyncMongoClient[Row]
        async with AsyncMongoClient(uri) as client:
            return await call(client.get_default_database())

    return asyncio.run(there())


def random_features(count: int, seed: int) -> list[list[int]]:
    chance = random.Random(seed)
    return [[chance.randrange(VALUES) for _ in range(6)] for _ in range(count)]


INDEXED, QUERY_FEATURES = random_features(POSTS, 1), random_features(QUERIES, 2)


async def filled(layout: Layout) -> None:
    documents = (layout.document(post, features) for post, features in enumerate(INDEXED))
    assert [done async for done in fill(layout.collection, documents)] == [POSTS]
    await layout.collection.create_indexes(layout.indexes())


@pytest.fixture(scope="module")
def found(pool: DatabasePool) -> dict[str, list[Found]]:
    """Return the results of each layout."""

    async def all_found(db: Database, name: str) -> list[Found]:
        async with scratch(db, name) as collection:
            layout = LAYOUTS[name](collection, PAIRS)
            await filled(layout)
            return [await layout.find(features) for features in QUERY_FEATURES]

    with pool.empty() as (_, uri):
        return {
            name: on(uri, lambda db, name=name: all_found(db, name))  # type: ignore[misc]
            for name in LAYOUTS
        }


def agreeing(features: list[int], upto: int = 6) -> set[int]:
    """Return the posts that agree in two of the first features."""
    return {
        post
        for post, others in enumerate(INDEXED)
        if sum(a == b for a, b in zip(features[:upto], others[:upto], strict=True)) >= 2
    }


def with_pair(features: list[int], pair: tuple[int, int]) -> list[int]:
    return [
        post for post, others in enumerate(INDEXED) if all(features[i] == others[i] for i in pair)
    ]


def test_three_layouts_find_the_same_duplicates(found: dict[str, list[Found]]) -> None:
    hits = 0
    for place, features in enumerate(QUERY_FEATURES):
        duplicates = agreeing(features)
        hits += bool(duplicates)
        for name in LAYOUTS:
            posts = found[name][place].posts
            assert bool(posts) == bool(duplicates), name
            assert set(posts) <= duplicates, name
        assert found["R15D2"][place] == found["R1D3"][place]
    assert 0 < hits < QUERIES


def test_pairs_are_tried_until_the_first_hit(found: dict[str, list[Found]]) -> None:
    for features, result in zip(QUERY_FEATURES, found["R15D2"], strict=True):
        hits = [with_pair(features, pair) for pair in PAIRS]
        first = next((number for number, posts in enumerate(hits) if posts), None)
        if first is None:
            assert result == Found([], 15, 0)
        else:
            assert result == Found([hits[first][0]], first + 1, 1)


def test_features_are_tried_until_a_post_matches_twice(found: dict[str, list[Found]]) -> None:
    for features, result in zip(QUERY_FEATURES, found["B6D1"], strict=True):
        upto = next((upto for upto in range(1, 7) if agreeing(features, upto)), 6)
        num_examined = sum(others[i] == features[i] for others in INDEXED for i in range(upto))
        assert result == Found(sorted(agreeing(features, upto)), upto, num_examined)


@pytest.mark.parametrize("name", LAYOUTS)
def test_probe_reads_at_most_one_extra_key(stored: tuple[Db, str], name: str) -> None:
    async def explained(db: Database) -> list[Row]:
        async with scratch(db, name) as collection:
            layout = LAYOUTS[name](collection, PAIRS)
            await filled(layout)
            plans = []
            for place in range(15 if name != "B6D1" else 6):
                if name == "B6D1":
                    query, index = {f"f{place}": INDEXED[7][place]}, f"f{place}"
                else:
                    query, index = layout.query_of(place, INDEXED[7])  # type: ignore[attr-defined]
                plans.append(await collection.find(query, hint=index).explain())
            return plans

    plans = on(stored[1], explained)
    for plan in plans:
        ran = plan["executionStats"]
        assert plan["queryPlanner"]["winningPlan"]["inputStage"]["stage"] == "IXSCAN"
        # Reading one more key determines the end of the range.
        assert 1 <= ran["nReturned"] <= ran["totalKeysExamined"] <= ran["nReturned"] + 1


def test_lookup_verifies_candidates(stored: tuple[Db, str]) -> None:
    """A post that shares bands but is not similar is examined, and not returned."""
    texts = [post(seed=1), post(seed=2), f"{post(seed=1)} and more"]
    key = RULES["characters"]
    keys = [key(text) for text in texts]
    half = key(" ".join(texts[0].split()[:39] + texts[1].split()[:11]))

    async def look_up(db: Database, threshold: float) -> list[Found]:
        def made(collection: Any) -> OfBands:
            return OfBands(threshold, collection)

        async with in_mongodb(made, "bands", db, keys, lambda done: None) as index:
            assert await index.size() > 0
            return [await index.find(one) for one in (*keys, half, key(post(seed=9))) if one]

    first, other, copy, partly, nothing = on(stored[1], lambda db: look_up(db, 0.7))
    assert (first.posts, other.posts, copy.posts) == ([0], [1], [2])
    assert (first.examined, copy.examined, nothing.examined, nothing.posts) == (1, 2, 0, [])
    assert (partly.examined, partly.posts) == (1, [])
    assert all(one.probes >= 16 for one in (first, other, copy, partly))


def test_scratch_collection_is_dropped_after_error(stored: tuple[Db, str]) -> None:
    database, uri = stored

    async def broken(db: Database) -> None:
        async with scratch(db, "x") as collection:
            await collection.insert_one({"_id": 1})
            assert await index_bytes(collection) == 0
            await collection.insert_one({"_id": 1})

    with pytest.raises(StorageError, match="E11000"):
        on(uri, broken)
    assert database.list_collection_names() == []


# PyMongo does not close the socket of a connection whose handshake is cancelled.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupted_write_does_not_recreate_collection(
    stored: tuple[Db, str],
) -> None:
    async def work(db: Database) -> None:
        async with scratch(db, "x") as collection:
            async for _ in fill(collection, ({"a": n % 997, "b": "b" * 2000} for n in count())):
                await create_indexes(collection, [IndexModel("a")])
                await collection.drop_indexes()

    async def interrupted(db: Database) -> None:
        for moment in range(30):
            task = asyncio.create_task(work(db))
            await asyncio.sleep(moment / 100)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(0.1)  # time for the server's pending operations
            assert await db.list_collection_names() == []

    on(stored[1], interrupted)


# The benchmark.


def post(seed: int, words: int = LONG) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=words))


@pytest.fixture
def posts(tmp_path: Path) -> Path:
    """Write a file of 300 posts of 50 to 220 words."""
    path = tmp_path / "posts.jsonl.xz"
    lines = [json.dumps({"id": f"p{i}", "text": post(i, LONG + i % 171)}) for i in range(POSTS)]
    path.write_bytes(lzma.compress("\n".join(lines).encode()))
    return path


def left(database: Db) -> list[str]:
    return [name for name in database.list_collection_names() if "bench" in name]


Bench = Callable[..., Result]


@pytest.fixture
def bench(
    stored: tuple[Db, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Bench:
    """Return a function that runs `make bench ARGS="--experiment …"` with its arguments."""
    monkeypatch.setenv("MONGO_URI", stored[1])
    monkeypatch.setenv("COLUMNS", "80")

    def ended(*words: object) -> Result:
        code = experiment.run(arguments().parse_args(["--experiment", *map(str, words)]))
        return Result(code, *capsys.readouterr())

    return ended


def in_json(bench: Bench, *words: object) -> Any:
    done = bench(*words, "--json")
    assert (done.code, done.err) == (0, ""), done.err
    return json.loads(done.out)


def test_the_experiment_from_end_to_end(bench: Bench, stored: tuple[Db, str], posts: Path) -> None:
    done = in_json(bench, posts, "--queries", 100)
    assert (done["documents"], done["queries"], done["synthetic"]) == (POSTS, 100, False)
    assert (done["edits"], done["kinds"], done["skipped"]) == ([1, 5], "replace", 0)
    rows = {row["method"]: row for row in done["methods"]}
    assert rows.keys() == METHODS.keys()
    for row in rows.values():
        times = row["milliseconds"]
        assert 0 < times["p50"] <= times["p99"]
        assert row["index_bytes"] > 0
        assert row["wrong"] == 0
    recall = {name: row["recall"] for name, row in rows.items()}
    # The same rule for all indexes; its recall is lowest, the recall of characters highest.
    assert len({recall[name] for name in FAMILY}) == 1
    assert recall["R15D2"] < recall["words"] < recall["characters"]
    assert recall["datasketch-words"] < recall["characters"]
    assert recall["characters"] >= 0.99
    probes = {name: row["probes"] for name, row in rows.items()}
    assert probes["R15D2"] == probes["R1D3"] < 15
    assert probes["B6D1"] < 6
    assert probes["supershingles"] == 15
    assert sum(row["copies"] for row in done["recall"]) == 100
    assert {row["edits"] for row in done["recall"]} == {1, 2, 3, 4, 5}
    assert left(stored[0]) == []
    assert stored[0].posts.count_documents({}) == 0


def test_same_seed_gives_same_results(bench: Bench) -> None:
    words = ("--documents", 200, "--queries", 50, "--method", "R15D2")
    one, same, other = (in_json(bench, *words, "--seed", seed) for seed in (3, 3, 4))
    assert one["synthetic"]
    assert one["recall"] == same["recall"] != other["recall"]
    assert one["methods"][0]["probes"] == same["methods"][0]["probes"]


def test_output_tables(bench: Bench, posts: Path) -> None:
    words = (posts, "--queries", 40, "--kinds", "all")
    done = bench(*words, "--edits", 2, "--method", "B6D1", "--method", "characters")
    assert (done.code, done.err) == (0, "")
    assert max(map(len, done.out.splitlines()[1:])) <= 80
    lines = " ".join(done.out.split())
    assert f"300 posts of {posts}; 40 copies, 2 words replaced, inserted or deleted" in lines
    assert "0.244" in lines  # the paper's seconds
    assert "100-299 2 " in lines


def test_output_labels_synthetic_posts(bench: Bench) -> None:
    done = bench("--documents", 30, "--method", "R1D3")
    assert "30 made posts (synthetic); 30 copies" in done.out
    assert done.complaint == "make bench: one copy of each post: 30, not 1,000"


def test_missing_posts_and_invalid_lines_are_reported(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "posts.jsonl"
    path.write_text("\n".join([json.dumps({"id": i, "text": post(i)}) for i in range(20)] + ["no"]))
    words = (path, "--queries", 5, "--method", "characters")
    done = bench(*words, "--documents", 50)
    assert done.code == 0
    assert done.err.splitlines() == [
        f"make bench: {path}, line 21: not valid JSON; skipped",
        f"make bench: {path} has 20 posts, not 50: all of them are used",
    ]
    assert in_json(bench, *words, "--documents", 10)["documents"] == 10


def test_invalid_posts_file_prints_one_line(bench: Bench, tmp_path: Path) -> None:
    done = bench(tmp_path / "none.jsonl")
    assert done.code == 1
    assert done.complaint.endswith("none.jsonl: No such file or directory")
    (tmp_path / "empty.jsonl").write_text("")
    done = bench(tmp_path / "empty.jsonl")
    assert done.code == 1
    assert 'no posts (a line of it is {"id": "1", "text": "…"})' in done.complaint


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_interruption_leaves_no_collections(stored: tuple[Db, str], kind: signal.Signals) -> None:
    database, uri = stored
    words = ("-m", "tests.bench", "--experiment", "--documents", "3000", "--queries", "3000")
    # Runs for several seconds after it has stored its first documents.
    words += ("--method", "R1D3", "--method", "B6D1")
    with subprocess.Popen(
        # Shells start background jobs with SIGINT ignored, and this process would inherit that.
        ["env", "--default-signal=INT", sys.executable, *words],
        cwd=ROOT, env=os.environ | {"MONGO_URI": uri}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            deadline = time.monotonic() + 60
            while not left(database):
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < deadline
                time.sleep(0.01)
            process.send_signal(kind)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out) == (130, "")
    assert err == "make bench: stopped; nothing of the experiment is left in the database\n"
    assert left(database) == []
