"""Misbehaving bodies: endless, slow, or with a wrong length."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

from tests.site.hostile_link import PIECE_BYTES, Link, Misbehaviour

PAGE = b"<!DOCTYPE html><main><h1>A page</h1><p>" + b"some words of it " * 300 + b"</p></main>"
WORDS = (b"<p>" + b"the same long river " * 3300)[:PIECE_BYTES]
TERABYTES = 5 * 10**12


async def endless(link: Link, rest: str) -> None:
    """Send a body without a length and without an end."""
    await link.head()
    await link.forever(itertools.repeat(WORDS))


async def endless_chunked(link: Link, rest: str) -> None:
    """Send chunks without end."""
    await link.head("Transfer-Encoding: chunked")
    chunk = b"%x\r\n%s\r\n" % (len(WORDS), WORDS)
    await link.forever(itertools.repeat(chunk))


async def endless_crumbs(link: Link, rest: str) -> None:
    """Send one-byte chunks without end."""
    await link.head("Transfer-Encoding: chunked")
    await link.forever(itertools.repeat(b"1\r\nx\r\n" * 10_000))


async def one_chunk(link: Link, rest: str) -> None:
    """Send one chunk with a declared size of terabytes."""
    await link.head("Transfer-Encoding: chunked")
    await link.forever(itertools.chain([b"%x\r\n" % TERABYTES], itertools.repeat(WORDS)))


async def terabytes(link: Link, rest: str) -> None:
    """Send a body with a Content-Length of terabytes."""
    await link.head(f"Content-Length: {TERABYTES}")
    await link.forever(itertools.repeat(WORDS))


async def drip(link: Link, rest: str) -> None:
    """Send a body one byte per second."""
    await link.head(f"Content-Length: {len(PAGE)}")
    await link.drip(PAGE)


async def short(link: Link, rest: str) -> None:
    """Send a body shorter than its Content-Length."""
    await link.head(f"Content-Length: {2 * len(PAGE)}")
    await link.raw(PAGE)
    link.close()


async def long(link: Link, rest: str) -> None:
    """Send a body longer than its Content-Length; clients read up to the declared length."""
    await link.head(f"Content-Length: {len(PAGE) - 7}")
    await link.forever([PAGE, WORDS, WORDS])


def lengths(*values: str) -> Misbehaviour:
    """Answer with these Content-Length headers."""

    async def answer(link: Link, rest: str) -> None:
        await link.head(*(f"Content-Length: {value}" for value in values))
        await link.raw(PAGE)
        link.close()

    return answer


def chunked(*parts: bytes) -> Misbehaviour:
    """Answer with these bytes in place of valid chunks."""

    async def answer(link: Link, rest: str) -> None:
        await link.head("Transfer-Encoding: chunked")
        await link.forever(parts)
        await asyncio.sleep(0)

    return answer


def _trailers() -> Iterator[bytes]:
    yield b"%x\r\n%s\r\n0\r\n" % (len(PAGE), PAGE)
    yield from itertools.repeat(b"X-Late: " + b"x" * 1000 + b"\r\n")


async def endless_trailers(link: Link, rest: str) -> None:
    """Send a valid chunk, then trailers without end."""
    await link.head("Transfer-Encoding: chunked")
    await link.forever(_trailers())


async def unknown_transfer(link: Link, rest: str) -> None:
    """Send an unknown transfer encoding."""
    await link.head("Transfer-Encoding: rot13")
    await link.forever([PAGE])


ALL: dict[str, Misbehaviour] = {
    "endless": endless,
    "endless-chunked": endless_chunked,
    "endless-crumbs": endless_crumbs,
    "one-chunk": one_chunk,
    "terabytes": terabytes,
    "drip": drip,
    "short": short,
    "long": long,
    "length-negative": lengths("-5"),
    "length-word": lengths("many"),
    "lengths-differ": lengths("100", "200"),
    "chunk-bad": chunked(b"zz\r\nno chunk\r\n"),
    "chunk-cut": chunked(b"ffff\r\n", PAGE),
    "chunk-long-line": chunked(b"1;" + b"x" * 100_000 + b"\r\n"),
    "endless-trailers": endless_trailers,
    "unknown-transfer": unknown_transfer,
}
