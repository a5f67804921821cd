"""Misbehaving response heads: floods, drips, silence."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

from tests.site.hostile_bodies import PAGE
from tests.site.hostile_link import Link, Misbehaviour

COOKIES = 100_000


async def silent(link: Link, rest: str) -> None:
    """Accept the request and never answer."""
    link.close()
    await asyncio.sleep(3600)


async def drip_head(link: Link, rest: str) -> None:
    """Send the head one byte per second."""
    await link.drip(b"HTTP/1.1 200 OK\r\n" + b"X-Slow: yes\r\n" * 1000)


async def endless_headers(link: Link, rest: str) -> None:
    """Send short headers without end."""
    lines = (b"X-Flood-%d: %s\r\n" % (n, b"x" * 60) for n in itertools.count())
    await link.raw(b"HTTP/1.1 200 OK\r\n")
    await link.forever(b"".join(itertools.islice(lines, 800)) for _ in itertools.count())


async def huge_header(link: Link, rest: str) -> None:
    """Send one header of many megabytes."""
    await link.raw(b"HTTP/1.1 200 OK\r\nX-Huge: ")
    await link.forever([b"x" * 65_536] * 500)


async def folded_header(link: Link, rest: str) -> None:
    """Send one header, folded over lines without end."""
    await link.raw(b"HTTP/1.1 200 OK\r\nX-Folded: \r\n")
    await link.forever(itertools.repeat((b" " + b"x" * 1000 + b"\r\n") * 60))


async def cookies(link: Link, rest: str) -> None:
    """Send a page with a hundred thousand cookies."""
    await link.raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n")
    lines = (b"Set-Cookie: c%d=%s\r\n" % (n, b"x" * 40) for n in range(COOKIES))
    await link.forever(_by(1000, lines))
    await link.raw(b"Content-Length: %d\r\n\r\n%s" % (len(PAGE), PAGE))


async def endless_status(link: Link, rest: str) -> None:
    """Send a status line without end."""
    await link.forever(itertools.chain([b"HTTP/1.1 200 "], itertools.repeat(b"x" * 65_536)))


async def endless_1xx(link: Link, rest: str) -> None:
    """Send interim (1xx) responses without end."""
    await link.forever(itertools.repeat(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000))


async def no_http(link: Link, rest: str) -> None:
    """Send something that is not HTTP."""
    await link.forever([b"220 mail.example ESMTP\r\n", b"\0" * 1000])


async def closed(link: Link, rest: str) -> None:
    """Close the connection without sending a byte."""
    link.close()


async def some_cookies(link: Link, rest: str) -> None:
    """Send a valid page that sets forty large cookies with unique names (`some-cookies/<n>`)."""
    values = [f"Set-Cookie: c{rest}-{n}={'x' * 4000}" for n in range(40)]
    await link.page(f"<h1>cookies {rest}</h1>", *values)


def _by(size: int, lines: Iterator[bytes]) -> Iterator[bytes]:
    while piece := b"".join(itertools.islice(lines, size)):
        yield piece


ALL: dict[str, Misbehaviour] = {
    "silent": silent,
    "drip-head": drip_head,
    "endless-headers": endless_headers,
    "huge-header": huge_header,
    "folded-header": folded_header,
    "cookies": cookies,
    "endless-status": endless_status,
    "endless-1xx": endless_1xx,
    "no-http": no_http,
    "closed": closed,
    "some-cookies": some_cookies,
}
