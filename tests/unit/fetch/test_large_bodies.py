"""Large bodies are admitted into memory one at a time."""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
from collections.abc import Awaitable, Callable, Iterator
from functools import wraps

import pytest
from scrapy.http import HtmlResponse, Response

from crawler.errors import BadResponse
from crawler.fetch.large_bodies import LargeBodies, SpooledBody, is_admitted
from crawler.utils.process import LARGE_BYTES

URL = "http://shop.example/"
LIMIT = 10 * LARGE_BYTES


def run(behavior: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Turn a coroutine function into a test that pytest can call."""

    @wraps(behavior)
    def test() -> None:
        asyncio.run(behavior())  # type: ignore[arg-type]

    return test


async def is_done(task: asyncio.Task[list[str]]) -> bool:
    """Let pending callbacks run, and return True if the body was admitted."""
    for _ in range(5):
        await asyncio.sleep(0)
    return task.done()


def start_admission(large: LargeBodies, size_bytes: int) -> asyncio.Task[list[str]]:
    return asyncio.create_task(large.admit(size_bytes))


@run
async def test_bodies_that_fit_together_do_not_wait() -> None:
    large = LargeBodies(LIMIT, 60)
    first = await large.admit(LIMIT // 2)
    assert await is_done(start_admission(large, LIMIT // 2))
    assert first == ["large"]


@run
async def test_body_waits_until_previous_response_is_freed() -> None:
    large = LargeBodies(LIMIT, 60)
    response = Response(URL, flags=await large.admit(LIMIT))
    second = start_admission(large, LARGE_BYTES + 1)
    replaced = response.replace(cls=HtmlResponse, body=b"unpacked")
    del response
    assert not await is_done(second)
    assert is_admitted(replaced)
    del replaced
    gc.collect()
    assert await is_done(second)


@run
async def test_bodies_are_admitted_in_order_of_arrival() -> None:
    large = LargeBodies(LIMIT, 60)
    flags = await large.admit(LARGE_BYTES + 1)
    whole, small = start_admission(large, LIMIT), start_admission(large, LARGE_BYTES + 1)
    assert not await is_done(whole)
    assert not await is_done(small)
    flags.clear()
    assert await is_done(whole)
    assert not await is_done(small)


@run
async def test_body_over_the_limit_is_admitted_exclusively() -> None:
    large = LargeBodies(LIMIT, 60)
    first = start_admission(large, 2 * LIMIT)
    assert await is_done(first)
    flags = await first
    second = start_admission(large, LARGE_BYTES + 1)
    assert not await is_done(second)
    flags.clear()
    assert await is_done(second)


@run
async def test_wait_for_admission_is_limited() -> None:
    large = LargeBodies(LIMIT, 0.01)
    flags = await large.admit(LIMIT)
    async with asyncio.timeout(30):
        assert await large.admit(LIMIT)
    assert flags


@run
async def test_queued_bodies_wait_concurrently() -> None:
    large = LargeBodies(LIMIT, 0.5)
    flags = await large.admit(LIMIT)
    began = asyncio.get_running_loop().time()
    await asyncio.gather(*(large.admit(LIMIT) for _ in range(20)))
    assert asyncio.get_running_loop().time() - began < 5
    assert flags


@run
async def test_unreachable_response_is_freed() -> None:
    large = LargeBodies(LIMIT, 60)
    garbage: list[object] = [Response(URL, flags=await large.admit(LIMIT))]
    garbage.append(garbage)
    del garbage
    async with asyncio.timeout(30):
        assert await large.admit(LIMIT)


@run
async def test_small_bodies_never_wait() -> None:
    large = LargeBodies(LIMIT, 60)
    flags = await large.admit(LIMIT)
    assert await large.admit(LARGE_BYTES) == []
    assert flags


@pytest.mark.parametrize("size", [0, 1, LARGE_BYTES, 3 * LARGE_BYTES + 1])
def test_spooled_body_equals_received_bytes(size: int) -> None:
    body = SpooledBody(b"first ")
    data = bytes(n % 251 for n in range(size))
    for at in range(0, size, 65_536):
        body.write(data[at : at + 65_536])
    assert body.getvalue().size_bytes == size + 6
    assert body.load() == b"first " + data


def test_full_disk_rejects_the_body(full_disk: Callable[[], None]) -> None:
    body = SpooledBody(b"")
    full_disk()
    for _ in range(3):
        body.write(bytes(LARGE_BYTES))
    with pytest.raises(BadResponse, match="body of 3145728 bytes could not be buffered: "):
        body.load()


@pytest.fixture
def full_disk() -> Iterator[Callable[[], None]]:
    """Yield a function that limits this process to files of a few bytes until the test ends."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, handler)
