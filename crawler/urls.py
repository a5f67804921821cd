"""Canonical URLs: the identity of a target."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from urllib.parse import unquote_plus, urlsplit, urlunsplit

from w3lib.url import canonicalize_url

# Session ids and the marks that campaigns leave on links: never part of a page's identity.
TRACKING_PARAMETERS = (
    "utm_*", "gclid", "gclsrc", "dclid", "fbclid", "msclkid", "yclid", "twclid", "ttclid",
    "mc_cid", "mc_eid", "_ga", "_gl", "igshid", "phpsessid", "jsessionid", "aspsessionid*",
)  # fmt: skip


# White space and control characters, which end no URL.
BLANKS = "".join(map(chr, range(33)))
# Files that a folder's URL stands for.
INDEXES = ("index.html", "index.htm", "index.php", "default.html", "default.aspx")
SUFFIXES = ("html", "htm", "php")
_INDEX = re.compile("|".join(map(re.escape, INDEXES)))
USUAL_PORTS = {"http": ":80", "https": ":443"}


@lru_cache(maxsize=16_384)
def canonical(url: str, strip: tuple[str, ...] = TRACKING_PARAMETERS) -> str:
    """The canonical form of an absolute URL.

    url:   absolute http(s) URL
    strip: names of query parameters to leave out (`*` is a wildcard, case does not matter)

    Fragments go, the query is sorted, host and percent-escapes are normalised (w3lib), the port
    that goes without saying is left out. Raises ValueError where the URL cannot be read.
    """
    parts = urlsplit(url.strip(BLANKS).partition("#")[0])
    netloc = parts.netloc.removesuffix(USUAL_PORTS.get(parts.scheme, "")) or parts.netloc
    path = "/".join(_without_session(part, strip) for part in parts.path.split("/"))
    # The query is cut as text: decoding it would lose escapes of other encodings than UTF-8.
    query = "&".join(x for x in parts.query.split("&") if not _matches(_name(x), strip))
    kept = urlunsplit((parts.scheme, netloc, path, query, ""))
    return canonicalize_url(kept.strip(BLANKS))


def _without_session(segment: str, strip: tuple[str, ...]) -> str:
    head, *parameters = segment.split(";")
    return ";".join([head, *(x for x in parameters if not _matches(_name(x), strip))])


def _name(parameter: str) -> str:
    return unquote_plus(parameter.partition("=")[0])


def _matches(name: str, strip: tuple[str, ...]) -> bool:
    lowered = name.lower()
    return bool(name) and any(fnmatchcase(lowered, pattern.lower()) for pattern in strip)


def item_key(url: str | None, *, is_canonical: bool = False) -> str | None:
    """Return the key under which all sources of one page meet: its canonical URL, without scheme.

    is_canonical: the URL is a target's; only its parameters may differ from the usual form

    None where the URL names no page of its own: there is none, it is not http(s) or cannot be
    read, or it is a site's home page.
    """
    if not url:
        return None
    if not is_canonical or "?" in url or ";" in url:
        try:
            url = canonical(url)
        except ValueError:
            return None
    key = url.partition("://")[2]
    host, _, path = key.partition("/")
    return key if host and path else None


def host_of(url: str) -> str:
    """Host name of a URL, lower case, without port; empty where there is none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def is_http(url: str) -> bool:
    """Whether the URL is absolute, http or https, and names a host."""
    return url[:8].lower().startswith(("http://", "https://")) and bool(host_of(url))


def like(pattern: str) -> str:
    """Return a regular expression that finds a part of a URL; `*` stands for any characters.

    The search takes time proportional to the length of the URL, whatever the pattern is.
    """
    parts = (re.escape(part) for part in pattern.split("*") if part)
    return "".join(f"(?>.*?{part})" for part in parts)


def bare(url: str) -> str:
    """Return a URL without what often differs between two URLs of one page.

    Scheme, `www.`, query, fragment, the name of an index file, a slash at the end, upper case.
    """
    rest = url.partition("#")[0].partition("?")[0].lower()
    rest = rest.removeprefix("https://").removeprefix("http://").removeprefix("www.")
    head, slash, last = rest.rpartition("/")
    if slash and _INDEX.fullmatch(last):
        rest = head
    return rest.rstrip("/")


def variants(url: str) -> list[str]:
    """Return URLs that often lead to the same page as this absolute one."""
    parts = urlsplit(url)
    host = parts.netloc.removeprefix("www.")
    folder = parts.path.rstrip("/")
    head, _, last = folder.rpartition("/")
    if _INDEX.fullmatch(last.lower()):
        folder = head
    paths = [parts.path, folder or "/", f"{folder}/", *(f"{folder}/{name}" for name in INDEXES)]
    stem, dot, suffix = last.rpartition(".")
    if dot and suffix.lower() in SUFFIXES and folder != head:
        paths.append(f"{head}/{stem}")
    elif last and folder != head:
        paths += [f"{head}/{last}.{name}" for name in SUFFIXES]
    paths += [path.lower() for path in paths]
    found = (
        urlunsplit((scheme, netloc, path, query, ""))
        for path in paths
        for query in (parts.query, "")
        for netloc in (host, f"www.{host}")
        for scheme in ("https", "http")
    )
    return [one for one in dict.fromkeys(found) if one != url]


def within(host: str, domains: Sequence[str]) -> bool:
    """Whether `host` is one of `domains` or a subdomain of one."""
    return any(host == domain or host.endswith("." + domain) for domain in domains)
