"""Intermediate form of a feed document: posts without ids, with the dates as read."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import urljoin

from crawler.extract.plain_text import line
from crawler.items import Bounds
from crawler.utils.urls import is_http

MAX_TITLE_CHARACTERS = 1000
MAX_NAME_CHARACTERS = 200
MAX_GUID_CHARACTERS = 2000
MAX_URL_CHARACTERS = 4000
MAX_NAMES = 100
# Browsers remove these characters from URLs.
BREAKS = str.maketrans("", "", "\t\r\n")
MINUTES = 60.0
# Longer intervals are ignored: the publisher has probably confused the units.
MAX_STATED_HOURS = 30 * 24.0
# Longest interval between polls that a document can request.
MAX_EVERY_HOURS = 7 * 24.0
PERIOD_HOURS = {
    "hourly": 1.0, "daily": 24.0, "weekly": 7 * 24.0, "monthly": 30 * 24.0, "yearly": 365 * 24.0,
}  # fmt: skip
DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


@dataclass(slots=True)
class Draft:
    """A post as it appears in its document.

    guid:   guid with collapsed white space; empty if there is none
    link:   absolute URL, or None
    stated: date in the document, in UTC; not checked yet
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
        """Return all values that are compared to detect edits, without empty ones."""
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
    """A parsed document; fields as in FeedDocument.

    drafts:   posts in the order of the document
    problems: problems of the document, one line each
    built:    date of the document itself
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
    """Return a link as an absolute http(s) URL; None if that is not possible."""
    if not isinstance(link, str) or not link.strip() or len(link) > MAX_URL_CHARACTERS:
        return None
    try:
        url = urljoin(base, line(link.translate(BREAKS), MAX_URL_CHARACTERS))
    except ValueError:
        return None
    return url if is_http(url) and len(url) <= MAX_URL_CHARACTERS else None


def unique(names: list[str], max_characters: int = MAX_NAME_CHARACTERS) -> list[str]:
    """Return the distinct names in their order, as one line each, at most MAX_NAMES."""
    lines = (line(name, max_characters) for name in names[: 10 * MAX_NAMES])
    return list(dict.fromkeys(filter(None, lines)))[:MAX_NAMES]


def bounds(
    ttl: object = None,
    period: object = None,
    frequency: object = None,
    hours: Iterable[str] = (),
    days: Iterable[str] = (),
) -> Bounds:
    """Return the polling limits that a document requests. Invalid values are ignored.

    ttl:               minutes between polls
    period, frequency: `sy:updatePeriod`, and the number of updates in each period
    hours:             skipHours, in GMT; 24 is midnight, like 0
    days:              skipDays, English names
    """
    stated = []
    if (minutes := _number(ttl)) is not None:
        stated.append(minutes / MINUTES)
    # Defaults of the RSS syndication module: the period `daily`, and a frequency of 1.
    times = 1.0 if frequency is None else _number(frequency)
    name = str(period or "daily").strip().lower()
    if (period, frequency) != (None, None) and times and times > 0 and name in PERIOD_HOURS:
        stated.append(PERIOD_HOURS[name] / times)
    every = [hours for hours in stated if 0 < hours <= MAX_STATED_HOURS]
    skipped_hours = {int(hour or 0) % 24 for hour in map(_number, hours) if hour in range(25)}
    named = [day.strip().lower() for day in days]
    skipped_days = {DAYS.index(day) for day in named if day in DAYS}
    return Bounds(
        every_hours=min(max(every), MAX_EVERY_HOURS) if every else None,
        skip_hours=tuple(sorted(skipped_hours)) if len(skipped_hours) < 24 else (),
        skip_days=tuple(sorted(skipped_days)) if len(skipped_days) < 7 else (),
    )


def _number(value: object) -> float | None:
    if not isinstance(value, str) or len(value) > 20:
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
