"""Where a web page says that its feeds are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

from parsel import Selector
from scrapy.http import TextResponse

from crawler.utils.urls import BLANKS, canonical, is_http

FEED_TYPES = frozenset(
    f"application/{name}"
    for name in ("rss+xml", "atom+xml", "rdf+xml", "feed+json", "x.atom+xml", "x-atom+xml")
) | {"text/rss+xml", "text/atom+xml"}  # fmt: skip
USUAL_PATH = re.compile(
    r"(?:/(?:feed|rss|atom|feeds)/?|[/._-](?:rss2?|atom|index|feed)\.(?:xml|rss|rdf|atom|json)"
    r"|\.(?:rss|atom|rdf))$",
    re.I,
)
# An index.json or index.rdf is anything; an index.xml is a feed as a rule.
NOT_USUAL = re.compile(r"/index\.json$", re.I)
OF_COMMENTS = re.compile(r"comment|kommentar|commentaire|comentario|reacties", re.I)
MOST = 50


@dataclass(frozen=True, slots=True)
class Candidates:
    """URLs of what may be feeds, the best first, each once.

    declared: the page says that they are its feeds
    guessed:  it links to them, and they look like feeds
    """

    declared: tuple[str, ...]
    guessed: tuple[str, ...]


def candidates(page: TextResponse) -> Candidates:
    """What may be a feed on an HTML page; 50 of each kind at most."""
    root = Selector(text=page.text, type="html")
    base = _base(root, page.url)
    own = _known(page.url)
    declared = _distinct(_links(root, base), {own})
    guessed = _distinct(_anchors(root, base), {own, *map(_known, declared)})
    return Candidates(declared, guessed)


def _base(root: Selector, url: str) -> str:
    """What relative URLs of the page begin at; a base that is no URL is none."""
    given = root.xpath("//base/@href").get()
    joined = _joined(url, given) if given is not None else url
    return joined if is_http(joined) else url


def _links(root: Selector, base: str) -> list[str]:
    """The page's own feeds in its order, those of comments last."""
    found: list[tuple[bool, str]] = []
    for link in root.xpath("//link[@href]"):
        relations = link.attrib.get("rel", "").lower().split()
        kind = link.attrib.get("type", "").partition(";")[0].strip().lower()
        if "feed" in relations or ("alternate" in relations and kind in FEED_TYPES):
            url = _joined(base, link.attrib["href"])
            said = f"{urlsplit(url).path if is_http(url) else ''} {link.attrib.get('title', '')}"
            found.append((bool(OF_COMMENTS.search(said)), url))
    return [url for _, url in sorted(found, key=lambda one: one[0])]


def _anchors(root: Selector, base: str) -> Iterator[str]:
    for href in root.xpath("//a/@href | //area/@href").getall():
        url = _joined(base, href)
        if not is_http(url):
            continue
        path = urlsplit(url).path
        if USUAL_PATH.search(path) and not NOT_USUAL.search(path):
            yield url


def _distinct(urls: Iterable[str], known: set[str | None]) -> tuple[str, ...]:
    found: dict[str, str] = {}
    for url in urls:
        name = _known(url)
        if name is not None and name not in known and len(found) < MOST:
            found.setdefault(name, url.partition("#")[0])
    return tuple(found.values())


def _known(url: str) -> str | None:
    try:
        return canonical(url) if is_http(url) else None
    except ValueError:
        return None


def _joined(base: str, url: str) -> str:
    try:
        return urljoin(base, url.strip(BLANKS))
    except ValueError:
        return ""


# More than any honest server sends.
MOST_VALUES = 20
MOST_CHARACTERS = 16_384
MOST_HUBS = 10

_PARAMETER = re.compile(r'\s*;\s*([^\s=;,"<>]+)\s*(?:=\s*("(?:[^"\\]|\\.)*"|[^\s;,"]*))?')
_ESCAPED = re.compile(r"\\(.)")


def hubs_of_headers(values: Iterable[str], base: str = "") -> tuple[tuple[str, ...], str | None]:
    """The hubs, each once, and the topic (`rel="self"`), None where none is named.

    values: the Link headers of one response, each with any number of links
    base:   the response's URL, to which links may be relative

    Links of another page (`anchor`) do not count. What cannot be read is passed over.
    """
    hubs: dict[str, None] = {}
    topic: str | None = None
    for written, relations in _links_linkheaders(values):
        if (target := _resolved(base, written)) is None:
            continue
        if "hub" in relations and len(hubs) < MOST_HUBS:
            hubs[target] = None
        if "self" in relations and topic is None:
            topic = target
    return tuple(hubs), topic


def _resolved(base: str, url: str) -> str | None:
    try:
        return urljoin(base, url)
    except ValueError:
        return None


def _links_linkheaders(values: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    for _, value in zip(range(MOST_VALUES), values, strict=False):
        text, position = value[:MOST_CHARACTERS], 0
        while (start := text.find("<", position)) >= 0 and (end := text.find(">", start)) >= 0:
            parameters, position = _parameters(text, end + 1)
            target = text[start + 1 : end].strip()
            if target and "anchor" not in parameters:
                yield target, parameters.get("rel", "").lower().split()


def _parameters(text: str, position: int) -> tuple[dict[str, str], int]:
    """The parameters of a link by name, the first of each, and where they end."""
    parameters: dict[str, str] = {}
    while found := _PARAMETER.match(text, position):
        parameters.setdefault(found[1].lower(), _unquoted(found[2] or ""))
        position = found.end()
    return parameters, position


def _unquoted(text: str) -> str:
    return _ESCAPED.sub(r"\1", text[1:-1]) if text.startswith('"') else text
