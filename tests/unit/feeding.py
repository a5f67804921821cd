"""Small feed documents for the tests of feed parsing."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from crawler.feeds.parser import read
from crawler.items import Entry, FeedDocument

FEED_URL = "https://a.example/blog/feed.xml"
NOW = datetime(2024, 5, 1, 12, 0, tzinfo=UTC)
NAMESPACES = " ".join(
    f'xmlns:{prefix}="{uri}"'
    for prefix, uri in {
        "atom": "http://www.w3.org/2005/Atom",
        "content": "http://purl.org/rss/1.0/modules/content/",
        "dc": "http://purl.org/dc/elements/1.1/",
        "feedburner": "http://rssnamespace.org/feedburner/ext/1.0",
        "itunes": "http://www.itunes.com/dtds/podcast-1.0.dtd",
        "media": "http://search.yahoo.com/mrss/",
        "sy": "http://purl.org/rss/1.0/modules/syndication/",
    }.items()
)


def rss(*items: str, channel: str = "", head: str = '<?xml version="1.0"?>') -> str:
    """Return an RSS 2.0 document with these items."""
    return (
        f'{head}<rss version="2.0" {NAMESPACES}><channel><title>A blog</title>'
        f"<link>https://a.example/blog/</link>{channel}{''.join(items)}</channel></rss>"
    )


def item(inside: str = "", *, n: int = 1) -> str:
    """Return item `n` of a feed; `inside` is added after its title, link, and guid."""
    return (
        f"<item><title>Post {n}</title><link>https://a.example/blog/{n}</link>"
        f"<guid>tag:{n}</guid>{inside}</item>"
    )


def atom(*entries: str, feed: str = "", attributes: str = "") -> str:
    """Return an Atom 1.0 document with these entries."""
    return (
        f'<feed xmlns="http://www.w3.org/2005/Atom" {attributes}><title>A blog</title>'
        f'<link href="https://a.example/blog/"/>{feed}{"".join(entries)}</feed>'
    )


def json_feed(*items: dict[str, Any], **feed: Any) -> str:
    """Return a JSON Feed 1.1 document with these items."""
    version = "https://jsonfeed.org/version/1.1"
    return json.dumps({"version": version, "title": "A blog", "items": items, **feed})


def reading(document: str | bytes, content_type: str | None = None) -> FeedDocument:
    """Parse a document as if it were fetched at NOW."""
    body = document.encode() if isinstance(document, str) else document
    return read(body, FEED_URL, content_type, NOW)


def only(document: str | bytes) -> Entry:
    """Return the only entry of a document, which must have no problems."""
    parsed = reading(document)
    assert parsed.problems == ()
    (entry,) = parsed.entries
    return entry
