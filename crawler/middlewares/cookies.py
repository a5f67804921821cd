"""Cookies, in bounds: those of one page must not fill the memory, nor the requests for others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from http.cookiejar import Cookie, DefaultCookiePolicy
from itertools import islice

from scrapy import Request
from scrapy.downloadermiddlewares.cookies import CookiesMiddleware
from scrapy.http.cookies import CookieJar

# What a browser has to keep at least (RFC 6265, 6.1).
MOST_OF_A_HOST = 50
MOST = 3000
# Servers refuse longer headers: one page's cookies would cost all pages of its host.
MOST_BYTES = 8000


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
        small = (one for one in cookies if _size(one) <= MOST_BYTES)
        if some := list(islice(small, MOST_OF_A_HOST)):
            super()._process_cookies(some, jar=jar, request=request)
            forget(jar)


def forget(jar: CookieJar) -> None:
    """Keep to the limits; the newest stay."""
    whole = 0
    for host, paths in reversed(list(jar._cookies.items())):
        known = [cookie for names in paths.values() for cookie in names.values()]
        room, left = MOST_BYTES, min(MOST_OF_A_HOST, MOST - whole)
        for cookie in reversed(known):
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
