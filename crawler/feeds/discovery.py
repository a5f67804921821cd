"""Find the feeds of a web page, and the hubs in HTTP Link headers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

from parsel import Selector
from scrapy.http import TextResponse

from crawler.extract.absolute_links import base_url
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
# An index.xml is usually a feed, but an index.json is rarely one.
NOT_USUAL = re.compile(r"/index\.json$", re.I)
COMMENT_FEED = re.compile(r"comment|kommentar|commentaire|comentario|reacties", re.I)
MAX_CANDIDATES = 50
# Limits on Link headers, higher than any legitimate server needs.
MAX_HEADERS = 20
MAX_HEADER_CHARACTERS = 16_384
MAX_HUBS = 10

_PARAMETER = re.compile(r'\s*;\s*([^\s=;,"<>]+)\s*(?:=\s*("(?:[^"\\]|\\.)*"|[^\s;,"]*))?')
_ESCAPED = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True)
class Candidates:
    """URLs of possible feeds, best first, each once.

    declared: feeds that the page declares with `<link>`
    guessed:  links on the page with URLs that are typical of feeds
    """

    declared: tuple[str, ...]
    guessed: tuple[str, ...]


def candidates(page: TextResponse) -> Candidates:
    """Return the possible feeds on an HTML page, at most MAX_CANDIDATES of each kind."""
    root = Selector(text=page.text, type="html")
    base = base_url(root.root, page.url)
    links: list[tuple[bool, str]] = []
    for link in root.xpath("//link[@href]"):
        relations = link.attrib.get("rel", "").lower().split()
        kind = link.attrib.get("type", "").partition(";")[0].strip().lower()
        if "feed" in relations or ("alternate" in relations and kind in FEED_TYPES):
            url = _joined(base, link.attrib["href"])
            text = f"{urlsplit(url).path if is_http(url) else ''} {link.attrib.get('title', '')}"
            links.append((bool(COMMENT_FEED.search(text)), url))
    # Keep the order of the page, but put feeds of comments last.
    links.sort(key=lambda link: link[0])
    urls = (_joined(base, href) for href in root.xpath("//a/@href | //area/@href").getall())
    guesses = (
        url
        for url in urls
        if is_http(url)
        and USUAL_PATH.search(path := urlsplit(url).path)
        and not NOT_USUAL.search(path)
    )
    own = _name(page.url)
    declared = _distinct((url for _, url in links), {own})
    guessed = _distinct(guesses, {own, *map(_name, declared)})
    return Candidates(declared, guessed)


def _distinct(urls: Iterable[str], others: set[str | None]) -> tuple[str, ...]:
    distinct: dict[str, str] = {}
    for url in urls:
        name = _name(url)
        if name is not None and name not in others and len(distinct) < MAX_CANDIDATES:
            distinct.setdefault(name, url.partition("#")[0])
    return tuple(distinct.values())


def _name(url: str) -> str | None:
    """Return the canonical form of a URL; None if the URL is invalid."""
    try:
        return canonical(url) if is_http(url) else None
    except ValueError:
        return None


def _joined(base: str, url: str) -> str:
    try:
        return urljoin(base, url.strip(BLANKS))
    except ValueError:
        return ""


def hubs_of_headers(values: Iterable[str], base: str = "") -> tuple[tuple[str, ...], str | None]:
    """Return the hubs, each once, and the topic (`rel="self"`; None if there is none).

    values: values of the Link headers of one response, each with any number of links
    base:   URL of the response, for relative links

    Links with an `anchor` are ignored: they belong to another page. Invalid links are skipped.
    """
    hubs: dict[str, None] = {}
    topic: str | None = None
    for _, value in zip(range(MAX_HEADERS), values, strict=False):
        text, position = value[:MAX_HEADER_CHARACTERS], 0
        while (start := text.find("<", position)) >= 0 and (end := text.find(">", start)) >= 0:
            # If a parameter is repeated, the first value counts (RFC 8288).
            parameters: dict[str, str] = {}
            position = end + 1
            while parameter := _PARAMETER.match(text, position):
                name, content = parameter[1].lower(), parameter[2] or ""
                if content.startswith('"'):
                    content = _ESCAPED.sub(r"\1", content[1:-1])
                parameters.setdefault(name, content)
                position = parameter.end()
            reference = text[start + 1 : end].strip()
            if not reference or "anchor" in parameters:
                continue
            try:
                target = urljoin(base, reference)
            except ValueError:
                continue
            relations = parameters.get("rel", "").lower().split()
            if "hub" in relations and len(hubs) < MAX_HUBS:
                hubs[target] = None
            if "self" in relations and topic is None:
                topic = target
    return tuple(hubs), topic
