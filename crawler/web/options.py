"""Options of `scrapy web` and `scrapy feeds push`: addresses, trusted proxies, subscriptions.

Also parses `[HOST:]PORT`, and returns the addresses by which clients are counted.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from urllib.parse import urlsplit

from crawler.errors import ConfigError
from crawler.fetch.guard import is_loopback
from crawler.utils.urls import is_http

LOOPBACK = "127.0.0.1"
PORT, MAX_PORT = 8787, 65_535
ROOT_PATH = re.compile(r"(/[A-Za-z0-9_.~-]+)+", re.ASCII)
_ADDRESS = re.compile(r"(?:(?P<host>[^:\[\]]+|\[[0-9A-Fa-f:.]+\]):)?(?P<port>\d{1,5})", re.ASCII)
Network = IPv4Network | IPv6Network
MAX_URL_CHARACTERS = 500
LEASE_DAYS = (1 / 24, 30.0)
EXAMPLE_URL = "https://public.example/push"
# Path of the callback in the web app.
CALLBACK = "/websub"
LEASE, CHECK = "10", "60"


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
    return Address(ip_of(match["host"] or LOOPBACK, source), int(match["port"]))


def ip_of(text: str, source: str) -> str:
    """Return an IP address of this machine. Raises ConfigError, which names `source`."""
    host = text.strip("[]")
    if host == "localhost":
        return LOOPBACK
    try:
        ip_address(host)
    except ValueError:
        raise ConfigError(
            f"{source}: {host!r} is not an IP address. Use 127.0.0.1 for this machine only, or "
            "0.0.0.0 for all addresses of this machine"
        ) from None
    return host


def port_of(text: str, source: str) -> int:
    """Return a port; 0 is any free port. Raises ConfigError, which names `source`."""
    if not re.fullmatch(r"\d{1,5}", text, re.ASCII) or int(text) > MAX_PORT:
        raise ConfigError(
            f"{source}: {text!r} is not a port. Use a number from 1024 to {MAX_PORT}, or 0 for any "
            "free port"
        )
    return int(text)


def client_address(host: str) -> str:
    """Return the address by which connections and failed sign-ins are counted.

    For IPv6 this is the /64 network, because a single user usually has a whole /64.
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
    proxies:    networks whose X-Forwarded-* headers are trusted
    hosts:      host names accepted in requests, in addition to those of this machine
    settings:   `-s NAME=VALUE` words for the commands and page fetches that users start
    dashboards: folder of templates of dashboards; None: the built-in page of all cells
    push:       subscriptions to request from WebSub hubs; None: no pushes
    service:    whether the app crawls what is due, while no other service does
    hosts_setting: where `hosts` can be changed, for the response to requests for other names
    """

    host: str = LOOPBACK
    port: int = PORT
    root_path: str = ""
    proxies: tuple[Network, ...] = ()
    hosts: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    dashboards: Path | None = None
    push: SubscriptionOptions | None = None
    service: bool = False
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


@dataclass(frozen=True, slots=True)
class SubscriptionOptions:
    """Options of the requests for subscriptions.

    callback:      public URL of this server, without a trailing slash
    lease:         lease to request
    check_seconds: interval between checks for feeds to subscribe to
    """

    callback: str
    lease: timedelta
    check_seconds: float


@dataclass(frozen=True, slots=True)
class PushOptions:
    """Validated options of `scrapy feeds push`.

    seconds: time after which the server exits; None: run until stopped
    """

    subscriptions: SubscriptionOptions
    bind: str
    port: int
    seconds: float | None
    unsubscribe: bool


def add_push_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `scrapy feeds push`."""
    parser.add_argument(
        "--callback", metavar="URL", help=f"public URL of this server, such as {EXAMPLE_URL}"
    )
    parser.add_argument(
        "--bind",
        metavar="ADDRESS",
        default=LOOPBACK,
        help=f"address to listen on (default: {LOOPBACK})",
    )
    parser.add_argument(
        "--port", metavar="N", default="8075", help="port to listen on (default: 8075)"
    )
    _add_times(parser, "--")
    parser.add_argument("--for", dest="for_seconds", metavar="S", help="stop after S seconds")
    parser.add_argument(
        "--unsubscribe", action="store_true", help="unsubscribe from all hubs at the end"
    )


def add_options_of_app(parser: argparse.ArgumentParser) -> None:
    """Add the options of `scrapy web` for pushes."""
    parser.add_argument(
        "--public-url", metavar="URL",
        help="URL at which WebSub hubs reach this app, such as https://public.example; subscribes "
        "to the hubs of feeds, and requires users (default: no pushes)",
    )  # fmt: skip
    _add_times(parser, "--push-")


def _add_times(parser: argparse.ArgumentParser, prefix: str) -> None:
    """Add the options for the times of subscriptions, whose names begin with the prefix."""
    parser.add_argument(
        f"{prefix}lease-days", metavar="D", default=LEASE,
        help=f"lease to request from hubs, in days (default: {LEASE})",
    )  # fmt: skip
    parser.add_argument(
        f"{prefix}check-seconds", metavar="S", default=CHECK,
        help=f"time between checks for feeds to subscribe to (default: {CHECK})",
    )  # fmt: skip


def push_options_of(opts: argparse.Namespace) -> PushOptions:
    """Validate the options; raises ConfigError."""
    days = _number(opts.lease_days, "--lease-days", *LEASE_DAYS)
    check_seconds = _number(opts.check_seconds, "--check-seconds", 1, 3600)
    seconds = opts.for_seconds
    return PushOptions(
        subscriptions=SubscriptionOptions(
            public_url(opts.callback, "--callback"), timedelta(days=days), check_seconds
        ),
        bind=opts.bind,
        port=port_of(opts.port, "--port"),
        seconds=None if seconds is None else _number(seconds, "--for", 0, 1e8),
        unsubscribe=opts.unsubscribe,
    )


def subscriptions_of(opts: argparse.Namespace) -> SubscriptionOptions | None:
    """Validate the options of `scrapy web`; None without `--public-url`. Raises ConfigError."""
    if opts.public_url is None:
        return None
    days = _number(opts.push_lease_days, "--push-lease-days", *LEASE_DAYS)
    seconds = _number(opts.push_check_seconds, "--push-check-seconds", 1, 3600)
    public = public_url(opts.public_url, "--public-url")
    return SubscriptionOptions(public + CALLBACK, timedelta(days=days), seconds)


def public_url(url: str | None, option: str) -> str:
    """Return a public URL without a trailing slash; raises ConfigError."""
    if not url:
        raise ConfigError(
            f"{option} is required: the public URL of this server, such as {EXAMPLE_URL}"
        )
    try:
        parts = urlsplit(url)
        bad = not is_http(url) or not url.isascii() or "@" in parts.netloc or " " in url
        bad = bad or bool(parts.query or parts.fragment) or parts.port == 0
    except ValueError:
        bad = True
    if bad or len(url) > MAX_URL_CHARACTERS:
        raise ConfigError(
            f"{option}: {url[:MAX_URL_CHARACTERS]!r} is not an http or https URL such as "
            f"{EXAMPLE_URL}"
        )
    return url.rstrip("/")


def _number(text: str, option: str, low: float, high: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise ConfigError(f"{option}: {text!r} is not a number from {low:.3g} to {high:,.10g}")
    return value
