"""Cookies, in bounds: a site that sets new ones with every page must not fill the memory."""

from __future__ import annotations

from collections.abc import Iterable
from http.cookiejar import Cookie
from itertools import islice

from scrapy import Request
from scrapy.downloadermiddlewares.cookies import CookiesMiddleware
from scrapy.http.cookies import CookieJar

# What a browser has to keep at least (RFC 6265, 6.1).
MOST_BYTES = 4096
MOST_OF_A_HOST = 50
MOST = 3000


class FewCookiesMiddleware(CookiesMiddleware):
    """Scrapy's, which forgets the oldest cookies of a host that has many, and of many hosts."""

    def _process_cookies(
        self, cookies: Iterable[Cookie], *, jar: CookieJar, request: Request
    ) -> None:
        small = (one for one in cookies if len(one.name) + len(one.value or "") <= MOST_BYTES)
        if some := list(islice(small, MOST_OF_A_HOST)):
            super()._process_cookies(some, jar=jar, request=request)
            forget(jar)


def forget(jar: CookieJar) -> None:
    """Keep to the limits."""
    whole = 0
    for host, paths in reversed(list(jar._cookies.items())):
        known = [(path, name) for path, names in paths.items() for name in names]
        for path, name in known[:-MOST_OF_A_HOST]:
            jar.clear(host, path, name)
        whole += min(len(known), MOST_OF_A_HOST)
        if whole > MOST:
            jar.clear(host)
