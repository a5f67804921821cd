"""Prevent requests to private networks, whatever the notation or encapsulation of an address.

Freshet connects to a host in a private network only if the user named the host. `usable` implements
the rule. Crawls apply it through a `Guard`, requests to WebSub hubs through `addresses_for`.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import socket
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from typing import Any, Self

from scrapy import Request
from scrapy.crawler import Crawler
from twisted.internet.interfaces import (
    IHostnameResolver,
    IReactorPluggableNameResolver,
    IResolutionReceiver,
)
from zope.interface import implementer  # type: ignore[import-untyped]

from crawler.config import Config
from crawler.errors import ALLOW_ADDRESS_HINT, ALLOW_HOST_HINT, OffLimits
from crawler.extract.site_definition import Wrapper
from crawler.items import Kind, Target
from crawler.utils.urls import host_of, place_of, site_of

logger = logging.getLogger(__name__)
Address = IPv4Address | IPv6Address
# Keys in request.meta: the request that caused this one; the URL that the user typed for it.
ON_BEHALF_OF = "on_behalf_of"
TYPED = "typed_by_the_user"
# Maximum number of refused hosts that are logged.
MAX_LOGGED_HOSTS = 100
RESOLVE_SECONDS = 10.0
HOST_HEADER = re.compile(r"(?P<name>[^\s:\[\]]+|\[[0-9a-fA-F:.]+\])(:\d{1,5})?")
# The only range allocated for the public IPv6 Internet so far.
GLOBAL_UNICAST = IPv6Network("2000::/3")
# IPv4 addresses embedded in IPv6 addresses by a NAT64 translator (RFC 6052).
TRANSLATED = IPv6Network("64:ff9b::/96")


def usable(addresses: Iterable[Address], *, private: bool) -> list[Address]:
    """Return the addresses of a host that Freshet may connect to, in their order.

    private: allow addresses in private networks if none is public. Multicast, unspecified,
             reserved and link-local addresses (including cloud metadata) are never allowed
    """
    allowed = []
    for address in addresses:
        inner = _unwrapped(address)
        is_special = inner.is_multicast or inner.is_unspecified or inner.is_reserved
        if inner.is_loopback or not (is_special or inner.is_link_local):
            allowed.append(address)
    return [address for address in allowed if is_public(address)] or (allowed if private else [])


def is_public(address: Address) -> bool:
    """Return whether an address, or the IPv4 address embedded in it, is on the public Internet."""
    inner = _unwrapped(address)
    if isinstance(inner, IPv6Address) and inner not in GLOBAL_UNICAST:
        return False
    return inner.is_global and not inner.is_multicast


def _unwrapped(address: Address) -> Address:
    if isinstance(address, IPv4Address):
        return address
    if address in TRANSLATED:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


@lru_cache(maxsize=1024)
def literal(host: str) -> Address | None:
    """Return the address if a host is an IP address or `localhost`; None for other names.

    IPv4 addresses may be dotted, short, decimal, octal or hexadecimal, as in `inet_aton`.
    """
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
    """Hosts and ports named by the user, which may be in private networks.

    A host name in a URL is not enough: its DNS could point to any machine.
    """

    places: frozenset[tuple[str, int]] = frozenset()

    @classmethod
    def of(cls, urls: Iterable[str] = (), listed: Iterable[str] = ()) -> Self:
        """Collect the URLs whose host is an IP address, and the listed HOST:PORT pairs.

        `localhost` counts as an address. Host names match with and without `www.`.
        """
        literals = (url for url in urls if literal(host_of(url)) is not None)
        named = (f"http://{place}" for place in listed)
        return cls(frozenset(place for place in map(site_of, (*literals, *named)) if place[0]))

    def cover(self, url: str) -> bool:
        """Return whether a URL has one of these hosts and ports."""
        return site_of(url) in self.places


def host_and_port(url: str) -> str:
    """Return HOST:PORT of a web URL, in the format of FRESHET_PRIVATE_HOSTS."""
    host, port = host_of(url), place_of(url)[2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(address: str) -> bool:
    """Return whether a host is a loopback address; IPv6 addresses must have no brackets."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def is_local(host: str) -> bool:
    """Return whether a Host header is `localhost` or a loopback address.

    Other names are rejected, because DNS rebinding can point any name to this machine.
    """
    name = _name_of(host)
    return name == "localhost" or is_loopback(name)


def is_in_network(host: str, names: Collection[str]) -> bool:
    """Return whether a Host header is an IP address, a name without dots, or one of `names`.

    Other names are rejected, because DNS rebinding can point the name of a malicious web page to
    this machine.
    """
    name = _name_of(host)
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name in names or bool(name and "." not in name)
    return True


def _name_of(host: str) -> str:
    """Return the host name or address in a Host header in lower case; empty if invalid."""
    match = HOST_HEADER.fullmatch(host.strip())
    return match["name"].lower().strip("[]") if match else ""


class Guard:
    """Decides which requests of a crawl may connect to private networks."""

    def __init__(self, named: Named, *, is_open: bool) -> None:
        self._named = named
        self._is_open = is_open
        self._refused: set[str] = set()

    @classmethod
    def of(cls, crawler: Crawler) -> Self:
        """Create the guard of a crawl from the URLs of its spider and the settings."""
        config, spider = Config.of(crawler.settings), crawler.spider
        wrapper = getattr(spider, "wrapper", None)
        if isinstance(wrapper, Wrapper):
            cells = (cell.url for cell in wrapper.cells.values() if cell.url)
            urls = [*wrapper.start_urls, *cells]
        else:
            assert spider is not None
            urls = list(spider.start_urls)
        named = Named.of(urls, config.private_hosts)
        return cls(named, is_open=config.private_addresses)

    def is_named(self, request: Request) -> bool:
        """Return whether the user listed the request's host and port, or gave its IP address.

        The user gives an address in a start URL, a cell, the request's feed, or a typed URL.
        """
        if self._named.cover(request.url):
            return True
        given = given_by_user(request)
        return given is not None and Named.of([given]).cover(request.url)

    def policy(self, request: Request) -> ConnectionPolicy:
        """Return the policy for the connection of a request.

        Raises OffLimits if the URL's host is an IP address to which Freshet may not connect.
        """
        host, named = host_of(request.url), self.is_named(request)
        address = literal(host)
        anywhere = self._is_open or (named and address is not None)
        policy = ConnectionPolicy(private=named, anywhere=anywhere)
        if address is not None and not policy.allowed([address]):
            raise OffLimits(request.url, refusal(request.url, [address]))
        return policy

    def log(self, error: OffLimits) -> None:
        """Log a refused host: once per host and port, and at most MAX_LOGGED_HOSTS of them."""
        place = host_and_port(error.url)
        if place in self._refused or len(self._refused) > MAX_LOGGED_HOSTS:
            return
        self._refused.add(place)
        if len(self._refused) > MAX_LOGGED_HOSTS:
            logger.warning("More hosts refused; only the first %d are logged", MAX_LOGGED_HOSTS)
        else:
            logger.warning("Request refused: %s", error)


@dataclass(slots=True)
class ConnectionPolicy:
    """Filters the addresses of one host, and records refused ones.

    private:       allow addresses in private networks
    anywhere:      allow all addresses
    is_connecting: whether a connection was begun that is not established yet
    """

    private: bool
    anywhere: bool
    refused: list[Address] = field(default_factory=list)
    is_connecting: bool = False

    def allowed(self, addresses: list[Address]) -> list[Address]:
        """Return the addresses that the policy allows; if it allows none, record them all."""
        if self.anywhere:
            return addresses
        allowed = usable(addresses, private=self.private)
        self.refused = [] if allowed else addresses
        return allowed


def refusal(url: str, addresses: list[Address], *, is_named: bool = False) -> str:
    """Return an error message for a refused host, with the setting that allows it."""
    place = host_and_port(url)
    if is_named:
        return f"{place} resolves to a forbidden address: {addresses[0]} ({ALLOW_ADDRESS_HINT})"
    resolved_to = "" if literal(host_of(url)) else f" ({addresses[0]})"
    return f"{place} is not on the public Internet{resolved_to} ({ALLOW_HOST_HINT})"


def given_by_user(request: Request) -> str | None:
    """Return the URL that the user gave for a request: a typed URL, or the URL of the feed."""
    meta = request.meta.get(ON_BEHALF_OF, request).meta
    typed, target = meta.get(TYPED), meta.get("target")
    if typed or not isinstance(target, Target):
        return typed or None
    if target.kind is Kind.FEED:
        return target.url
    # A page of a feed post: the key of a post is "SPIDER FEED_URL ID".
    return target.post.split(" ")[1] if target.post else None


@implementer(IReactorPluggableNameResolver)
class GuardedReactor:
    """Twisted's reactor with a resolver that applies a connection policy."""

    def __init__(self, reactor: Any, policy: ConnectionPolicy) -> None:
        self._reactor = reactor
        self._policy = policy

    @property
    def nameResolver(self) -> Any:  # noqa: N802 - Twisted's name
        """Wrap the reactor's current resolver, which may be replaced at run time."""
        return GuardedResolver(self._reactor.nameResolver, self._policy)

    def installNameResolver(self, resolver: Any) -> Any:  # noqa: N802
        """Install a resolver in the wrapped reactor."""
        return self._reactor.installNameResolver(resolver)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reactor, name)


@implementer(IHostnameResolver)
class GuardedResolver:
    """Resolves names, and returns only addresses that the policy allows."""

    def __init__(self, resolver: Any, policy: ConnectionPolicy) -> None:
        self._resolver = resolver
        self._policy = policy

    def resolveHostName(self, resolutionReceiver: Any, *names: Any, **more: Any) -> Any:  # noqa: N802, N803
        """Resolve a name through an AddressFilter."""
        addresses = AddressFilter(resolutionReceiver, self._policy)
        return self._resolver.resolveHostName(addresses, *names, **more)


@implementer(IResolutionReceiver)
class AddressFilter:
    """Collects all addresses of a name, then passes on those that the policy allows."""

    def __init__(self, receiver: Any, policy: ConnectionPolicy) -> None:
        self._receiver = receiver
        self._policy = policy
        self._addresses: dict[Address, Any] = {}

    def resolutionBegan(self, resolutionInProgress: Any) -> None:  # noqa: N802, N803
        """Pass on the start of the resolution."""
        self._receiver.resolutionBegan(resolutionInProgress)

    def addressResolved(self, address: Any) -> None:  # noqa: N802
        """Collect an address."""
        self._addresses[ipaddress.ip_address(address.host.partition("%")[0])] = address

    def resolutionComplete(self) -> None:  # noqa: N802
        """Pass on the allowed addresses."""
        for address in self._policy.allowed(list(self._addresses)):
            self._receiver.addressResolved(self._addresses[address])
        self._receiver.resolutionComplete()


class NotAllowed(Exception):
    """Raised if Freshet may not connect to a host, or the host has no address."""


async def addresses_for(hub: str, feed: str, listed: Named) -> list[str]:
    """Return the addresses of a hub that Freshet may connect to, in the resolver's order.

    hub:    http or https URL
    feed:   URL of the feed that links to the hub
    listed: hosts and ports that the user allows in private networks

    A hub in a private network is allowed only if it is listed, or if it has the host and port of
    the feed and the feed's URL contains an IP address: a host name can change its address.

    Raises NotAllowed. The caller has to connect to these addresses, without a second DNS query,
    which could return different ones.
    """
    place = host_and_port(hub)
    addresses = await resolved(host_of(hub), int(place.rpartition(":")[2]))
    is_named = listed.cover(hub) or Named.of([feed]).cover(hub)
    if allowed := usable(addresses, private=is_named):
        return [str(address) for address in allowed]
    if not usable(addresses, private=True):
        raise NotAllowed(f"{place} has no usable address")
    raise NotAllowed(f"{place} is not on the public Internet ({ALLOW_HOST_HINT})")


async def resolved(host: str, port: int) -> list[Address]:
    """Return all addresses of a host; raises NotAllowed if it has none."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            rows = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError) as error:
        reason = getattr(error, "strerror", None) or "no answer from the DNS server"
        raise NotAllowed(f"{host}: {reason}") from None
    names = dict.fromkeys(str(row[4][0]).partition("%")[0] for row in rows)
    return [ipaddress.ip_address(name) for name in names]
