"""The connection to a Redis or Valkey server, and what its driver's errors say to a user."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
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

from crawler.errors import BandsLost, ConfigError, StorageError, Unreachable

# Between two attempts: ever longer pauses, up to this one.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.05, 2.0
EXAMPLE = "such as redis://localhost:6379/0 or unix:///run/redis/redis.sock"
LOST = "LOST"
# What a server answers to every write while its memory is full, or it cannot save to its disk; what
# a script met, or a command of several, stands in a longer text.
TAKES_NO_WRITES = re.compile(r"OOM command not allowed|MISCONF |No space left on device")
AWAY = (ConnectionFailure, NoAnswer, BusyLoadingError, ReadOnlyError, OutOfMemoryError)


async def open_redis(url: str, timeout_seconds: float = 5.0, retry_seconds: float = 30.0) -> Redis:
    """A client of a server that has answered within `timeout_seconds`.

    Later it tries again for about `retry_seconds` when the server goes away, so what is asked of it
    has to be safe to repeat. Raises ConfigError for a bad URL and Unreachable without an answer.
    """
    client = _client(url, timeout_seconds)
    try:
        with user_errors(client):
            await _answers(client, timeout_seconds)
            await _check_keeps_keys(client)
    except BaseException:
        await client.aclose()
        raise
    retries = int(retry_seconds / LONGEST_PAUSE_SECONDS)
    pauses = ExponentialBackoff(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS)
    client.set_retry(Retry(pauses, retries))
    return client


@contextmanager
def user_errors(client: Redis) -> Iterator[None]:
    """Errors of the driver as Freshet's, with the server's address and without its password."""
    where = f"Redis at {address(client)}"
    try:
        yield
    except NoAnswer:
        seconds = client.connection_pool.connection_kwargs.get("socket_timeout")
        raise Unreachable(f"{where}: no answer in {seconds:g} s (REDIS_URL names it)") from None
    except ConnectionFailure as error:
        # What a server says to a password or to a database's number is in the cause.
        if isinstance(error.__cause__, AuthenticationError | ResponseError):
            raise ConfigError(f"REDIS_URL: {where}: {_in_short(error)}") from None
        raise Unreachable(f"{where}: {_in_short(error)} (REDIS_URL names it)") from None
    except RedisError as error:
        if is_unavailable(error):
            raise Unreachable(f"{where}: {_in_short(error)}") from None
        if str(error).startswith(LOST):
            raise BandsLost(f"{where}: its claims are gone or made anew: start again") from None
        raise StorageError(f"{where}: {_in_short(error)}") from None


def is_unavailable(error: RedisError) -> bool:
    """Whether the server cannot do now what it could do later, such as while its memory is full."""
    return isinstance(error, AWAY) or (
        isinstance(error, ResponseError) and TAKES_NO_WRITES.search(str(error)) is not None
    )


def address(client: Redis) -> str:
    """Where a client's server is, as it may be shown."""
    given = client.connection_pool.connection_kwargs
    if path := given.get("path"):
        return f"unix://{path}"
    return f"{given.get('host', 'localhost')}:{given.get('port', 6379)}"


def _client(url: str, timeout_seconds: float) -> Redis:
    try:
        _check_url(url)
        client = Redis.from_url(
            url,
            protocol=2,  # all that is needed, and spoken by every server
            socket_timeout=timeout_seconds,
            socket_connect_timeout=timeout_seconds,
            client_name="freshet",
            # Names that are no UTF-8, which others may have written, can be read and deleted.
            encoding_errors="surrogateescape",
            retry=Retry(NoBackoff(), 0),
        )
        pool = client.connection_pool
        pool.connection_class(**pool.connection_kwargs)  # complains of an unknown option
    except ValueError as error:
        raise ConfigError(f"REDIS_URL: {error} ({EXAMPLE})") from None
    except TypeError as error:
        option = str(error).rpartition(" ")[2]
        raise ConfigError(f"REDIS_URL: no such option: {option}") from None
    return client


def _check_url(url: str) -> None:
    """Raise ValueError for what the driver would read as something else."""
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise ValueError("does not begin with redis://, rediss:// or unix://")
    if parts.scheme == "unix":
        if not parts.path:
            raise ValueError("names no socket")
        return
    # Before anything of it is shown: it may be the rest of a password.
    if "@" in parts.path + parts.query + parts.fragment:
        raise ValueError("/ ? # in a password are written %2F %3F %23")
    if (database := parts.path.strip("/")) and not database.isdecimal():
        raise ValueError(f"{database!r} is no number of a database")


async def _answers(client: Redis, timeout_seconds: float) -> None:
    """Wait for a server that reads its data back; everything else is known at once."""
    try:
        async with asyncio.timeout(timeout_seconds):
            while True:
                try:
                    await client.ping()
                except BusyLoadingError:
                    await asyncio.sleep(FIRST_PAUSE_SECONDS)
                else:
                    return
    except TimeoutError:
        raise NoAnswer from None


async def _check_keeps_keys(client: Redis) -> None:
    """Raise ConfigError for a cache: it would drop bands, and copies would pass for originals."""
    try:
        memory = await client.info("memory")
    except NoPermissionError:
        return
    policy = memory.get("maxmemory_policy", "")
    if memory.get("maxmemory") and policy.startswith("allkeys"):
        raise ConfigError(
            f"REDIS_URL: Redis at {address(client)} drops keys when it is full (maxmemory-policy "
            f"{policy}): give another server, or set noeviction"
        )


def _in_short(error: Exception) -> str:
    """A driver's message in one line, without the address that it may repeat."""
    text = " ".join(str(error).split())[:200].rstrip(".")
    if found := re.match(r"Error (-?\d+) connecting to \S+ (.*)", text):
        number, cause = int(found[1]), found[2]
        return os.strerror(number) + ", does it run?" if number > 0 else cause
    return text
