"""Intermediate form of a feed document: posts without ids, and dates, which come in many formats.

Implausible dates are reported, and rejected by `plausible`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from email.utils import parsedate_tz
from typing import Any

from crawler.extract.fields import stated_date
from crawler.extract.plain_text import line
from crawler.items import Bounds
from crawler.utils.text import count
from crawler.utils.time import split_zone, unix_time
from crawler.utils.urls import is_http, joined

Row = dict[str, Any]
MAX_TITLE_CHARACTERS = 1000
MAX_NAME_CHARACTERS = 200
MAX_GUID_CHARACTERS = 2000
MAX_URL_CHARACTERS = 4000
MAX_NAMES = 100
# Links of posts that are no pages: torrents, and capsules and holes of smaller protocols.
OTHER_SCHEMES = (
    "magnet:?", "gemini://", "gopher://", "spartan://", "ftp://", "ftps://", "ipfs://", "ed2k://",
)  # fmt: skip
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
EARLIEST = datetime(1995, 1, 1, tzinfo=UTC)
# Later dates are placeholders rather than announcements.
MAX_ANNOUNCED = timedelta(days=366)
MAX_AHEAD_HOURS = 1.0
MAX_AHEAD = timedelta(hours=MAX_AHEAD_HOURS)
# UTC offsets in use east of Greenwich.
OFFSETS_HOURS = (
    1, 2, 3, 3.5, 4, 4.5, 5, 5.5, 5.75, 6, 6.5, 7, 8, 8.75, 9, 9.5, 10, 10.5, 11, 12, 12.75, 13, 14,
)  # fmt: skip
# Leap seconds (:60) are read as :59.
LAST_SECOND = 59
NOON_HOUR = 12
MINUTE = timedelta(minutes=1)
# Fewer posts may really have been published at the same time.
MIN_DATES = 3
MAX_DATE_CHARACTERS = 100
SHOWN_CHARACTERS = 40
# Maximum number of calls of dateparser per document: it tries hundreds of languages in about 10 ms.
MAX_WORDED_DATES = 200
MAX_FAILED_DATES = 5
NUMBERS = re.compile(
    r"(?:(?P<year>\d{4})[-/](?P<month>\d\d?)[-/](?P<day>\d\d?)"
    r"|(?P<d>\d\d?)\.(?P<m>\d\d?)\.(?P<y>\d{4}))"
    r"(?:(?:T|,?\s+)(?P<hour>\d\d?):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:[.,]\d+)?)?"
    r"\s*(?P<zone>Z|UTC|GMT|[+-]\d\d(?::?\d\d)?)?)?",
    re.I,
)
# Numeric forms that only feedparser supports: a year, a month, a truncated UTC offset.
PARTS = re.compile(r"\d{4}(?:-\d\d(?:-\d\dT\d\d:\d\d.*)?)?")
MAIL = re.compile(r"(?:[A-Za-z]+[.,]*\s+)?\d{1,2}[\s-]+[A-Za-z]{3}")
# `email.utils` would ignore these parts: a 12-hour clock, and offsets such as GMT+0100, +01:00, +1.
MERIDIEM = re.compile(r"(?<=:\d\d)\s?([ap])\.?m\b\.?", re.I)
OFFSET = re.compile(
    r"(?<=:\d\d)\s?(?:GMT|UTC|UT)?\s?(?P<sign>[+-])(?P<hours>\d\d?)(?::?(?P<minutes>\d\d))?(?=\s?\(|$)",
    re.I,
)
# Unambiguous names of time zones that neither `email.utils` nor feedparser supports.
ZONES = {
    "WEST": "+0100", "CET": "+0100", "MEZ": "+0100", "BST": "+0100", "CEST": "+0200",
    "MESZ": "+0200", "EET": "+0200", "SAST": "+0200", "EEST": "+0300", "MSK": "+0300",
    "HKT": "+0800", "SGT": "+0800", "AWST": "+0800", "JST": "+0900", "KST": "+0900",
    "AEST": "+1000", "AEDT": "+1100", "NZST": "+1200", "NZDT": "+1300",
}  # fmt: skip
# The end of a date without a UTC offset: a time, a year, or the year of 1-Apr-24.
WITHOUT_OFFSET = re.compile(r"(?::\d\d|(?<![+-])\b\d{4}|[A-Za-z]-\d\d)$")
NAMED_ZONE = re.compile(rf"\b(?:{'|'.join(ZONES)})$")


@dataclass(slots=True)
class Draft:
    """A post as it appears in its document.

    guid:   guid with collapsed white space; empty if there is none
    link:   absolute URL, in a few cases of another scheme than http(s), or None
    stated: date in the document, in UTC, or without a time zone if it has no UTC offset; not
            checked yet
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
    url = joined(base, line(link.translate(BREAKS), MAX_URL_CHARACTERS))
    return url if is_http(url) and len(url) <= MAX_URL_CHARACTERS else None


def address(link: object, base: str) -> str | None:
    """Return the link of a post as an absolute URL, also one that only other programs open."""
    is_other = isinstance(link, str) and link.strip().lower().startswith(OTHER_SCHEMES)
    if not is_other:
        return absolute(link, base)
    url = line(str(link).translate(BREAKS), MAX_URL_CHARACTERS + 1)
    return url if len(url) <= MAX_URL_CHARACTERS else None


def unique(names: list[str], max_characters: int = MAX_NAME_CHARACTERS) -> list[str]:
    """Return the distinct names in their order, as one line each, at most MAX_NAMES."""
    lines = (line(name, max_characters) for name in names[: 10 * MAX_NAMES])
    return list(dict.fromkeys(filter(None, lines)))[:MAX_NAMES]


def rows_in(row: Row, name: str) -> list[Row]:
    """Return the objects in a list of a parsed document; none if the value is something else."""
    rows = dict.get(row, name)
    return [each for each in rows if isinstance(each, dict)] if isinstance(rows, list) else []


def string_in(row: Row, name: str) -> str:
    """Return a text of a parsed document; empty if the value is something else."""
    # `row.get` of feedparser's dicts would return another date for a missing one, with a warning.
    value = dict.get(row, name)
    return value if isinstance(value, str) else ""


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


@dataclass(slots=True)
class DateReader:
    """Parses the dates of one document, with a limit on slow attempts.

    Dates without a UTC offset or time zone have no `tzinfo` until `in_utc`.

    unread: dates that could not be parsed
    worded: number of calls of dateparser
    failed: number of these calls without a result
    """

    unread: list[str] = field(default_factory=list)
    worded: int = 0
    failed: int = 0

    def read(self, raw: object, parsed: Any = None) -> datetime | None:
        """Return a date; None if it is missing or cannot be parsed.

        parsed: feedparser's result, nine numbers. It is the last resort, because feedparser reads
                2024/01/05 as 1 November.
        """
        text = " ".join(raw[: 10 * MAX_DATE_CHARACTERS].split()) if isinstance(raw, str) else ""
        if not text:
            return None
        date = None
        if len(text) <= MAX_DATE_CHARACTERS and (date := unix_time(text)) is None:
            local, zone = split_zone(text)
            if numbers := NUMBERS.fullmatch(local):
                date = _numeric_date(numbers)
            else:
                date = _mail_date(local) or self._worded_date(local)
                date = date or _feedparser_date(text, parsed)
            if date is not None and date.tzinfo is None and zone is not None:
                date = in_zone(date, zone)
        if date is None:
            self.unread.append(text[:SHOWN_CHARACTERS])
        return date

    def _worded_date(self, text: str) -> datetime | None:
        if self.worded >= MAX_WORDED_DATES or self.failed >= MAX_FAILED_DATES or text.isdigit():
            return None
        self.worded += 1
        try:
            date = stated_date(text)
        except (ValueError, OverflowError, AttributeError, TypeError, RecursionError):
            date = None  # dateparser crashes on some unusual dates
        self.failed += date is None
        return date


def in_zone(stated: datetime, zone: tzinfo) -> datetime | None:
    """Return a date in UTC; None if there is no such time.

    zone: time zone of a date without one
    """
    try:
        return (stated if stated.tzinfo else stated.replace(tzinfo=zone)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _numeric_date(match: re.Match[str]) -> datetime | None:
    """Parse dates with the year first, or with the day first and dots as separators."""
    names = ("year", "month", "day") if match["year"] else ("y", "m", "d")
    year, month, day = (int(match[name]) for name in names)
    hour, minute, second = (int(match[name] or 0) for name in ("hour", "minute", "second"))
    offset = match["zone"]
    try:
        local = datetime(year, month, day, hour, minute, min(second, LAST_SECOND))  # noqa: DTZ001
        if not offset:
            return local
        size = timedelta()
        if offset[0] in "+-":
            size = timedelta(hours=int(offset[1:3]), minutes=int(offset[3:].strip(":") or 0))
        return in_zone(local, timezone(-size if offset[0] == "-" else size))
    except (ValueError, OverflowError):
        return None


def _mail_date(text: str) -> datetime | None:
    """Parse dates in the format of email headers (RFC 822) and similar ones."""
    if not MAIL.match(text):
        return None
    half = MERIDIEM.search(text)
    text = MERIDIEM.sub("", text)
    text = NAMED_ZONE.sub(lambda zone: ZONES[zone[0]], text)
    text = OFFSET.sub(
        lambda to: f" {to['sign']}{to['hours'].zfill(2)}{to['minutes'] or '00'}", text
    )
    try:
        if (read := parsedate_tz(text)) is None:
            return None
        year, month, day, hour, minute, second = read[:6]
        if half and hour <= NOON_HOUR:
            hour = hour % NOON_HOUR + NOON_HOUR * (half[1] in "pP")
        local = datetime(year, month, day, hour, minute, min(second, LAST_SECOND))  # noqa: DTZ001
        if WITHOUT_OFFSET.search(text):
            return local
        return local.replace(tzinfo=UTC) - timedelta(seconds=read[9] or 0)
    except (ValueError, OverflowError, IndexError, TypeError):
        return None


def _feedparser_date(text: str, parsed: Any) -> datetime | None:
    """Use feedparser's result for incomplete dates and for Greek, Hungarian and Korean dates."""
    if parsed is None or (text.isascii() and not PARTS.fullmatch(text)):
        return None
    try:
        year, month, day, hour, minute, second = parsed[:6]
        return datetime(year, month, day, hour, minute, min(second, LAST_SECOND), tzinfo=UTC)
    except (ValueError, TypeError, OverflowError):
        return None


def offset_of(local: Iterable[datetime], now: datetime) -> float:
    """Return the UTC offset in hours that dates without one must at least have; 0 by default.

    local: dates without time zone
    now:   time of the fetch, when all posts were published

    Dates of sites east of Greenwich would be in the future in UTC. A newer post may show a greater
    offset. Dates that no offset explains are in the future.
    """
    utc = now.astimezone(UTC).replace(tzinfo=None)
    aheads = ((date - utc).total_seconds() / 3600 for date in local)
    explained = [ahead for ahead in aheads if MAX_AHEAD_HOURS < ahead <= OFFSETS_HOURS[-1]]
    if not explained:
        return 0.0
    return next(offset for offset in OFFSETS_HOURS if offset >= max(explained))


def fabricated(dates: Sequence[datetime], built: datetime | None, now: datetime) -> str | None:
    """Return why the dates of a document do not look like dates of posts; None if they do.

    dates: dates of all posts that have one
    built: date of the document itself
    """
    if len(dates) < MIN_DATES:
        return None
    first, last = min(dates), max(dates)
    if first == last:
        return f"all {len(dates):,} dates are identical: ignored"
    for moment, name in ((now, "the fetch"), (built, "the document")):
        if moment and moment - MINUTE <= first and last <= moment + MINUTE:
            return f"all {len(dates):,} dates equal the time of {name}: ignored"
    return None


def announced(stated: datetime | None, now: datetime) -> datetime | None:
    """Return a date in the future that is used once it has passed; None for any other."""
    is_ahead = stated is not None and now + MAX_AHEAD < stated <= now + MAX_ANNOUNCED
    return stated if is_ahead else None


def plausible(stated: datetime | None, now: datetime) -> datetime | None:
    """Return a date if it is plausible; dates up to an hour in the future become `now`."""
    if stated is None or not EARLIEST <= stated <= now + MAX_AHEAD:
        return None
    return min(stated, now)


def problems_of(
    reader: DateReader, stated: Sequence[datetime], now: datetime, assumed_hours: float = 0.0
) -> list[str]:
    """Return the problems of a document's dates, one line each.

    stated:        all dates that were parsed
    assumed_hours: UTC offset that was assumed for dates without one
    """
    problems = []
    if reader.unread:
        problems.append(
            f"{count(len(reader.unread), 'date')} could not be parsed, such as {reader.unread[0]!r}"
        )
    if wrong := [date for date in stated if not EARLIEST <= date <= now + MAX_ANNOUNCED]:
        problems.append(
            f"{count(len(wrong), 'date')} before 1995 or more than a year ahead: ignored, "
            f"such as {wrong[0]:%Y-%m-%d %H:%M}"
        )
    if ahead := [date for date in stated if announced(date, now)]:
        problems.append(
            f"{count(len(ahead), 'date')} in the future, such as {ahead[0]:%Y-%m-%d %H:%M}: "
            "used once it has passed"
        )
    if assumed_hours:
        problems.append(
            f"dates without a UTC offset would be in the future: read as UTC+{assumed_hours:g}. If "
            "that is wrong, set timezone in the list of feeds"
        )
    return problems
