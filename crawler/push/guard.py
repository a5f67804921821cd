"""Which addresses may be asked: a feed's document must not send requests into a private network."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from ipaddress import IPv4Address, IPv6Address

from crawler.urls import host_of

RESOLVE_SECONDS = 10.0
# 64:ff9b::/96 stands for the IPv4 addresses behind a translator (RFC 6052).
TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")
Address = IPv4Address | IPv6Address


class NotAllowed(Exception):
    """The host must not be asked, or has no address; `str()` says why."""


async def addresses_for(host: str, port: int, feed: str) -> list[str]:
    """The addresses of a hub that may be asked, in the resolver's order.

    feed: URL of the feed that names the hub; only if it is private itself, private hubs are asked

    Raises NotAllowed. The caller connects to these, so that no second answer of the name server
    can lead elsewhere.
    """
    found = [address for address in await resolved(host, port) if not _is_never_asked(address)]
    public = [str(address) for address in found if is_public(address)]
    if public:
        return public
    if found and await _is_private(feed):
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


def is_public(address: Address) -> bool:
    """Whether an address is one of the public Internet, whatever it is wrapped in."""
    inner = _unwrapped(address)
    return inner.is_global and not inner.is_multicast


def _is_never_asked(address: Address) -> bool:
    """Not even for a private feed: whole nets, and what machines in a cloud tell of themselves."""
    inner = _unwrapped(address)
    if inner.is_loopback:
        return False
    return inner.is_multicast or inner.is_unspecified or inner.is_link_local or inner.is_reserved


def _unwrapped(address: Address) -> Address:
    if isinstance(address, IPv4Address):
        return address
    if address in TRANSLATED:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


async def _is_private(feed: str) -> bool:
    try:
        found = await resolved(host_of(feed), 80)
    except NotAllowed:
        return False
    return not any(is_public(address) for address in found)
