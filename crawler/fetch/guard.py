"""Which addresses Freshet may connect to, however they are written or wrapped.

Hosts in private networks are asked only where the user named them. `usable` decides; crawls go by
it through a `Guard`, requests to WebSub hubs through `addresses_for`.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import socket
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from typing import Any, Self
from urllib.parse import urlsplit

from scrapy import Request
from scrapy.crawler import Crawler
from twisted.internet.interfaces import (
    IHostnameResolver,
    IReactorPluggableNameResolver,
    IResolutionReceiver,
)
from zope.interface import implementer  # type: ignore[import-untyped]

from crawler.config import Config
from crawler.errors import LITERAL_WAY_OUT, WAY_OUT, OffLimits
from crawler.extract.wrapper import Wrapper
from crawler.items import Kind, Target
from crawler.utils.urls import host_of

logger = logging.getLogger(__name__)
Address = IPv4Address | IPv6Address
# In a request's meta: the request for whose sake it is made; the URL that the user typed for it.
SAKE = "for_the_sake_of"
TYPED = "typed_by_the_user"
# Refused hosts that have a line of their own in the log.
MAX_LOGGED_HOSTS = 100
RESOLVE_SECONDS = 10.0
HOST_HEADER = re.compile(r"(?P<name>[^\s:\[\]]+|\[[0-9a-fA-F:.]+\])(:\d{1,5})?")
# What has been given out so far for the public Internet.
GLOBAL_UNICAST = IPv6Network("2000::/3")
# Stands for the IPv4 addresses behind a translator (RFC 6052).
TRANSLATED = IPv6Network("64:ff9b::/96")
# Who names one of these ports means the site, which may move from one to the other.
USUAL_PORTS = {"http": 80, "https": 443}


def usable(addresses: Iterable[Address], *, private: bool) -> list[Address]:
    """Those of a host's addresses that may be asked, in their order.

    private: also those of a private network, where none is public; but never whole nets, nor what
             machines in a cloud tell of themselves
    """
    askable = []
    for address in addresses:
        inner = _unwrapped(address)
        is_net = inner.is_multicast or inner.is_unspecified or inner.is_reserved
        if inner.is_loopback or not (is_net or inner.is_link_local):
            askable.append(address)
    return [address for address in askable if is_public(address)] or (askable if private else [])


def is_public(address: Address) -> bool:
    """Whether an address is one of the public Internet, whatever it is wrapped in."""
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
        named = (f"http://{place}" for place in listed)
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
    match = HOST_HEADER.fullmatch(host.strip())
    return match["name"].lower().strip("[]") if match else ""


class Guard:
    """Says which requests of a crawl may lead into private networks."""

    def __init__(self, named: Named, *, is_open: bool) -> None:
        self._named = named
        self._is_open = is_open
        self._refused: set[str] = set()

    @classmethod
    def of(cls, crawler: Crawler) -> Self:
        """The guard of a crawl, by what its spider names."""
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
        """Whether the user has listed the request's host and port, or named them by an address.

        The address is that of a start URL, a cell, the request's feed or a URL that the user typed.
        """
        if self._named.cover(request.url):
            return True
        given = given_by_user(request)
        return given is not None and Named.of([given]).cover(request.url)

    def policy(self, request: Request) -> ConnectionPolicy:
        """How the connection for a request is to be made.

        Raises OffLimits if the host is written as an address that may not be asked.
        """
        host, named = host_of(request.url), self.is_named(request)
        written = literal(host)
        anywhere = self._is_open or (named and written is not None)
        policy = ConnectionPolicy(private=named, anywhere=anywhere)
        if written is not None and not policy.let_through([written]):
            raise OffLimits(request.url, refusal(request.url, [written]))
        return policy

    def log(self, error: OffLimits) -> None:
        """Log that a host was refused: once for each port, and for a bounded number of them."""
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
    """Lets the addresses of one host through, or not; remembers those it refused.

    private:  addresses of private networks too      anywhere: all there are
    """

    private: bool
    anywhere: bool
    refused: list[Address] = field(default_factory=list)

    def let_through(self, addresses: list[Address]) -> list[Address]:
        """Those of a host's addresses that may be connected to."""
        if self.anywhere:
            return addresses
        allowed = usable(addresses, private=self.private)
        self.refused = [] if allowed else addresses
        return allowed


def refusal(url: str, addresses: list[Address], *, is_named: bool = False) -> str:
    """Return why a URL's host is not asked, with the host and port that the user may list."""
    place = host_and_port(url)
    if is_named:
        return f"{place} leads to {addresses[0]}, where no name may lead ({LITERAL_WAY_OUT})"
    leads = "" if literal(host_of(url)) else f" ({addresses[0]})"
    return f"{place} is not on the public Internet{leads} ({WAY_OUT})"


def given_by_user(request: Request) -> str | None:
    """Return the URL that a user gave for a request: one that they typed, or their feed."""
    meta = request.meta.get(SAKE, request).meta
    typed, target = meta.get(TYPED), meta.get("target")
    if typed or not isinstance(target, Target):
        return typed or None
    if target.kind is Kind.FEED:
        return target.url
    # The page of a feed's post: a post's key is the spider, its feed's URL and its id.
    return target.post.split(" ")[1] if target.post else None


@implementer(IReactorPluggableNameResolver)
class GuardedReactor:
    """Twisted's reactor, with names resolved by a policy."""

    def __init__(self, reactor: Any, policy: ConnectionPolicy) -> None:
        self._reactor = reactor
        self._policy = policy

    @property
    def nameResolver(self) -> Any:  # noqa: N802 - Twisted's name
        """The reactor's resolver of this moment, guarded."""
        return GuardedResolver(self._reactor.nameResolver, self._policy)

    def installNameResolver(self, resolver: Any) -> Any:  # noqa: N802
        """As of the reactor."""
        return self._reactor.installNameResolver(resolver)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reactor, name)


@implementer(IHostnameResolver)
class GuardedResolver:
    """Resolves names, and tells only the addresses that are let through."""

    def __init__(self, resolver: Any, policy: ConnectionPolicy) -> None:
        self._resolver = resolver
        self._policy = policy

    def resolveHostName(self, resolutionReceiver: Any, *names: Any, **more: Any) -> Any:  # noqa: N802, N803
        """As Twisted's interface has it."""
        addresses = AddressFilter(resolutionReceiver, self._policy)
        return self._resolver.resolveHostName(addresses, *names, **more)


@implementer(IResolutionReceiver)
class AddressFilter:
    """Waits for all addresses of a name before it hands on those that are let through."""

    def __init__(self, receiver: Any, policy: ConnectionPolicy) -> None:
        self._receiver = receiver
        self._policy = policy
        self._addresses: dict[Address, Any] = {}

    def resolutionBegan(self, resolutionInProgress: Any) -> None:  # noqa: N802, N803
        """As Twisted's interface has it."""
        self._receiver.resolutionBegan(resolutionInProgress)

    def addressResolved(self, address: Any) -> None:  # noqa: N802
        """Keep one."""
        self._addresses[ipaddress.ip_address(address.host.partition("%")[0])] = address

    def resolutionComplete(self) -> None:  # noqa: N802
        """Hand on what may be connected to."""
        for address in self._policy.let_through(list(self._addresses)):
            self._receiver.addressResolved(self._addresses[address])
        self._receiver.resolutionComplete()


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
    addresses = await resolved(host_of(hub), int(place.rpartition(":")[2]))
    is_named = listed.cover(hub) or Named.of([feed]).cover(hub)
    if allowed := usable(addresses, private=is_named):
        return [str(address) for address in allowed]
    if not usable(addresses, private=True):
        raise NotAllowed(f"{place} has no usable address")
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
