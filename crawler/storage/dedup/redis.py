"""Band claims in Redis: one Lua script looks bands up and claims them atomically.

MongoDB remains authoritative: the claims can be restored from the sketches stored there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from importlib.resources import files
from typing import Any

import numpy as np
from redis.asyncio import Redis
from redis.commands.core import AsyncScript
from redis.exceptions import NoScriptError

from crawler.dedup.posts import Claim
from crawler.dedup.sketch import (
    KEY_BITS,
    MIN_CONTAINED,
    MIN_OWN_SIMILARITY,
    OWN_CODE,
    OWN_HEAD,
    SHAPES,
    SHARE_STEPS,
    TAG_BYTES,
)
from crawler.storage.client import in_batches
from crawler.storage.redis import glob_escaped, user_errors

HEAD_BITS = 32
LAST = np.int64(0xFFFFFFFF)
# Version of the scripts' data structures; an index of another version is treated as lost.
LAYOUT = 3
ID_BYTES = BAND_BYTES = 8
# Posts per script call, which takes about 2 ms: a running script blocks all clients of the server.
POSTS_A_SCRIPT = 32
# Script calls per pipeline, 0.2 MB: the server need not wait for the next call. It serves other
# clients in between.
SCRIPTS_A_PIPELINE = 16
KEYS_A_STEP = 500
# Stored as the scheme while the keys of an index are removed before another one is created.
EMPTYING = "emptying"
# Changes the scheme if it is still the one that the caller has read. With `reset`, resets counters.
CHANGE = """
local known = redis.call('HGET', KEYS[1], 'layout') == ARGV[3]
local stored = known and redis.call('HGET', KEYS[1], 'scheme') or ''
if stored ~= ARGV[1] then return 0 end
if ARGV[4] == 'reset' then redis.call('DEL', KEYS[1]) end
redis.call('HSET', KEYS[1], 'scheme', ARGV[2], 'layout', ARGV[3])
return 1
"""
REMOVE = """
if redis.call('HGET', KEYS[1], 'scheme') ~= ARGV[1] then return 0 end
redis.call('UNLINK', unpack(KEYS, 2))
return 1
"""


class RedisBands:
    """The band claims of one index; all its keys begin with `{prefix}:`.

    Claims and releases require that the index still has the scheme that was last read by `scheme`
    or set by `begin`. If Redis lost its data, or another process replaced the index, they raise
    BandsLost, because copies would be judged originals.

    bucket_bits: 2 ** bucket_bits is the initial number of buckets; only tests need fewer
    """

    def __init__(self, client: Redis, prefix: str, bucket_bits: int = KEY_BITS - HEAD_BITS) -> None:
        self._client = client
        self.prefix = prefix
        self._keys = f"{{{prefix}}}:"
        self._state = f"{self._keys}state"
        self._bucket_bits = bucket_bits
        self._scheme = ""
        self._claim = self._script("similarity", "claim")
        self._release = self._script("release")

    async def claim(self, batch: Sequence[Claim], threshold: float) -> list[bytes]:
        """Claim bands for posts in order, and return their clusters; safe to repeat.

        A post claims those of its bands that are free. It joins the cluster of the first similar
        post that owns one of its other bands; without such a post, it founds its own cluster.
        """
        return await self._clusters(batch, repr(float(threshold)))

    async def put(self, batch: Sequence[Claim]) -> None:
        """Claim bands for posts whose clusters are known, without comparing them."""
        await self._clusters(batch, "")

    async def release(self, batch: Sequence[Claim]) -> None:
        """Free the bands of posts; their sketches must be those with which they were claimed."""
        await self._run(self._release, self._parts(batch))

    async def _clusters(self, batch: Sequence[Claim], threshold: str) -> list[bytes]:
        clusters = [claim.cluster for claim in batch]
        for first, reply in enumerate(await self._run(self._claim, self._parts(batch, threshold))):
            for position, cluster in zip(reply[::2], reply[1::2], strict=True):
                clusters[first * POSTS_A_SCRIPT + position] = cluster
        return clusters

    async def count(self) -> int:
        """Return the number of posts that own a band."""
        with user_errors(self._client):
            return int(await self._client.hget(self._state, "records") or 0)

    async def scheme(self) -> str | None:
        """Return the scheme of the index; None if there is no index, or Redis lost it."""
        with user_errors(self._client):
            stored: Any = await self._client.hmget(self._state, ["scheme", "layout"])
        scheme, layout = stored
        is_current = scheme is not None and layout == str(LAYOUT).encode()
        self._scheme = scheme.decode() if is_current else ""
        return self._scheme or None

    async def begin(self, scheme: str) -> None:
        """Set the scheme; an existing index is not changed otherwise."""
        with user_errors(self._client):
            fields: list[str | int] = ["scheme", scheme, "layout", LAYOUT]
            await self._client.hset(self._state, items=fields)
        self._scheme = scheme

    async def change(self, seen: str | None, scheme: str, *, reset: bool = False) -> bool:
        """Replace the scheme if it is still `seen`; return whether it was.

        reset: reset the index's counters
        """
        given = [seen or "", scheme, str(LAYOUT), "reset" if reset else ""]
        with user_errors(self._client):
            is_done = bool(await self._client.eval(CHANGE, 1, self._state, *given))
        if is_done:
            self._scheme = scheme
        return is_done

    async def empty(self, seen: str | None, scheme: str) -> bool:
        """Remove an index and start a new one; return False if another process has changed it.

        seen: the scheme read before

        Several processes may do this concurrently: none removes claims in the new index.
        """
        if not await self.change(seen, EMPTYING, reset=True):
            return False
        async for keys in self._all_keys():
            others = [key for key in keys if key != self._state.encode()]
            with user_errors(self._client):
                if others and not await self._client.eval(
                    REMOVE, 1 + len(others), self._state, *others, EMPTYING
                ):
                    return False
        return await self.change(EMPTYING, scheme)

    async def clear(self) -> None:
        """Remove all keys of the index, in small steps; concurrent claims raise BandsLost."""
        with user_errors(self._client):
            await self._client.unlink(self._state)
        async for keys in self._all_keys():
            with user_errors(self._client):
                await self._client.unlink(*keys)

    async def _all_keys(self) -> AsyncIterator[list[Any]]:
        """Yield the keys of the index in batches."""
        pattern = glob_escaped(self._keys) + "*"
        cursor: int | None = None
        while cursor != 0:
            with user_errors(self._client):
                cursor, keys = await self._client.scan(cursor or 0, pattern, KEYS_A_STEP)
            if keys:
                yield keys

    def _script(self, *names: str) -> AsyncScript:
        shapes = ", ".join(
            f"[{shape.code}] = {{size = {shape.size}, values = {shape.values}}}"
            for shape in SHAPES.values()
        )
        own = (
            f"{{code = {OWN_CODE}, head = {OWN_HEAD}, steps = {SHARE_STEPS}, tag = {TAG_BYTES}, "
            f"untitled = string.rep('\\0', {TAG_BYTES}), "
            f"least = {MIN_OWN_SIMILARITY!r}, contained = {MIN_CONTAINED!r}}}"
        )
        values = f"{{{shapes}}}, {own}, {self._bucket_bits}, {LAYOUT}"
        head = f"local SHAPES, OWN, BUCKET_BITS, LAYOUT = {values}\n"
        # Read as package resources: a project that is deployed as an egg is not a folder.
        texts = (files(__package__).joinpath(f"{name}.lua") for name in ("index", *names))
        return self._client.register_script(head + "".join(text.read_text() for text in texts))

    async def _run(self, script: AsyncScript, parts: list[list[Any]]) -> list[list[Any]]:
        """Call a script for each part; return the replies in order."""
        replies: list[list[Any]] = []
        for some in in_batches(parts, SCRIPTS_A_PIPELINE):
            with user_errors(self._client):
                received = await self._sent(script, some)
                if any(isinstance(reply, NoScriptError) for reply in received):
                    await self._client.script_load(script.script)
                    received = await self._sent(script, some)
                for reply in received:
                    if isinstance(reply, Exception):
                        raise reply
            replies += [reply or [] for reply in received]
        return replies

    async def _sent(self, script: AsyncScript, parts: Sequence[Sequence[Any]]) -> list[Any]:
        async with self._client.pipeline(transaction=False) as pipe:
            for part in parts:
                pipe.evalsha(script.sha, 1, self._state, self._scheme, *part)
            return await pipe.execute(raise_on_error=False)

    def _parts(self, batch: Sequence[Claim], *first: str) -> list[list[Any]]:
        """Return the arguments of each script call: `first`, then those of a few posts."""
        starts = range(0, len(batch), POSTS_A_SCRIPT)
        return [[*first, *self._arguments(batch[i : i + POSTS_A_SCRIPT])] for i in starts]

    def _arguments(self, batch: Sequence[Claim]) -> Iterator[bytes]:
        """Yield id, cluster, sketch and bands of each post in the scripts' format."""
        bands = np.concatenate([claim.sketch.bands for claim in batch])
        # Eight bytes per band: the head, which is stored, and the last bits, which select the
        # bucket.
        halves = np.stack([(bands >> self._bucket_bits) & LAST, bands & LAST], axis=1)
        packed = halves.astype(">u4").tobytes()
        at = 0
        for claim in batch:
            end = at + claim.sketch.bands.size * BAND_BYTES
            yield claim.id.to_bytes(ID_BYTES, signed=True)
            yield claim.cluster
            yield claim.sketch.encode()
            yield packed[at:end]
            at = end
