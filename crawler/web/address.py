"""Addresses to listen on, as `[HOST:]PORT`, and those by which clients are counted."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from crawler.errors import ConfigError

LOCAL = "127.0.0.1"
MAX_PORT = 65_535
_ADDRESS = re.compile(r"(?:(?P<host>[^:\[\]]+|\[[0-9A-Fa-f:.]+\]):)?(?P<port>\d{1,5})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Address:
    """An IP address of this machine and a port; port 0: any free port."""

    host: str
    port: int


def address_of(text: str, source: str) -> Address:
    """Parse an address; the default host is loopback. Raises ConfigError, which names `source`."""
    match = _ADDRESS.fullmatch(text.strip())
    if not match or int(match["port"]) > MAX_PORT:
        raise ConfigError(f"{source}: {text!r} is not [HOST:]PORT. Examples: 9464, 0.0.0.0:9464")
    host = (match["host"] or LOCAL).strip("[]")
    if host == "localhost":
        host = LOCAL
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise ConfigError(f"{source}: {host!r} is not an IP address. Example: 127.0.0.1") from None
    return Address(host, int(match["port"]))


def client_address(host: str) -> str:
    """Return the address by which connections and failed sign-ins are counted.

    For IPv6 this is the /64 network, because a single user usually has a whole one.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4:
        return str(address)
    return str(address.ipv4_mapped or ipaddress.ip_network((int(address), 64), strict=False))
