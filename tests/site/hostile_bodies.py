"""Misbehaving bodies: bombs, endless, slow, of another length than announced."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import zlib
from collections.abc import Iterator
from functools import cache

import brotli

from tests.site.hostile_link import PIECE_BYTES, Link, Misbehaviour

PAGE = b"<!DOCTYPE html><main><h1>A page</h1><p>" + b"some words of it " * 300 + b"</p></main>"
WORDS = (b"<p>" + b"the same long river " * 3300)[:PIECE_BYTES]
MEGABYTE = 1 << 20
UNPACKED_MEGABYTES = 512
TERABYTES = 5 * 10**12
GZIP_HEAD = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
SITEMAP = b'<?xml version="1.0"?><urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n'
LAYERS = 3000
FRAMES = 40_000


@cache
def deflated(head: bytes = b"") -> bytes:
    """A raw deflate stream that becomes half a gigabyte of spaces behind `head`."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    first = packer.compress(head) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(b" " * MEGABYTE) + packer.flush(zlib.Z_FULL_FLUSH)
    return first + block * UNPACKED_MEGABYTES


def gzipped(head: bytes = b"") -> bytes:
    """The same as a gzip file, without its end: nobody should come so far."""
    return GZIP_HEAD + deflated(head)


@cache
def nested() -> bytes:
    """A gzip file that becomes a bomb that becomes half a gigabyte."""
    return gzip.compress(gzipped(), 9)


@cache
def zstandard() -> bytes:
    """Frames of a megabyte each, half a gigabyte together."""
    from backports import zstd  # Scrapy brings it for Pythons that have none

    return zstd.compress(bytes(MEGABYTE)) * UNPACKED_MEGABYTES


@cache
def brotlied() -> bytes:
    """A stream that becomes a quarter of a gigabyte."""
    packer = brotli.Compressor(quality=1)
    parts = [packer.process(bytes(MEGABYTE)) for _ in range(256)]
    return b"".join([*parts, packer.finish()])


def encoded(body: bytes, coding: str) -> Misbehaviour:
    """Answers with a body in a coding."""

    async def answer(link: Link, rest: str) -> None:
        await link.whole(body, f"Content-Encoding: {coding}")

    return answer


async def bomb_gzip(link: Link, rest: str) -> None:
    """Gzip that becomes half a gigabyte."""
    await link.whole(gzipped(), "Content-Encoding: gzip")


async def bomb_deflate(link: Link, rest: str) -> None:
    """Deflate that becomes half a gigabyte."""
    await link.whole(deflated(), "Content-Encoding: deflate")


async def bomb_br(link: Link, rest: str) -> None:
    """Brotli that becomes a quarter of a gigabyte."""
    await link.whole(brotlied(), "Content-Encoding: br")


async def bomb_zstd(link: Link, rest: str) -> None:
    """Zstandard that becomes half a gigabyte."""
    await link.whole(zstandard(), "Content-Encoding: zstd")


async def bomb_nested(link: Link, rest: str) -> None:
    """Gzip in gzip, announced in one header."""
    await link.whole(nested(), "Content-Encoding: gzip, gzip")


async def bomb_nested_headers(link: Link, rest: str) -> None:
    """Gzip in gzip, announced in two headers."""
    await link.whole(nested(), "Content-Encoding: gzip", "Content-Encoding: gzip")


async def bomb_layers(link: Link, rest: str) -> None:
    """A small page that claims to have been packed three thousand times."""
    await link.whole(PAGE, f"Content-Encoding: {','.join(['gzip'] * LAYERS)}")


async def bomb_members(link: Link, rest: str) -> None:
    """Tens of thousands of empty gzip files in a row: nothing comes of them but work."""
    await link.whole(gzip.compress(b"") * FRAMES, "Content-Encoding: gzip")


async def bomb_frames(link: Link, rest: str) -> None:
    """The same in zstandard."""
    from backports import zstd

    await link.whole(zstd.compress(b"") * FRAMES, "Content-Encoding: zstd")


async def bomb_sitemap(link: Link, rest: str) -> None:
    """A gzipped file, begun as a sitemap, that becomes half a gigabyte."""
    await link.whole(gzipped(SITEMAP), kind="application/gzip")


async def not_gzip(link: Link, rest: str) -> None:
    """A page that is called gzip and is not."""
    await link.whole(PAGE, "Content-Encoding: gzip")


async def endless(link: Link, rest: str) -> None:
    """A body without length and end."""
    await link.head()
    await link.forever(itertools.repeat(WORDS))


async def endless_chunked(link: Link, rest: str) -> None:
    """Chunks without end."""
    await link.head("Transfer-Encoding: chunked")
    chunk = b"%x\r\n%s\r\n" % (len(WORDS), WORDS)
    await link.forever(itertools.repeat(chunk))


async def endless_crumbs(link: Link, rest: str) -> None:
    """Chunks of one byte without end."""
    await link.head("Transfer-Encoding: chunked")
    await link.forever(itertools.repeat(b"1\r\nx\r\n" * 10_000))


async def one_chunk(link: Link, rest: str) -> None:
    """One chunk of terabytes."""
    await link.head("Transfer-Encoding: chunked")
    await link.forever(itertools.chain([b"%x\r\n" % TERABYTES], itertools.repeat(WORDS)))


async def terabytes(link: Link, rest: str) -> None:
    """A body whose announced length is terabytes."""
    await link.head(f"Content-Length: {TERABYTES}")
    await link.forever(itertools.repeat(WORDS))


async def drip(link: Link, rest: str) -> None:
    """A body that comes byte by byte, one a second."""
    await link.head(f"Content-Length: {len(PAGE)}")
    await link.drip(PAGE)


async def short(link: Link, rest: str) -> None:
    """A body that ends before its announced length."""
    await link.head(f"Content-Length: {2 * len(PAGE)}")
    await link.raw(PAGE)
    link.close()


async def long(link: Link, rest: str) -> None:
    """A body longer than announced: it is read to the announced length."""
    await link.head(f"Content-Length: {len(PAGE) - 7}")
    await link.forever([PAGE, WORDS, WORDS])


def lengths(*values: str) -> Misbehaviour:
    """Answers with such Content-Length headers."""

    async def answer(link: Link, rest: str) -> None:
        await link.head(*(f"Content-Length: {value}" for value in values))
        await link.raw(PAGE)
        link.close()

    return answer


def chunked(*parts: bytes) -> Misbehaviour:
    """Answers with such bytes where chunks should be."""

    async def answer(link: Link, rest: str) -> None:
        await link.head("Transfer-Encoding: chunked")
        await link.forever(parts)
        await asyncio.sleep(0)

    return answer


def _trailers() -> Iterator[bytes]:
    yield b"%x\r\n%s\r\n0\r\n" % (len(PAGE), PAGE)
    yield from itertools.repeat(b"X-Late: " + b"x" * 1000 + b"\r\n")


async def endless_trailers(link: Link, rest: str) -> None:
    """A good chunk, then headers behind the body without end."""
    await link.head("Transfer-Encoding: chunked")
    await link.forever(_trailers())


async def unknown_transfer(link: Link, rest: str) -> None:
    """A transfer encoding that nobody knows."""
    await link.head("Transfer-Encoding: rot13")
    await link.forever([PAGE])


ALL: dict[str, Misbehaviour] = {
    "bomb-gzip": bomb_gzip,
    "bomb-deflate": bomb_deflate,
    "bomb-br": bomb_br,
    "bomb-zstd": bomb_zstd,
    "bomb-nested": bomb_nested,
    "bomb-nested-headers": bomb_nested_headers,
    "bomb-layers": bomb_layers,
    "bomb-members": bomb_members,
    "bomb-frames": bomb_frames,
    "bomb-sitemap.xml.gz": bomb_sitemap,
    "not-gzip": not_gzip,
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
