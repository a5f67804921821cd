"""Misbehaving robots.txt files, one at each of the server's addresses."""

from __future__ import annotations

import itertools

from tests.site.hostile_bombs import gzipped
from tests.site.hostile_link import Link, Misbehaviour
from tests.site.hostile_moves import missing, move

TEXT = "text/plain"
FIRST = b"User-agent: *\nDisallow: /good/1\n"
COMMENT = b"# nothing to be read here, but much of it\n"
BIG_BYTES = 10_000_000
HALF_MEGABYTE = 1 << 19


def file(body: bytes, *headers: str) -> Misbehaviour:
    """Answer with a file."""

    async def answer(link: Link, rest: str) -> None:
        await link.whole(body, *headers, kind=TEXT)

    return answer


def filled(head: bytes, line: bytes, size: int) -> bytes:
    """Return `head`, then the line repeated up to the size."""
    return head + line * ((size - len(head)) // len(line))


def numbered(head: bytes, line: bytes, size: int) -> bytes:
    """Return `head`, then the line up to the size, with `%d` replaced by consecutive numbers."""
    parts, length = [head], len(head)
    for number in itertools.count():
        parts.append(line % number)
        length += len(parts[-1])
        if length > size:
            return b"".join(parts)
    return b""


async def endless(link: Link, rest: str) -> None:
    """Send rules, then comments without end."""
    await link.head(kind=TEXT)
    await link.forever(itertools.chain([FIRST], itertools.repeat(COMMENT * 1000)))


async def slow(link: Link, rest: str) -> None:
    """Send one byte per second."""
    await link.head("Content-Length: 5000", kind=TEXT)
    await link.drip(FIRST * 100)


async def loop(link: Link, rest: str) -> None:
    """Redirect to itself."""
    await move(link, "/robots.txt")


async def elsewhere(link: Link, rest: str) -> None:
    """Redirect into the private network."""
    await move(link, f"http://localhost:{link.port}/secret")


BIG = filled(FIRST, COMMENT, BIG_BYTES) + b"Disallow: /good/2\n"
AGENTS = numbered(b"", b"User-agent: a%d\n", HALF_MEGABYTE // 2)
ALL: dict[str, Misbehaviour] = {
    "127.0.0.1": missing,
    "127.0.0.11": file(BIG),
    "127.0.0.12": endless,
    "127.0.0.13": slow,
    "127.0.0.14": loop,
    "127.0.0.15": elsewhere,
    "127.0.0.16": file(bytes(n * 37 % 256 for n in range(200_000))),
    "127.0.0.17": file(numbered(FIRST, b"Disallow: /*a*a*a*%d*$\n", HALF_MEGABYTE)),
    "127.0.0.18": file(FIRST + b"Disallow: /" + b"*a" * (HALF_MEGABYTE // 2 - 50) + b"\n"),
    "127.0.0.19": file(numbered(AGENTS + FIRST, b"Disallow: /x%d\n", HALF_MEGABYTE)),
    "127.0.0.20": file(gzipped(FIRST), "Content-Encoding: gzip"),
}
