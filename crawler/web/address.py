"""Addresses to listen on, in the format of options and settings: `[HOST:]PORT`."""

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
