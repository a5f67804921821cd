"""Canonical URLs: the identity of a target."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
    segments = []
    for segment in parts.path.split("/"):
        head, *parameters = segment.split(";")
        segments.append(";".join([head, *(x for x in parameters if not _matches(_name(x), strip))]))
    path = "/".join(segments)
    # The query is cut as text: decoding it would lose escapes of other encodings than UTF-8.
    query = "&".join(x for x in parts.query.split("&") if not _matches(_name(x), strip))
    kept = urlunsplit((parts.scheme, netloc, path, query, ""))
    return canonicalize_url(kept.strip(BLANKS))


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


DIGITS = re.compile(r"\d+")
NUMBER, WORD, REST = "{number}", "{word}", "{…}"
SEPARATORS = re.compile(r"[-_.,;:+~=!]")
EXTENSION = re.compile(r"\.[A-Za-z]\w{0,4}$")
# Parts of a path and parameters of a query beyond these are not told apart.
MAX_PARTS, MAX_PARAMETERS = 8, 4
# This many different texts in one place are parts of a shape each; more are a `{word}`.
MAX_SIBLINGS = 8
# From this many on, texts that hardly repeat are a `{word}`.
MIN_WORDS = 3
Parts = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """URLs that differ in words and numbers only.

    text:    a path with `{word}` and `{number}`; with the host where the URLs have several
    count:   how many URLs
    example: the first of them
    """

    text: str
    count: int
    example: str


def shapes(urls: Iterable[str]) -> list[Shape]:
    """The shapes of some URLs, the most frequent first; URLs that cannot be read are left out.

    Takes time linear in the text of the URLs.
    """
    groups: dict[tuple[str, int, str, str], list[tuple[Parts, str]]] = defaultdict(list)
    for url in urls:
        try:
            split = urlsplit(url)
        except ValueError:
            continue
        pieces = [DIGITS.sub(NUMBER, part) for part in split.path.split("/", MAX_PARTS + 1)[1:]]
        parts = tuple(pieces[:MAX_PARTS]) + ((REST,) if len(pieces) > MAX_PARTS else ())
        groups[split.netloc, len(parts), _end(parts), _query(split.query)].append((parts, url))
    several = len({host for host, *_ in groups}) > 1
    found = [
        Shape(f"{host if several else ''}/{'/'.join(parts)}{query}", len(members), members[0])
        for (host, count, _, query), rows in groups.items()
        for parts, members in _grouped(rows, count)
    ]
    return sorted(found, key=lambda shape: -shape.count)


def _end(parts: Parts) -> str:
    """How a path ends: with a slash, with an extension such as `.html`, or in another way."""
    last = parts[-1] if parts else ""
    return last and (found[0] if (found := EXTENSION.search(last)) else WORD)


def _query(query: str) -> str:
    """The query with `{number}` and `{word}` for values."""
    if not query:
        return ""
    found = []
    for parameter in query.split("&", MAX_PARAMETERS)[:MAX_PARAMETERS]:
        name, equals, value = parameter.partition("=")
        shown = (NUMBER if value.isdigit() else WORD) if value else ""
        found.append(f"{DIGITS.sub(NUMBER, name)}{equals}{shown}")
    more = "&…" if query.count("&") >= MAX_PARAMETERS else ""
    return f"?{'&'.join(found)}{more}"


def _grouped(rows: list[tuple[Parts, str]], count: int) -> list[tuple[Parts, list[str]]]:
    """URLs by shape. rows: parts and URL of each; count: parts that all of them have."""
    groups: list[tuple[Parts, list[tuple[Parts, str]]]] = [((), rows)]
    for place in range(count):
        refined = []
        for before, members in groups:
            by_text: dict[str, list[tuple[Parts, str]]] = defaultdict(list)
            for member in members:
                by_text[member[0][place]].append(member)
            different = len(by_text)
            if different > MAX_SIBLINGS or (
                different >= MIN_WORDS and different * 2 > len(members)
            ):
                refined.append(((*before, _word(list(by_text))), members))
            else:
                refined += [((*before, text), some) for text, some in by_text.items()]
        groups = refined
    return [(parts, [url for _, url in members]) for parts, members in groups]


def _word(texts: Sequence[str]) -> str:
    """`{word}` between what all texts begin and end with, cut at separators."""
    start = _common_start(texts)
    ends = [found.end() for found in SEPARATORS.finditer(start)]
    start = start[: ends[-1]] if ends else ""
    end = _common_start([text[len(start) :][::-1] for text in texts])[::-1]
    first = SEPARATORS.search(end)
    return f"{start}{WORD}{end[first.start() :] if first else ''}"


def _common_start(texts: Sequence[str]) -> str:
    low, high = min(texts), max(texts)
    pairs = enumerate(zip(low, high, strict=False))
    return low[: next((i for i, (a, b) in pairs if a != b), min(len(low), len(high)))]
