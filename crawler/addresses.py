"""Which addresses may be asked, whatever they are written or wrapped as; which a user has named."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from typing import Self
from urllib.parse import urlsplit

from crawler.utils.urls import host_of

Address = IPv4Address | IPv6Address
HOST_HEADER = re.compile(r"(?P<name>[^\s:\[\]]+|\[[0-9a-fA-F:.]+\])(:\d{1,5})?")
# What has been given out so far for the public Internet.
GLOBAL_UNICAST = IPv6Network("2000::/3")
# Stands for the IPv4 addresses behind a translator (RFC 6052).
TRANSLATED = IPv6Network("64:ff9b::/96")
# Who names one of these ports means the site, which may move from one to the other.
USUAL_PORTS = {"http": 80, "https": 443}


def usable(found: Iterable[Address], *, private: bool) -> list[Address]:
    """Those of a host's addresses that may be asked, in their order.

    private: also those of a private network, where none is public; but never whole nets, nor what
             machines in a cloud tell of themselves
    """
    some = [address for address in found if not _is_never_asked(address)]
    return [address for address in some if is_public(address)] or (some if private else [])


def is_public(address: Address) -> bool:
    """Whether an address is one of the public Internet, whatever it is wrapped in."""
    inner = _unwrapped(address)
    if isinstance(inner, IPv6Address) and inner not in GLOBAL_UNICAST:
        return False
    return inner.is_global and not inner.is_multicast


def _is_never_asked(address: Address) -> bool:
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


def literal(host: str) -> Address | None:
    """The address that a host is written as: dotted, short, decimal, octal, hexadecimal, IPv6."""
    bare = host.strip("[]").rstrip(".")
    try:
        return ipaddress.ip_address(bare.partition("%")[0])
    except ValueError:
        pass
    if bare.lower() == "localhost" or bare.lower().endswith(".localhost"):
        return IPv4Address("127.0.0.1")  # RFC 6761, 6.3
    try:
        return IPv4Address(socket.inet_aton(bare))
    except (OSError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class Named:
    """Hosts with their ports that may be in private networks, as a user has named them.

    A name in a URL is not enough: whoever controls its name server could point it at any machine.
    """

    places: frozenset[tuple[str, int]] = frozenset()

    @classmethod
    def of(cls, urls: Iterable[str] = (), listed: Iterable[str] = ()) -> Self:
        """Return what these URLs name by an address, and what is listed as HOST:PORT.

        Each with and without `www.`; `localhost` counts as an address.
        """
        literals = (url for url in urls if literal(host_of(url)) is not None)
        named = (f"http://{one}" for one in listed)
        return cls(frozenset(place for place in map(_place, (*literals, *named)) if place[0]))

    def cover(self, url: str) -> bool:
        """Whether a URL leads to one of them."""
        return _place(url) in self.places


def host_and_port(url: str) -> str:
    """Return HOST:PORT of a web URL, in the form in which users list private hosts."""
    host = host_of(url)
    try:
        parts = urlsplit(url)
        port = parts.port or USUAL_PORTS.get(parts.scheme.lower(), 0)
    except ValueError:
        port = 0
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _place(url: str) -> tuple[str, int]:
    """Host and port of a URL; 80 and 443 are one. No host where there is none."""
    try:
        parts = urlsplit(url)
        port = parts.port or USUAL_PORTS.get(parts.scheme.lower(), 0)
    except ValueError:
        return "", 0
    return host_of(url).removeprefix("www."), 80 if port == 443 else port


def is_loopback(address: str) -> bool:
    """The address, without brackets, is one of this machine for itself."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def is_local(host: str) -> bool:
    """Whether a Host header names this machine; other names may have been pointed at it."""
    name = _name_of(host)
    return name == "localhost" or is_loopback(name)


def is_in_network(host: str, names: Collection[str]) -> bool:
    """Whether a Host header names a machine as only its own network does.

    That is by an address, a name without dots, or one of `names`. Any other name may be that of a
    web page whose owner has pointed it at this machine.
    """
    name = _name_of(host)
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name in names or bool(name and "." not in name)
    return True


def _name_of(host: str) -> str:
    """The lower-case name or address in a Host header; empty where there is none."""
    found = HOST_HEADER.fullmatch(host.strip())
    return found["name"].lower().strip("[]") if found else ""
