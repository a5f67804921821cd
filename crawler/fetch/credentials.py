"""The headers and cookies of a site definition: sent to the site's own hosts and nowhere else.

No other module adds them to a request, so that links, redirects, sitemaps, cells and pages of posts
all go by one rule.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from http.cookiejar import Cookie, DefaultCookiePolicy
from itertools import islice
from typing import Any, Self
from urllib.parse import urlsplit

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.cookies import CookiesMiddleware
from scrapy.exceptions import NotConfigured
from scrapy.http.cookies import CookieJar

from crawler.extract.wrapper import Wrapper
from crawler.fetch.guard import given_by_user
from crawler.items import Target
from crawler.utils.urls import host_of, within

PORTS = {"http": 80, "https": 443}
# In a request's meta: the host that the cookies were last given for; the name of the cookie jar
# that a request had before it left the site.
GIVEN_FOR = "credentials_given_for"
JAR_AT_HOME = "cookiejar_at_home"
# Cookies of all other hosts are kept apart: a jar sends a host's cookies to all its ports.
ELSEWHERE = "elsewhere"
# Headers that are meant for the next host, or for the proxy, when a redirect leaves the site.
KEPT = frozenset({b"Referer", b"Proxy-Authorization"})
# What a browser has to keep at least (RFC 6265, 6.1).
MOST_OF_A_HOST = 50
MOST = 3000
# Servers refuse longer headers: one page's cookies would cost all pages of its host.
MOST_BYTES = 8000


class OwnPlaces:
    """Where a site's headers and cookies may go.

    urls:    what the user gave: their hosts with and without `www.`, at the same scheme and port,
             and at https with its usual port if the URL is http with its usual port
    domains: these and their subdomains too, at usual ports and those of `urls`, and by http only
             if none of `urls` is https
    """

    def __init__(self, urls: Sequence[str], domains: Sequence[str] = ()) -> None:
        self._places = {place for place in map(_place, urls) if place is not None}
        self._places |= {
            ("https", host, 443)
            for scheme, host, port in self._places
            if (scheme, port) == ("http", 80)
        }
        self._ports = {(scheme, port) for scheme, _, port in self._places} | set(PORTS.items())
        if any(url[:6].lower() == "https:" for url in urls):
            self._ports = {(scheme, port) for scheme, port in self._ports if scheme == "https"}
        self._domains = domains

    def cover(self, url: str) -> bool:
        """Whether a URL leads to one of them."""
        place = _place(url)
        if place is None:
            return False
        scheme, _, port = place
        if place in self._places:
            return True
        return (scheme, port) in self._ports and within(host_of(url), self._domains)


class CredentialsMiddleware:
    """Adds a site definition's headers and cookies to requests for its own pages.

    From any other request it removes them, and a redirect that leaves the site loses all headers
    that the site's request had.
    """

    def __init__(self, wrapper: Wrapper) -> None:
        cells = [cell.url for cell in wrapper.cells.values() if cell.url]
        urls = list(wrapper.start_urls) or cells
        # A list of feeds names no URL: each feed is a site of its own.
        self._own = OwnPlaces(urls, wrapper.allowed_domains) if urls else None
        self._headers, self._cookies = wrapper.headers, wrapper.cookies

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """The middleware of a crawl; NotConfigured without a site definition."""
        wrapper = getattr(crawler.spider, "wrapper", None)
        if not isinstance(wrapper, Wrapper):
            raise NotConfigured
        return cls(wrapper)

    def process_request(self, request: Request) -> None:
        """Add the headers and cookies, or remove them."""
        if urlsplit(request.url).scheme not in PORTS:
            return
        if self._is_own(request):
            self._give(request)
        else:
            self._withhold(request)

    def _is_own(self, request: Request) -> bool:
        if self._own is not None:
            return self._own.cover(request.url)
        given = given_by_user(request)
        return given is not None and OwnPlaces([given]).cover(request.url)

    def _give(self, request: Request) -> None:
        meta = request.meta
        is_back = JAR_AT_HOME in meta
        if is_back:
            meta["cookiejar"] = meta.pop(JAR_AT_HOME)
        if not isinstance(meta.get("target"), Target):
            return
        for name, value in self._headers.items():
            if is_back or name not in request.headers:
                request.headers[name] = value
        # After a redirect on the same host, its jar may hold newer ones.
        if meta.get(GIVEN_FOR) != (host := host_of(request.url)):
            meta[GIVEN_FOR] = host
            if self._cookies:
                # For all paths: by its folder, a jar would hold and send one cookie many times.
                own = [cookie | {"path": "/"} for cookie in _pairs(self._cookies)]
                request.cookies = own + _pairs(request.cookies)

    def _withhold(self, request: Request) -> None:
        meta = request.meta
        meta.setdefault(JAR_AT_HOME, meta.get("cookiejar"))
        meta["cookiejar"] = ELSEWHERE
        meta.pop(GIVEN_FOR, None)
        request.cookies = [
            cookie for cookie in _pairs(request.cookies) if cookie.get("name") not in self._cookies
        ]
        for name in self._headers:
            request.headers.pop(name, None)
        if meta.get("redirect_times"):
            for name in request.headers.keys() - KEPT:
                del request.headers[name]


def _pairs(cookies: Any) -> list[Any]:
    """Cookies in the longer of the two forms that Scrapy takes."""
    if isinstance(cookies, dict):
        return [{"name": name, "value": value} for name, value in cookies.items()]
    return list(cookies)


def _place(url: str) -> tuple[str, str, int] | None:
    """Scheme, host without `www.`, and port of a web URL."""
    try:
        parts = urlsplit(url)
        scheme = parts.scheme.lower()
        port = parts.port or PORTS.get(scheme)
    except ValueError:
        return None
    host = host_of(url).removeprefix("www.")
    return (scheme, host, port) if host and port is not None else None


class FewCookiesMiddleware(CookiesMiddleware):
    """Scrapy's, which forgets the oldest cookies of a host that has many, and of many hosts.

    A cookie without a domain is sent to the host that set it, and not to its subdomains (RFC 6265,
    5.3); by Python's default it is.
    """

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        strict = DefaultCookiePolicy.DomainStrictNonDomain
        policy = DefaultCookiePolicy(strict_ns_domain=strict)
        self.jars = defaultdict(partial(CookieJar, policy))

    def _process_cookies(
        self, cookies: Iterable[Cookie], *, jar: CookieJar, request: Request
    ) -> None:
        small = (cookie for cookie in cookies if _size(cookie) <= MOST_BYTES)
        if kept := list(islice(small, MOST_OF_A_HOST)):
            super()._process_cookies(kept, jar=jar, request=request)
            forget(jar)


def forget(jar: CookieJar) -> None:
    """Keep to the limits; the newest stay."""
    whole = 0
    for host, paths in reversed(list(jar._cookies.items())):
        of_host = [cookie for names in paths.values() for cookie in names.values()]
        room, left = MOST_BYTES, min(MOST_OF_A_HOST, MOST - whole)
        for cookie in reversed(of_host):
            room, left = room - _size(cookie), left - 1
            if room < 0 or left < 0:
                jar.clear(host, cookie.path, cookie.name)
            else:
                whole += 1
        for path in [path for path, names in paths.items() if not names]:
            jar.clear(host, path)
        if not paths:
            jar.clear(host)


def _size(cookie: Cookie) -> int:
    # With what stands between two of them.
    return len(cookie.name) + len(cookie.value or "") + 3
