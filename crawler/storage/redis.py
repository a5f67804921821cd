"""Redis or Valkey: connections, user-facing errors, retries, and the server's state.

Only runs that several workers share need such a server.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import statistics
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as ConnectionFailure
from redis.exceptions import TimeoutError as NoAnswer

from crawler.errors import ConfigError, StorageError, Unreachable
from crawler.storage.client import Outage, Retrying

logger = logging.getLogger(__name__)
# Pauses between two attempts grow from the first to the second value.
DRIVER_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.05, 2.0
# Time until all workers have reconnected and reported their leased entries.
GRACE_SECONDS = MAX_PAUSE_SECONDS + 1.0
EXAMPLE = "such as redis://localhost:6379/0 or unix:///run/redis/redis.sock"
# Replies to every write while the server's memory is full, or it cannot save to its disk. Errors in
# a script or transaction are part of a longer text.
TAKES_NO_WRITES = re.compile(r"OOM command not allowed|MISCONF |No space left on device")
UNAVAILABLE_ERRORS = (
    ConnectionFailure,
    NoAnswer,
    BusyLoadingError,
    ReadOnlyError,
    OutOfMemoryError,
)
PINGS = 5
# Writes and reads a key as the scripts of leases do; the key expires.
SCRIPT = "redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) return redis.call('GET', KEYS[1])"
SCRIPT_KEY_MS = 10_000


async def open_redis(url: str, timeout_seconds: float = 5.0, retry_seconds: float = 30.0) -> Redis:
    """Open a client of a server that answers within `timeout_seconds`.

    During later outages it retries for about `retry_seconds`, so all calls must be safe to repeat.
    Raises ConfigError for an invalid URL and Unreachable without an answer.
    """
    try:
        _check_url(url)
        client = Redis.from_url(
            url,
            protocol=2,  # sufficient, and supported by every server
            socket_timeout=timeout_seconds,
            socket_connect_timeout=timeout_seconds,
            client_name="freshet",
            # Allows reading and deleting keys of other programs that are not UTF-8.
            encoding_errors="surrogateescape",
            retry=Retry(NoBackoff(), 0),
        )
        pool = client.connection_pool
        pool.connection_class(**pool.connection_kwargs)  # raises TypeError for an unknown option
    except ValueError as error:
        raise ConfigError(f"REDIS_URL: {error} ({EXAMPLE})") from None
    except TypeError as error:
        option = str(error).rpartition(" ")[2]
        raise ConfigError(f"REDIS_URL: unknown option: {option}") from None
    try:
        with user_errors(client):
            await _wait_until_loaded(client, timeout_seconds)
            await _check_keeps_keys(client)
    except BaseException:
        await client.aclose()
        raise
    retries = int(retry_seconds / MAX_PAUSE_SECONDS)
    pauses = ExponentialBackoff(MAX_PAUSE_SECONDS, DRIVER_PAUSE_SECONDS)
    client.set_retry(Retry(pauses, retries))
    return client


@contextmanager
def user_errors(client: Redis) -> Iterator[None]:
    """Turn errors of the driver into Freshet's, with the address but not the password."""
    where = f"Redis at {address(client)}"
    try:
        yield
    except NoAnswer:
        seconds = client.connection_pool.connection_kwargs.get("socket_timeout")
        message = f"{where}: no response within {seconds:g} s. Check REDIS_URL"
        raise Unreachable(message) from None
    except ConnectionFailure as error:
        # The cause has the reply to a wrong password or database number.
        if isinstance(error.__cause__, AuthenticationError | ResponseError):
            raise ConfigError(f"REDIS_URL: {where}: {_in_short(error)}") from None
        raise Unreachable(f"{where}: {_in_short(error)}. Check REDIS_URL") from None
    except RedisError as error:
        if is_unavailable(error):
            raise Unreachable(f"{where}: {_in_short(error)}") from None
        raise StorageError(f"{where}: {_in_short(error)}") from None


def is_unavailable(error: RedisError) -> bool:
    """Return whether the error is temporary, such as a full memory or a lost connection."""
    return isinstance(error, UNAVAILABLE_ERRORS) or (
        isinstance(error, ResponseError) and TAKES_NO_WRITES.search(str(error)) is not None
    )


def address(client: Redis) -> str:
    """Return the address of a client's server for messages."""
    given = client.connection_pool.connection_kwargs
    if path := given.get("path"):
        return f"unix://{path}"
    return f"{given.get('host', 'localhost')}:{given.get('port', 6379)}"


def _check_url(url: str) -> None:
    """Raise ValueError for URLs that the driver would misread."""
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise ValueError("the URL must begin with redis://, rediss:// or unix://")
    if parts.scheme == "unix":
        if not parts.path:
            raise ValueError("the URL has no socket path")
        return
    # Check this first: the messages below show parts that may belong to a password.
    if "@" in parts.path + parts.query + parts.fragment:
        raise ValueError("encode / ? # in a password as %2F %3F %23")
    if (database := parts.path.strip("/")) and not database.isdecimal():
        raise ValueError(f"invalid database number: {database!r}")


async def _wait_until_loaded(client: Redis, timeout_seconds: float) -> None:
    """Wait for a server that is loading its data."""
    try:
        async with asyncio.timeout(timeout_seconds):
            while True:
                try:
                    await client.ping()
                except BusyLoadingError:
                    await asyncio.sleep(DRIVER_PAUSE_SECONDS)
                else:
                    return
    except TimeoutError:
        raise NoAnswer from None


async def _check_keeps_keys(client: Redis) -> None:
    """Raise ConfigError for a cache, which would evict the entries of a run."""
    try:
        memory = await client.info("memory")
    except NoPermissionError:
        return
    policy = memory.get("maxmemory_policy", "")
    if memory.get("maxmemory") and policy.startswith("allkeys"):
        raise ConfigError(
            f"REDIS_URL: Redis at {address(client)} evicts keys when it is full (maxmemory-policy "
            f"{policy}). Use another server, or set noeviction"
        )


def _in_short(error: Exception) -> str:
    """Return a driver's message in one line, without the address that it may repeat."""
    text = " ".join(str(error).split())[:200].rstrip(".?")
    if match := re.match(r"Error (-?\d+) connecting to \S+ (.*)", text):
        number, cause = int(match[1]), match[2]
        return os.strerror(number) + " (is it running?)" if number > 0 else cause
    return text


@dataclass(frozen=True, slots=True)
class RedisServer:
    """The properties that a server reports; None for those it may not report.

    product:       Redis or Valkey
    policy:        its maxmemory-policy
    memory_bytes:  its memory limit; 0: no limit
    is_kept:       whether it appends each write to a file
    is_failing:    whether the last write of that file, or of a snapshot, failed
    runs_scripts:  whether a script wrote and read a key
    ahead_seconds: its clock minus ours
    """

    product: str
    version: tuple[int, ...] | None
    policy: str | None
    memory_bytes: int | None
    is_kept: bool | None
    is_failing: bool
    runs_scripts: bool
    ahead_seconds: float
    round_trip_ms: float


async def redis_server(url: str, timeout_seconds: float) -> RedisServer:
    """Read the properties of the server of a URL. Raises ConfigError and StorageError."""
    client = await open_redis(url, timeout_seconds, retry_seconds=0)
    try:
        with user_errors(client):
            info: dict[str, Any] = {}
            try:
                for section in ("server", "memory", "persistence"):
                    info |= await client.info(section)
            except NoPermissionError:
                info = {}
            times = []
            for _ in range(PINGS):
                before, began = datetime.now(UTC), time.perf_counter()
                seconds, micros = await client.time()
                times.append(time.perf_counter() - began)
            middle = before + timedelta(seconds=times[-1] / 2)
            reported = datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=micros)
            # Raises an error if the memory is full or scripts are not permitted.
            value = uuid.uuid4().hex
            reply: Any = await client.eval(
                SCRIPT, 1, f"freshet:doctor:{value}", value, SCRIPT_KEY_MS
            )
    finally:
        await client.aclose()
    text = info.get("valkey_version") or info.get("redis_version")
    writes = ("aof_last_write_status", "rdb_last_bgsave_status")
    return RedisServer(
        product="Valkey" if "valkey_version" in info else "Redis",
        version=tuple(map(int, re.findall(r"\d+", str(text))[:3])) if text else None,
        policy=info.get("maxmemory_policy"),
        memory_bytes=info.get("maxmemory"),
        is_kept=bool(info["aof_enabled"]) if "aof_enabled" in info else None,
        is_failing=any(info.get(name, "ok") != "ok" for name in writes),
        runs_scripts=bool(reply == value.encode()),
        ahead_seconds=(reported - middle).total_seconds(),
        round_trip_ms=statistics.median(times) * 1000,
    )


class RedisRetry(Retrying):
    """Retries of calls to Redis that are safe to repeat; raises errors of `user_errors`."""

    errors = (RedisError,)
    max_pause_seconds = MAX_PAUSE_SECONDS

    def __init__(self, client: Redis, seconds: float) -> None:
        super().__init__(seconds, Outage(logger, f"Redis at {address(client)}"))
        self.client = client

    @property
    def outages(self) -> int:
        """Return the number of outages so far."""
        return self.outage.count

    @property
    def is_settled(self) -> bool:
        """Return whether the server has been available long enough for all workers to notice."""
        now = asyncio.get_running_loop().time()
        return not self.outage.is_on and now >= self.outage.ended_at + GRACE_SECONDS

    async def _failed(self, error: Exception, began: float) -> None:
        if not (isinstance(error, RedisError) and is_unavailable(error)):
            with user_errors(self.client):
                raise error
        now = asyncio.get_running_loop().time()
        # Recorded even if the call fails now, because `is_settled` depends on the outage.
        self.outage.lasts(now, " ".join(str(error).split())[:200], self.seconds)
        # Other calls have waited before this one. If each waited again, requests that wait for the
        # same host would delay the end of the run one after the other.
        if max(now - began, self.outage.seconds(now)) > self.seconds:
            with user_errors(self.client):
                raise error


def glob_escaped(text: str) -> str:
    """Return a pattern of SCAN that matches a text."""
    return re.sub(r"([\\*?^\[\]-])", r"\\\1", text)


@dataclass(frozen=True, slots=True)
class QueueState:
    """The queue of a run: waiting entries, leased entries, and live workers."""

    spider: str
    waiting: int
    leased: int
    workers: int


async def queue_states(client: Redis, database: str) -> list[QueueState]:
    """Return the queues of all shared runs, by spider."""
    pattern = glob_escaped(f"{{freshet:{database}:") + "*}:run"
    states = []
    with user_errors(client):
        for key in sorted([key.decode() async for key in client.scan_iter(pattern, count=1000)]):
            run: Any = await client.hget(key, "id")
            if run is None:
                continue
            seconds, micros = await client.time()
            base = key.removesuffix("run")
            of = f"{base}{run.decode()}:"
            async with client.pipeline(transaction=False) as pipe:
                for name in ("pending", "suspects", "leased"):
                    pipe.zcard(f"{of}{name}")
                pipe.zcount(f"{of}workers", seconds * 1000 + micros // 1000, "+inf")
                pending, suspects, leased, workers = await pipe.execute()
            spider = base.removesuffix("}:").rpartition(":")[2]
            states.append(QueueState(spider, pending + suspects, leased, workers))
    return states
