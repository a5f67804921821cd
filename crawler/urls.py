"""Canonical URLs: the identity of a target."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from w3lib.url import canonicalize_url

# Session ids and the marks that campaigns leave on links: never part of a page's identity.
TRACKING_PARAMETERS = (
    "utm_*", "gclid", "gclsrc", "dclid", "fbclid", "msclkid", "yclid", "twclid", "ttclid",
    "mc_cid", "mc_eid", "_ga", "_gl", "igshid", "phpsessid", "jsessionid", "aspsessionid*",
)  # fmt: skip


@lru_cache(maxsize=16_384)
def canonical(url: str, strip: Sequence[str] = TRACKING_PARAMETERS) -> str:
    """The canonical form of an absolute URL.

    url:   absolute http(s) URL
    strip: names of query parameters to leave out (`*` is a wildcard, case does not matter)

    Fragments go, the query is sorted, host and percent-escapes are normalised (w3lib).
    Raises ValueError where the URL cannot be read.
    """
    return canonicalize_url(_without(url.strip(), strip) if strip else url.strip())


def _without(url: str, strip: Sequence[str]) -> str:
    parts = urlsplit(url)
    path = _without_path_session(parts.path, strip)
    query = parts.query
    if query and any(_matches(name, strip) for name, _ in parse_qsl(query, True)):
        kept = [(k, v) for k, v in parse_qsl(query, True) if not _matches(k, strip)]
        query = urlencode(kept)
    return urlunsplit((parts.scheme, parts.netloc, path, query, ""))


def _without_path_session(path: str, strip: Sequence[str]) -> str:
    head, mark, tail = path.rpartition(";")
    return head if mark and _matches(tail.partition("=")[0], strip) else path


def _matches(name: str, strip: Sequence[str]) -> bool:
    lowered = name.lower()
    return any(fnmatchcase(lowered, pattern) for pattern in strip)


def host_of(url: str) -> str:
    """Host name of a URL, lower case, without port; empty where there is none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def is_http(url: str) -> bool:
    """Whether the URL is absolute, http or https, and names a host."""
    return url.startswith(("http://", "https://")) and bool(host_of(url))


def within(host: str, domains: Sequence[str]) -> bool:
    """Whether `host` is one of `domains` or a subdomain of one."""
    return any(host == domain or host.endswith("." + domain) for domain in domains)
