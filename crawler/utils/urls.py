"""Canonicalize, compare and group URLs. The canonical URL is the identity of a target."""

from __future__ import annotations

import base64
import binascii
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any
from urllib.parse import unquote_plus, urljoin, urlsplit, urlunsplit

from w3lib.url import canonicalize_url

# Session ids and campaign parameters, which are never part of a page's identity.
TRACKING_PARAMETERS = (
    "utm_*", "gclid", "gclsrc", "dclid", "gbraid", "wbraid", "gad_source", "gad_campaignid",
    "srsltid", "fbclid", "msclkid", "yclid", "twclid", "ttclid", "li_fat_id", "mc_cid", "mc_eid",
    "_ga", "_gl", "_hsenc", "_hsmi", "mkt_tok", "mtm_*", "igshid", "igsh", "phpsessid",
    "jsessionid", "aspsessionid*", "oscsid", "zenid", "cftoken",
)  # fmt: skip


# A URL without its scheme, such as `shop.example/item/1`.
HOST_FIRST = re.compile(r"[\w-]+(\.[\w-]+)+(:\d+)?(/|$)")
# White space and control characters, which browsers strip from both ends of a URL.
BLANKS = "".join(map(chr, range(33)))
# Files that servers usually return for the URL of a folder.
INDEXES = ("index.html", "index.htm", "index.php", "default.html", "default.aspx")
SUFFIXES = ("html", "htm", "php")
XHTML = "{http://www.w3.org/1999/xhtml}"
BASE_TAGS = ("base", f"{XHTML}base")
# A number that is not part of a percent escape.
_NUMBER = re.compile(r"(?<!%)(?<!%[0-9A-Fa-f])[0-9]+")
_INDEX = re.compile("|".join(map(re.escape, INDEXES)))
PORTS = {"http": 80, "https": 443}
# URLs that are their own canonical form, as most links are: a name in lower case or an IPv4
# address, a port that is not the usual one, and a path of plain segments.
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_PLAIN = re.compile(
    r"https?://(?=[^/]{1,63}/)"
    rf"(?:(?:[a-z0-9]++(?:-[a-z0-9]++)*+\.)++[a-z]{{2,}}+|{_OCTET}(?:\.{_OCTET}){{3}})"
    r"(?::(?!80/|443/)[1-9][0-9]{0,3})?"
    r"(?:/[A-Za-z0-9_~-][A-Za-z0-9_.~-]*+)*+/?+"
)


def is_plain(url: str) -> bool:
    """Return whether a URL is surely its own canonical form, and needs no escapes."""
    return _PLAIN.fullmatch(url) is not None


@lru_cache(maxsize=16_384)
def canonical(url: str, strip: tuple[str, ...] = TRACKING_PARAMETERS) -> str:
    """Return the canonical form of an absolute http(s) URL.

    strip: names of parameters to remove (`*` is a wildcard; names are case-insensitive)

    Removes the fragment and the default port, sorts the query, and normalizes the host and
    percent-escapes (w3lib). Raises ValueError if the URL is invalid.
    """
    # Parsing takes about 20 times as long as this.
    if is_plain(url):
        return url
    parts = urlsplit(url.strip(BLANKS).partition("#")[0])
    netloc = parts.netloc.removesuffix(f":{PORTS.get(parts.scheme)}") or parts.netloc
    segments = []
    for segment in parts.path.split("/"):
        head, *parameters = segment.split(";")
        segments.append(";".join([head, *(x for x in parameters if not _matches(_name(x), strip))]))
    path = "/".join(segments)
    # Split the query as text: decoding it would lose escapes in encodings other than UTF-8.
    query = "&".join(x for x in parts.query.split("&") if not _matches(_name(x), strip))
    kept = urlunsplit((parts.scheme, netloc, path, query, ""))
    return canonicalize_url(kept.strip(BLANKS))


def _name(parameter: str) -> str:
    return unquote_plus(parameter.partition("=")[0])


def _matches(name: str, strip: tuple[str, ...]) -> bool:
    lowered = name.lower()
    return bool(name) and any(fnmatchcase(lowered, pattern.lower()) for pattern in strip)


def item_key(url: str | None, *, is_canonical: bool = False) -> str | None:
    """Return the key of a page that all its sources share: its canonical URL without the scheme.

    is_canonical: the URL belongs to a target, so that only its parameters may need normalizing

    Returns None if the URL does not identify a single page: it is missing, invalid, not http(s),
    or the home page of a site.
    """
    if not url or not url[:5].lower().startswith("http"):
        return None
    if not is_canonical or "?" in url or ";" in url:
        try:
            url = canonical(url)
        except ValueError:
            return None
    key = url.partition("://")[2]
    host, _, path = key.partition("/")
    return key if host and path else None


# Many parts of a crawl need the host of the same URL.
@lru_cache(maxsize=2048)
def host_of(url: str) -> str:
    """Return the host name of a URL in lower case, without port; empty if there is none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


@lru_cache(maxsize=1024)
def place_of(url: str) -> tuple[str, str, int]:
    """Return scheme, host without `www.` and port of a URL; ("", "", 0) if it is invalid.

    The port is 0 if the URL has none and its scheme is unusual.
    """
    try:
        parts = urlsplit(url)
        port = PORTS.get(parts.scheme, 0) if parts.port is None else parts.port
    except ValueError:
        return "", "", 0
    return parts.scheme, host_of(url).removeprefix("www."), port


def site_of(url: str) -> tuple[str, int]:
    """Return host without `www.` and port of a URL, with 80 for port 443: a site may use both."""
    _, host, port = place_of(url)
    return host, 80 if port == 443 else port


def proxy_problem(url: str) -> str | None:
    """Return why requests cannot use a proxy; None if they can."""
    parts = urlsplit(url.strip())
    if parts.scheme.lower() != "http":
        kind = f"{parts.scheme.lower()}:// proxies" if "://" in url else "URLs without http://"
        return f"{kind} are not supported. Use an HTTP proxy, such as http://HOST:PORT"
    try:
        is_valid = bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    return None if is_valid else "not a URL of a proxy, such as http://HOST:PORT"


def without_userinfo(url: str) -> str:
    """Return a valid absolute URL without user name and password, which Freshet does not send."""
    if "@" not in url:
        return url
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def is_http(url: str) -> bool:
    """Return True for an absolute http or https URL with a host."""
    return url[:8].lower().startswith(("http://", "https://")) and bool(host_of(url))


OTHER_SCHEME = re.compile(r"(?!https?:)[A-Za-z][A-Za-z0-9+.-]*:", re.I)
AFTER_PATH = re.compile(r"[?#]")


def joined(base: str, link: str) -> str:
    """Return the absolute URL of a link, resolved as in browsers; empty if the link is invalid."""
    link = link.strip(BLANKS)
    if "\\" in link and not OTHER_SCHEME.match(link):
        # Browsers read a backslash as a slash, except in the query and the fragment.
        end = match.start() if (match := AFTER_PATH.search(link)) else len(link)
        link = link[:end].replace("\\", "/") + link[end:]
    try:
        return urljoin(base, link)
    except ValueError:
        return ""


def base_url(root: Any, url: str) -> str:
    """Return the URL that relative links of a page refer to: its `<base href>`, else its own.

    root: root of the parsed page, of lxml; a page of JSON has no base
    url:  URL of the page

    Scrapy's `get_base_url` reads only the first 4,096 characters of a page.
    """
    for element in root.iter(*BASE_TAGS) if hasattr(root, "iter") else ():
        if (href := element.get("href")) is not None:
            # Browsers ignore a base with an invalid URL.
            return base if is_http(base := joined(url, href)) else url
    return url


def scheme_hint(text: str) -> str:
    """Return a suggestion for an error about a URL; empty unless only its scheme is missing."""
    return f". Did you mean https://{text}?" if HOST_FIRST.match(text) else ""


def target_id(key: str) -> str:
    """Return the id that stands for a target's `_id` in URLs of the web app."""
    return base64.urlsafe_b64encode(key.encode("utf-8", "surrogatepass")).decode().rstrip("=")


def target_key(target: str) -> str | None:
    """Return the `_id` of a target from its id in a URL; None if the id is invalid."""
    try:
        padded = target + "=" * (-len(target) % 4)
        return base64.b64decode(padded, altchars="-_", validate=True).decode()
    except (binascii.Error, UnicodeError, ValueError):
        return None


def like(pattern: str) -> str:
    """Return a regular expression that matches a part of a URL; `*` matches any characters.

    Atomic groups prevent backtracking: a search takes time linear in the length of the URL.
    """
    parts = (re.escape(part) for part in pattern.split("*") if part)
    return "".join(f"(?>.*?{part})" for part in parts)


def bare(url: str) -> str:
    """Remove the parts of a URL that often differ between two URLs of the same page.

    These are scheme, `www.`, query, fragment, index file, trailing slash and upper case.
    """
    rest = url.partition("#")[0].partition("?")[0].lower()
    rest = rest.removeprefix("https://").removeprefix("http://").removeprefix("www.")
    head, slash, last = rest.rpartition("/")
    if slash and _INDEX.fullmatch(last):
        rest = head
    return rest.rstrip("/")


def variants(url: str) -> list[str]:
    """Return URLs that often lead to the same page as this absolute URL."""
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
    urls = (
        urlunsplit((scheme, netloc, path, query, ""))
        for path in paths
        for query in (parts.query, "")
        for netloc in (host, f"www.{host}")
        for scheme in ("https", "http")
    )
    return [variant for variant in dict.fromkeys(urls) if variant != url]


def of_same_list(url: str) -> str:
    """Return a regular expression of the URLs that differ from this one only in numbers.

    Such URLs are the pages of one list, or the months of a calendar. Takes linear time.
    """
    return f"^{_NUMBER.sub('[0-9]+', re.escape(url))}$"


def within(host: str, domains: Sequence[str]) -> bool:
    """Return True if `host` is one of `domains` or a subdomain of one."""
    return any(host == domain or host.endswith("." + domain) for domain in domains)


DIGITS = re.compile(r"\d+")
NUMBER, WORD, REST = "{number}", "{word}", "{…}"
SEPARATORS = re.compile(r"[-_.,;:+~=!]")
EXTENSION = re.compile(r"\.[A-Za-z]\w{0,4}$")
# Path segments and query parameters that shapes distinguish; further ones become `{…}` or `…`.
MAX_PARTS, MAX_PARAMETERS = 8, 4
# Up to this many different segments at one position get a shape each; more become `{word}`.
MAX_SIBLINGS = 8
# At least this many different segments become `{word}` if most of them occur only once.
MIN_WORDS = 3
Parts = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """A group of URLs that differ only in words and numbers.

    text:    path with `{word}` and `{number}`, after the host if the URLs have several hosts
    count:   number of URLs
    example: first of these URLs
    """

    text: str
    count: int
    example: str


def shapes(urls: Iterable[str]) -> list[Shape]:
    """Return the shapes of some URLs, most frequent first. Invalid URLs are ignored.

    Takes time linear in the total length of the URLs.
    """
    groups: dict[tuple[str, int, str, str], list[tuple[Parts, str]]] = defaultdict(list)
    for url in urls:
        try:
            split = urlsplit(url)
        except ValueError:
            continue
        pieces = [DIGITS.sub(NUMBER, part) for part in split.path.split("/", MAX_PARTS + 1)[1:]]
        parts = tuple(pieces[:MAX_PARTS]) + ((REST,) if len(pieces) > MAX_PARTS else ())
        # Keep apart paths that end with a slash, with an extension such as `.html`, or without.
        last = parts[-1] if parts else ""
        extension = EXTENSION.search(last)
        end = last and (extension[0] if extension else WORD)
        groups[split.netloc, len(parts), end, _query_shape(split.query)].append((parts, url))
    several = len({host for host, *_ in groups}) > 1
    result = [
        Shape(f"{host if several else ''}/{'/'.join(parts)}{query}", len(members), members[0])
        for (host, count, _, query), rows in groups.items()
        for parts, members in _grouped(rows, count)
    ]
    return sorted(result, key=lambda shape: -shape.count)


def _query_shape(query: str) -> str:
    """Replace the values in a query with `{number}` and `{word}`."""
    if not query:
        return ""
    parameters = []
    for parameter in query.split("&", MAX_PARAMETERS)[:MAX_PARAMETERS]:
        name, equals, value = parameter.partition("=")
        shown = (NUMBER if value.isdigit() else WORD) if value else ""
        parameters.append(f"{DIGITS.sub(NUMBER, name)}{equals}{shown}")
    more = "&…" if query.count("&") >= MAX_PARAMETERS else ""
    return f"?{'&'.join(parameters)}{more}"


def _grouped(rows: list[tuple[Parts, str]], count: int) -> list[tuple[Parts, list[str]]]:
    """Group URLs by shape, position by position.

    rows:  path segments and URL of each
    count: number of path segments, which is the same for all
    """
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
                # `{word}` between the common start and end of the texts, cut at separators.
                start = common_start(list(by_text))
                cuts = [separator.end() for separator in SEPARATORS.finditer(start)]
                start = start[: cuts[-1]] if cuts else ""
                end = common_start([text[len(start) :][::-1] for text in by_text])[::-1]
                first = SEPARATORS.search(end)
                word = f"{start}{WORD}{end[first.start() :] if first else ''}"
                refined.append(((*before, word), members))
            else:
                refined += [((*before, text), some) for text, some in by_text.items()]
        groups = refined
    return [(parts, [url for _, url in members]) for parts, members in groups]


def common_start(texts: Sequence[str]) -> str:
    """Return the longest common start of all texts."""
    low, high = min(texts), max(texts)
    pairs = enumerate(zip(low, high, strict=False))
    return low[: next((i for i, (a, b) in pairs if a != b), min(len(low), len(high)))]
