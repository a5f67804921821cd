"""Send the headers and cookies of a site definition to the site's own hosts only.

No other module adds them to requests, so the same rule covers links, redirects, sitemaps, cells and
pages of posts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from http.cookiejar import Cookie, DefaultCookiePolicy
from itertools import islice
from typing import Any, Self
from urllib.parse import urlsplit

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares import cookies as scrapy_cookies
from scrapy.downloadermiddlewares.cookies import CookiesMiddleware
from scrapy.exceptions import NotConfigured
from scrapy.http import Response
from scrapy.http.cookies import CookieJar
from tldextract import TLDExtract

from crawler.extract.site_definition import Wrapper
from crawler.fetch.guard import given_by_user
from crawler.fetch.places import PLACE_KEYS, OwnPlaces
from crawler.items import Target
from crawler.utils.urls import PORTS, host_of

# Keys in request.meta: the host for which the cookies were last set, and the name of the cookie jar
# that the request used before a redirect left the site.
GIVEN_FOR = "credentials_given_for"
SITE_JAR = "site_cookiejar"
# Name of the cookie jar of foreign hosts. They need their own, because a jar sends the cookies of a
# host to all of its ports.
FOREIGN_JAR = "elsewhere"
# Headers that a request keeps when a redirect leaves the site: they are for the next host or the
# proxy.
KEPT = frozenset({b"Referer", b"Proxy-Authorization"})
# Scrapy checks that a cookie is not for a public suffix such as co.uk. At the first cookie, it
# would download the list of suffixes from a server that the user has not named, and block the crawl
# meanwhile. Use the list in the package instead.
scrapy_cookies._split_domain = TLDExtract(
    cache_dir=None, suffix_list_urls=(), include_psl_private_domains=True
)
# Browsers have to store at least this many cookies (RFC 6265, section 6.1).
MAX_HOST_COOKIES = 50
MAX_COOKIES = 3000
# Maximum size of a host's cookies. Servers reject longer headers, so that one page with large
# cookies would block all pages of its host.
MAX_HOST_BYTES = 8000


class CredentialsMiddleware:
    """Adds a site definition's headers and cookies to requests for its own pages.

    It removes them from all other requests. A redirect that leaves the site loses all headers of
    the original request, except KEPT.
    """

    def __init__(self, wrapper: Wrapper) -> None:
        self._own = OwnPlaces.of(wrapper.model_dump(include=PLACE_KEYS))
        self._headers, self._cookies = wrapper.headers, wrapper.cookies

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Create the middleware; raises NotConfigured if the spider has no site definition."""
        wrapper = getattr(crawler.spider, "wrapper", None)
        if not isinstance(wrapper, Wrapper):
            raise NotConfigured
        return cls(wrapper)

    def process_request(self, request: Request) -> None:
        """Add the headers and cookies to requests for the site, remove them from all others."""
        if urlsplit(request.url).scheme not in PORTS:
            return
        if self._is_own(request):
            self._add_to(request)
        else:
            self._remove_from(request)

    def _is_own(self, request: Request) -> bool:
        # A list of feeds without secrets names no place: each feed counts as its own site.
        if self._own is not None:
            return self._own.cover(request.url)
        return (url := given_by_user(request)) is not None and OwnPlaces([url]).cover(request.url)

    def _add_to(self, request: Request) -> None:
        meta = request.meta
        if is_back := SITE_JAR in meta:
            meta["cookiejar"] = meta.pop(SITE_JAR)
        if not isinstance(meta.get("target"), Target):
            return
        for name, value in self._headers.items():
            if is_back or name not in request.headers:
                request.headers[name] = value
        # Not again after a redirect on the same host: its cookie jar may have newer cookies.
        if meta.get(GIVEN_FOR) != (host := host_of(request.url)):
            meta[GIVEN_FOR] = host
            if self._cookies:
                # Path "/": with its default, the folder of the URL, a jar would store the same
                # cookie once per folder and send it several times.
                own = [cookie | {"path": "/"} for cookie in _pairs(self._cookies)]
                request.cookies = own + _pairs(request.cookies)

    def _remove_from(self, request: Request) -> None:
        meta = request.meta
        meta.setdefault(SITE_JAR, meta.get("cookiejar"))
        meta["cookiejar"] = FOREIGN_JAR
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
    """Return a request's cookies as a list of dicts; Scrapy also allows a dict of values."""
    if isinstance(cookies, dict):
        return [{"name": name, "value": value} for name, value in cookies.items()]
    return list(cookies)


class FewCookiesMiddleware(CookiesMiddleware):
    """Scrapy's cookie middleware with limits per host and in total; drops the oldest cookies.

    A cookie without a Domain attribute is sent only to the host that set it (RFC 6265, section
    5.3). By default, Python's http.cookiejar sends it to subdomains, too.
    """

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        policy = DefaultCookiePolicy(strict_ns_domain=DefaultCookiePolicy.DomainStrictNonDomain)
        self.jars = defaultdict(partial(CookieJar, policy))

    def process_request(self, request: Request) -> None:  # type: ignore[override] # Scrapy passes no spider
        """Add the cookies of the request's jar, unless there are none."""
        jar = self.jars[request.meta.get("cookiejar")]
        if request.cookies or jar._cookies or b"Cookie" in request.headers:
            super().process_request(request)

    def process_response(self, request: Request, response: Response) -> Request | Response:  # type: ignore[override] # Scrapy passes no spider
        """Keep the cookies of a response; most responses have none."""
        if b"Set-Cookie" not in response.headers and b"Set-Cookie2" not in response.headers:
            return response
        return super().process_response(request, response)

    def _process_cookies(
        self, cookies: Iterable[Cookie], *, jar: CookieJar, request: Request
    ) -> None:
        small = (cookie for cookie in cookies if _size(cookie) <= MAX_HOST_BYTES)
        if kept := list(islice(small, MAX_HOST_COOKIES)):
            super()._process_cookies(kept, jar=jar, request=request)
            drop_oldest(jar)


def drop_oldest(jar: CookieJar) -> None:
    """Drop the oldest cookies until the jar is within the limits."""
    total = 0
    for host, paths in reversed(list(jar._cookies.items())):
        of_host = [cookie for names in paths.values() for cookie in names.values()]
        room, left = MAX_HOST_BYTES, min(MAX_HOST_COOKIES, MAX_COOKIES - total)
        for cookie in reversed(of_host):
            room, left = room - _size(cookie), left - 1
            if room < 0 or left < 0:
                jar.clear(host, cookie.path, cookie.name)
            else:
                total += 1
        for path in [path for path, names in paths.items() if not names]:
            jar.clear(host, path)
        if not paths:
            jar.clear(host)


def _size(cookie: Cookie) -> int:
    # Plus "=" and the separator "; " in the Cookie header.
    return len(cookie.name) + len(cookie.value or "") + 3
