"""Options of the web app: where it listens, which proxies it trusts, and who has to sign in.

Also addresses to listen on, as `[HOST:]PORT`, and those by which clients are counted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path

from crawler.errors import ConfigError
from crawler.fetch.guard import is_loopback
from crawler.web.dashboards.sources import Places
from crawler.web.websub.options import SubscriptionOptions

LOCAL = "127.0.0.1"
PORT, MAX_PORT = 8787, 65_535
ROOT_PATH = re.compile(r"(/[A-Za-z0-9_.~-]+)+", re.ASCII)
_ADDRESS = re.compile(r"(?:(?P<host>[^:\[\]]+|\[[0-9A-Fa-f:.]+\]):)?(?P<port>\d{1,5})", re.ASCII)
Network = IPv4Network | IPv6Network


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
        ip_address(host)
    except ValueError:
        raise ConfigError(f"{source}: {host!r} is not an IP address. Example: 127.0.0.1") from None
    return Address(host, int(match["port"]))


def client_address(host: str) -> str:
    """Return the address by which connections and failed sign-ins are counted.

    For IPv6 this is the /64 network, because a single user usually has a whole one.
    """
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4:
        return str(address)
    return str(address.ipv4_mapped or ip_network((int(address), 64), strict=False))


@dataclass(frozen=True, slots=True)
class WebOptions:
    """Validated options of the web app.

    host, port: IP address of this machine and port; port 0: any free port
    root_path:  path under which a reverse proxy publishes the app; empty: `/`
    proxies:    networks whose X-Forwarded-* headers are believed
    hosts:      host names accepted in requests, in addition to those of this machine
    settings:   `-s NAME=VALUE` words for the commands and page fetches that users start
    dashboards: folder of built dashboards; None: `dashboards` in the data folder
    builds:     dashboards to rebuild when their cells change; None: they are only served
    push:       subscriptions to request from WebSub hubs; None: no pushes
    hosts_setting: where `hosts` can be changed, for the response to requests for other names
    """

    host: str = "127.0.0.1"
    port: int = PORT
    root_path: str = ""
    proxies: tuple[Network, ...] = ()
    hosts: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    dashboards: Path | None = None
    builds: Places | None = None
    push: SubscriptionOptions | None = None
    hosts_setting: str = "FRESHET_WEB_HOSTS"

    @property
    def is_private(self) -> bool:
        """Return whether only programs on this machine can reach the app."""
        return is_loopback(self.host) and not self.proxies and not self.hosts

    def trusts(self, address: str) -> bool:
        """Return whether a client is a reverse proxy of this app."""
        try:
            client = ip_address(address.partition("%")[0])
        except ValueError:
            return False
        return any(client in network for network in self.proxies)


def root_path_of(text: str) -> str:
    """Parse `--root-path`; raises ConfigError."""
    path = text.rstrip("/")
    if path and not ROOT_PATH.fullmatch(path):
        raise ConfigError(f"--root-path: {text!r} is not a path. Example: /freshet")
    return path


def proxies_of(texts: Sequence[str]) -> tuple[Network, ...]:
    """Parse the values of `--trusted-proxy`; raises ConfigError."""
    networks = []
    for text in texts:
        try:
            networks.append(ip_network(text.strip()))
        except ValueError:
            raise ConfigError(
                f"--trusted-proxy: {text!r} is not an IP address or network. Examples: 127.0.0.1, "
                "10.0.0.0/8"
            ) from None
    return tuple(networks)
