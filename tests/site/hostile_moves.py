"""Misbehaving redirects: loops, endless chains, and redirects into private networks."""

from __future__ import annotations

import asyncio

from tests.site.hostile_link import Link, Misbehaviour

LONG_CHARACTERS = 15_000
# Other notations and names of addresses of this machine or of a private network.
PLACES = {
    "localhost": "localhost",
    "loopback-2": "127.0.0.2",
    "loopback-v6": "[::1]",
    "loopback-mapped": "[::ffff:127.0.0.1]",
    "loopback-decimal": "2130706433",
    "loopback-hex": "0x7f000001",
    "loopback-octal": "0177.0.0.1",
    "loopback-short": "127.1",
    "unspecified": "0.0.0.0",
    "private": "10.0.0.1",
    "carrier": "100.64.0.1",
    "metadata": "169.254.169.254",
    "multicast": "224.0.0.1",
    "unique-local": "[fd00::1]",
    "link-local": "[fe80::1]",
    # A name that only a test's resolver resolves.
    "rebound": "rebound.test",
}


def to(location: str) -> Misbehaviour:
    """Redirect to this location."""

    async def answer(link: Link, rest: str) -> None:
        await move(link, location.replace("PORT", str(link.port)))

    return answer


def refreshed(location: str) -> Misbehaviour:
    """Answer with a page that refreshes to this location."""

    async def answer(link: Link, rest: str) -> None:
        url = location.replace("PORT", str(link.port))
        await link.page(f'<meta http-equiv="refresh" content="0;url={url}"><h1>moving</h1>')

    return answer


async def move(link: Link, location: str) -> None:
    """Send a redirect."""
    await link.head(f"Location: {location}", "Content-Length: 0", status="302 Found")


async def ever_new(link: Link, rest: str) -> None:
    """Redirect to a new URL each time, without end."""
    await move(link, f"/item/ever-new/{int(rest or 0) + 1}")


async def slow_moves(link: Link, rest: str) -> None:
    """Redirect to a new URL each time, slowly."""
    await asyncio.sleep(1.5)
    await move(link, f"/item/slow-moves/{int(rest or 0) + 1}")


async def refresh_ever_new(link: Link, rest: str) -> None:
    """Answer with a page that refreshes to a new URL each time, without end."""
    await refreshed(f"/item/refresh-ever-new/{int(rest or 0) + 1}")(link, rest)


async def refresh_loop(link: Link, rest: str) -> None:
    """Answer with a page that refreshes to another one, which refreshes back."""
    await refreshed(f"/item/refresh-loop{'' if rest else '/back'}")(link, rest)


async def no_location(link: Link, rest: str) -> None:
    """Redirect without a location."""
    await link.head("Content-Length: 0", status="302 Found")


async def missing(link: Link, rest: str) -> None:
    """Answer with status 404."""
    await link.head("Content-Length: 0", status="404 Not Found")


ALL: dict[str, Misbehaviour] = {
    "loop": to("/item/loop"),
    "ever-new": ever_new,
    "slow-moves": slow_moves,
    "refresh-loop": refresh_loop,
    "refresh-ever-new": refresh_ever_new,
    "no-location": no_location,
    "to-long": to("/" + "x" * LONG_CHARACTERS),
    "to-file": to("file:///etc/passwd"),
    "to-data": to("data:text/html,<h1>data</h1>"),
    "to-ftp": to("ftp://127.0.0.1:PORT/file"),
    "to-javascript": to("javascript:alert(1)"),
    "to-nonsense": to("http://[nonsense"),
    "refresh-file": refreshed("file:///etc/passwd"),
    "refresh-private": refreshed("http://localhost:PORT/secret"),
    **{f"to-{name}": to(f"http://{host}:PORT/secret") for name, host in PLACES.items()},
}
