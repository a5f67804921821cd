"""Misbehaving compressed bodies: decompression bombs, and streams that only waste CPU time."""

from __future__ import annotations

import gzip
import zlib
from functools import cache

import brotli

from tests.site.hostile_bodies import PAGE
from tests.site.hostile_link import Link, Misbehaviour

MEGABYTE = 1 << 20
UNPACKED_MEGABYTES = 512
GZIP_HEAD = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
SITEMAP = b'<?xml version="1.0"?><urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n'
LAYERS = 3000
FRAMES = 40_000


@cache
def deflated(head: bytes = b"") -> bytes:
    """Return a raw deflate stream that expands to `head` and half a gigabyte of spaces."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    first = packer.compress(head) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(b" " * MEGABYTE) + packer.flush(zlib.Z_FULL_FLUSH)
    return first + block * UNPACKED_MEGABYTES


def gzipped(head: bytes = b"") -> bytes:
    """Return the same as a gzip file without its trailer, which no client should reach."""
    return GZIP_HEAD + deflated(head)


@cache
def nested() -> bytes:
    """Return a gzip file that expands to a gzip bomb of half a gigabyte."""
    return gzip.compress(gzipped(), 9)


@cache
def zstandard() -> bytes:
    """Return Zstandard frames of a megabyte each, half a gigabyte in total."""
    from backports import zstd  # Scrapy installs the backport for Pythons without the module.

    return zstd.compress(bytes(MEGABYTE)) * UNPACKED_MEGABYTES


@cache
def brotlied() -> bytes:
    """Return a Brotli stream that expands to a quarter of a gigabyte."""
    packer = brotli.Compressor(quality=1)
    parts = [packer.process(bytes(MEGABYTE)) for _ in range(256)]
    return b"".join([*parts, packer.finish()])


async def bomb_gzip(link: Link, rest: str) -> None:
    """Send gzip that expands to half a gigabyte."""
    await link.whole(gzipped(), "Content-Encoding: gzip")


async def bomb_deflate(link: Link, rest: str) -> None:
    """Send deflate that expands to half a gigabyte."""
    await link.whole(deflated(), "Content-Encoding: deflate")


async def bomb_br(link: Link, rest: str) -> None:
    """Send Brotli that expands to a quarter of a gigabyte."""
    await link.whole(brotlied(), "Content-Encoding: br")


async def bomb_zstd(link: Link, rest: str) -> None:
    """Send Zstandard that expands to half a gigabyte."""
    await link.whole(zstandard(), "Content-Encoding: zstd")


async def bomb_nested(link: Link, rest: str) -> None:
    """Send gzip in gzip, declared in one header."""
    await link.whole(nested(), "Content-Encoding: gzip, gzip")


async def bomb_nested_headers(link: Link, rest: str) -> None:
    """Send gzip in gzip, declared in two headers."""
    await link.whole(nested(), "Content-Encoding: gzip", "Content-Encoding: gzip")


async def bomb_layers(link: Link, rest: str) -> None:
    """Send a small page with three thousand declared layers of compression."""
    await link.whole(PAGE, f"Content-Encoding: {','.join(['gzip'] * LAYERS)}")


async def bomb_members(link: Link, rest: str) -> None:
    """Send tens of thousands of empty gzip members, which expand to nothing but cost CPU time."""
    await link.whole(gzip.compress(b"") * FRAMES, "Content-Encoding: gzip")


async def bomb_frames(link: Link, rest: str) -> None:
    """Send thousands of empty Zstandard frames."""
    from backports import zstd

    await link.whole(zstd.compress(b"") * FRAMES, "Content-Encoding: zstd")


async def bomb_sitemap(link: Link, rest: str) -> None:
    """Send a gzip file that starts as a sitemap and expands to half a gigabyte."""
    await link.whole(gzipped(SITEMAP), kind="application/gzip")


async def not_gzip(link: Link, rest: str) -> None:
    """Send an uncompressed page that is declared as gzip."""
    await link.whole(PAGE, "Content-Encoding: gzip")


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
}
