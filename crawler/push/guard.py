"""Which addresses may be asked: a feed's document must not send requests into a private network."""

from __future__ import annotations

import asyncio
import ipaddress
import socket

from crawler.addresses import Address, is_public, usable
from crawler.urls import host_of

RESOLVE_SECONDS = 10.0


class NotAllowed(Exception):
    """The host must not be asked, or has no address; `str()` says why."""


async def addresses_for(host: str, port: int, feed: str) -> list[str]:
    """The addresses of a hub that may be asked, in the resolver's order.

    feed: URL of the feed that names the hub; only if it is private itself, private hubs are asked

    Raises NotAllowed. The caller connects to these, so that no second answer of the name server
    can lead elsewhere.
    """
    found = usable(await resolved(host, port), private=True)
    if found and (is_public(found[0]) or await _is_private(feed)):
        return [str(address) for address in found]
    why = "is in a private network and its feed is not" if found else "has no usable address"
    raise NotAllowed(f"{host} {why}")


async def resolved(host: str, port: int) -> list[Address]:
    """All addresses of a host; raises NotAllowed where there are none."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            rows = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError) as error:
        reason = getattr(error, "strerror", None) or "no answer from the name server"
        raise NotAllowed(f"{host}: {reason}") from None
    names = dict.fromkeys(str(row[4][0]).partition("%")[0] for row in rows)
    return [ipaddress.ip_address(name) for name in names]


async def _is_private(feed: str) -> bool:
    try:
        found = await resolved(host_of(feed), 80)
    except NotAllowed:
        return False
    return not any(is_public(address) for address in found)
