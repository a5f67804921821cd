"""A feed document before its posts have their ids and its dates are judged."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import urljoin

from crawler.documents import Bounds
from crawler.plaintext import line
from crawler.urls import is_http

LONGEST_TITLE = 1000
LONGEST_NAME = 200
LONGEST_GUID = 2000
LONGEST_URL = 4000
MOST_NAMES = 100
# What URLs are never meant to hold, however often they do.
BREAKS = str.maketrans("", "", "\t\r\n")


@dataclass(slots=True)
class Draft:
    """A post as its document has it.

    guid:   as it stands, white space folded; empty where there is none
    link:   absolute, or None
    stated: the date it has by its own account, in UTC; not yet believed
    """

    guid: str
    link: str | None
    stated: datetime | None
    title: str = ""
    text: str = ""
    author: str = ""
    tags: list[str] = field(default_factory=list)
    enclosures: list[str] = field(default_factory=list)

    def content(self) -> dict[str, Any]:
        """What is compared to find edits; only what is there."""
        parts = {
            "title": self.title,
            "main_text": self.text,
            "author": self.author,
            "tags": self.tags,
            "enclosures": self.enclosures,
        }
        return {name: part for name, part in parts.items() if part}


@dataclass(slots=True)
class Source:
    """What one of the readers made of a document; fields as in FeedDocument.

    built: when the document was made, by its own account
    """

    format: str
    title: str = ""
    site: str | None = None
    drafts: list[Draft] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    bounds: Bounds = field(default_factory=Bounds)
    hubs: tuple[str, ...] = ()
    topic: str | None = None
    built: datetime | None = None


def absolute(link: object, base: str) -> str | None:
    """A link as an absolute http(s) URL; None where it is none."""
    if not isinstance(link, str) or not link.strip() or len(link) > LONGEST_URL:
        return None
    try:
        url = urljoin(base, line(link.translate(BREAKS), LONGEST_URL))
    except ValueError:
        return None
    return url if is_http(url) and len(url) <= LONGEST_URL else None


def unique(names: list[str], longest: int = LONGEST_NAME) -> list[str]:
    """Short texts in one line each, every one once, in their order; not too many."""
    lines = (line(name, longest) for name in names[: 10 * MOST_NAMES])
    return list(dict.fromkeys(filter(None, lines)))[:MOST_NAMES]
