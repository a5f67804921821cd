"""Which addresses may be asked: a feed's document must not send requests into a private network."""

from __future__ import annotations

import asyncio
import ipaddress
import socket

from crawler.addresses import Address, Named, host_and_port, is_public, usable
from crawler.errors import WAY_OUT
from crawler.utils.urls import host_of

RESOLVE_SECONDS = 10.0


class NotAllowed(Exception):
    """The host must not be asked, or has no address; `str()` says why."""


async def addresses_for(hub: str, feed: str, listed: Named) -> list[str]:
    """Return the addresses of a hub that may be asked, in the resolver's order.

    hub:    http or https URL
    feed:   URL of the feed that names the hub
    listed: hosts and ports that the user allows to be in private networks

    A hub in a private network is asked only if it is listed, or has the host and port of the feed
    and the user named the feed by its address: a name may lead to another machine at any time.

    Raises NotAllowed. The caller connects to these, so that no second answer of the name server
    can lead elsewhere.
    """
    place = host_and_port(hub)
    found = usable(await resolved(host_of(hub), int(place.rpartition(":")[2])), private=True)
    if not found:
        raise NotAllowed(f"{place} has no usable address")
    if is_public(found[0]) or listed.cover(hub) or Named.of([feed]).cover(hub):
        return [str(address) for address in found]
    raise NotAllowed(f"{place} is not on the public Internet ({WAY_OUT})")


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
