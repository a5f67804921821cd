"""The gate before private networks: nothing leads there that the user has not named or listed.

Hosts written as addresses are checked before anything else; names when they are connected to, so
that no second answer of a name server can lead elsewhere. A proxy connects by itself, so that
behind one only what is written can be checked.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, Self

from scrapy import Request
from scrapy.crawler import Crawler

from crawler.addresses import Address, Named, host_and_port, literal, usable
from crawler.config import Config
from crawler.errors import LITERAL_WAY_OUT, WAY_OUT, OffLimits
from crawler.extract.wrapper import Wrapper
from crawler.items import Kind, Target
from crawler.utils.urls import host_of

logger = logging.getLogger(__name__)
# In a request's meta: the request for whose sake it is made; the URL that the user typed for it.
SAKE = "for_the_sake_of"
TYPED = "typed_by_the_user"
# Refused hosts that have a line of their own in the log.
MAX_LOGGED_HOSTS = 100


class Gate:
    """Says which requests of a crawl may lead into private networks."""

    def __init__(self, named: Named, *, is_open: bool) -> None:
        self._named = named
        self._is_open = is_open
        self._refused: set[str] = set()

    @classmethod
    def of(cls, crawler: Crawler) -> Self:
        """The gate of a crawl, by what its spider names."""
        config = Config.of(crawler.settings)
        named = Named.of(_urls_of(crawler.spider), config.private_hosts)
        return cls(named, is_open=config.private_addresses)

    def is_named(self, request: Request) -> bool:
        """Whether the user has listed the request's host and port, or named them by an address.

        The address is that of a start URL, a cell, the request's feed or a URL that the user typed.
        """
        if self._named.cover(request.url):
            return True
        given = given_by_user(request)
        return given is not None and Named.of([given]).cover(request.url)

    def passage(self, request: Request) -> Passage:
        """How the connection for a request is to be made.

        Raises OffLimits if the host is written as an address that may not be asked.
        """
        host, named = host_of(request.url), self.is_named(request)
        written = literal(host)
        passage = Passage(private=named, anywhere=self._is_open or (named and written is not None))
        if written is not None and not passage.let_through([written]):
            raise OffLimits(request.url, refusal(request.url, [written]))
        return passage

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
class Passage:
    """Lets the addresses of one host through, or not; remembers those it refused.

    private:  addresses of private networks too      anywhere: all there are
    """

    private: bool
    anywhere: bool
    refused: list[Address] = field(default_factory=list)

    def let_through(self, found: list[Address]) -> list[Address]:
        """Those of a host's addresses that may be connected to."""
        if self.anywhere:
            return found
        allowed = usable(found, private=self.private)
        self.refused = [] if allowed else found
        return allowed


def refusal(url: str, found: list[Address], *, is_named: bool = False) -> str:
    """Return why a URL's host is not asked, with the host and port that the user may list."""
    place = host_and_port(url)
    if is_named:
        return f"{place} leads to {found[0]}, where no name may lead ({LITERAL_WAY_OUT})"
    leads = "" if literal(host_of(url)) else f" ({found[0]})"
    return f"{place} is not on the public Internet{leads} ({WAY_OUT})"


def given_by_user(request: Request) -> str | None:
    """Return the URL that a user gave for a request: one that they typed, or their feed."""
    cause = request.meta.get(SAKE, request)
    return cause.meta.get(TYPED) or _feed_of(cause.meta.get("target"))


def _urls_of(spider: Any) -> list[str]:
    """The URLs that a spider's user has written."""
    wrapper = getattr(spider, "wrapper", None)
    if isinstance(wrapper, Wrapper):
        return [*wrapper.start_urls, *(cell.url for cell in wrapper.cells.values() if cell.url)]
    return list(spider.start_urls)


def _feed_of(target: Any) -> str | None:
    """The feed that a target is, or whose post's page it is: users add feeds themselves."""
    if not isinstance(target, Target):
        return None
    if target.kind is Kind.FEED:
        return target.url
    # A post's key is the spider, its feed's URL and its id.
    return target.post.split(" ")[1] if target.post else None
