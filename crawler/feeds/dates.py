"""Dates of posts: read in whatever form, believed where they can be true."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from email.utils import parsedate_tz
from typing import Any
from zoneinfo import ZoneInfo

from crawler.extract.fields import read_date
from crawler.utils.text import count

UTC_ZONE = ZoneInfo("UTC")
EARLIEST = datetime(1995, 1, 1, tzinfo=UTC)
MAX_AHEAD = timedelta(hours=1)
# A leap second is the end of the one before.
LAST_SECOND = 59
MINUTE = timedelta(minutes=1)
# Fewer than these may well be of one moment.
MIN_DATES = 3
MAX_DATE_CHARACTERS = 100
SHOWN_CHARACTERS = 40
# dateparser tries hundreds of languages: a hundredth of a second each.
MAX_WORDED_DATES = 200
MAX_FAILED_DATES = 5
NUMBERS = re.compile(
    r"(?:(?P<year>\d{4})[-/](?P<month>\d\d?)[-/](?P<day>\d\d?)"
    r"|(?P<d>\d\d?)\.(?P<m>\d\d?)\.(?P<y>\d{4}))"
    r"(?:(?:T|,?\s+)(?P<hour>\d\d?):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:[.,]\d+)?)?"
    r"\s*(?P<zone>Z|UTC|GMT|[+-]\d\d(?::?\d\d)?)?)?",
    re.I,
)
# What only feedparser reads of numbers: a year, a month, an offset that is cut off.
PARTS = re.compile(r"\d{4}(?:-\d\d(?:-\d\dT\d\d:\d\d.*)?)?")
MAIL = re.compile(r"(?:[A-Za-z]+[.,]*\s+)?\d{1,2}[\s-]+[A-Za-z]{3}")
OFFSET = re.compile(r"\b(?:GMT|UTC|UT)\s*([+-]\d\d):?(\d\d)\b", re.I)
# Names of zones that mean one thing, and that neither mail nor feedparser knows.
ZONES = {
    "WEST": "+0100", "CET": "+0100", "MEZ": "+0100", "BST": "+0100", "CEST": "+0200",
    "MESZ": "+0200", "EET": "+0200", "SAST": "+0200", "EEST": "+0300", "MSK": "+0300",
    "HKT": "+0800", "SGT": "+0800", "AWST": "+0800", "JST": "+0900", "KST": "+0900",
    "AEST": "+1000", "AEDT": "+1100", "NZST": "+1200", "NZDT": "+1300",
}  # fmt: skip
NAMED_ZONE = re.compile(rf"\b(?:{'|'.join(ZONES)})$")


@dataclass(slots=True)
class DateReader:
    """Reads the dates of one document; what takes long is done a bounded number of times.

    unread: dates that could not be read
    """

    unread: list[str] = field(default_factory=list)
    asked: int = 0
    failed: int = 0

    def read(self, raw: object, parsed: Any = None) -> datetime | None:
        """A date in UTC, also where it has no zone; None where there is none or nobody reads it.

        parsed: feedparser's reading, nine numbers; it takes 2024/01/05 for the first of November,
                so it is the last resort
        """
        text = " ".join(raw[: 10 * MAX_DATE_CHARACTERS].split()) if isinstance(raw, str) else ""
        if not text:
            return None
        date = None
        if len(text) <= MAX_DATE_CHARACTERS:
            if numbers := NUMBERS.fullmatch(text):
                date = _of_numbers(numbers)
            else:
                date = _of_mail(text) or self._in_words(text) or _of_feedparser(text, parsed)
        if date is None:
            self.unread.append(text[:SHOWN_CHARACTERS])
        return date

    def _in_words(self, text: str) -> datetime | None:
        if self.asked >= MAX_WORDED_DATES or self.failed >= MAX_FAILED_DATES or text.isdigit():
            return None
        self.asked += 1
        try:
            date = read_date(text, UTC_ZONE)
        except (ValueError, OverflowError, AttributeError, TypeError, RecursionError):
            date = None  # dateparser, over a date that nobody has thought of
        self.failed += date is None
        return date


def _of_numbers(match: re.Match[str]) -> datetime | None:
    """Read years first, or days first with points between them."""
    names = ("year", "month", "day") if match["year"] else ("y", "m", "d")
    year, month, day = (int(match[name]) for name in names)
    hour, minute, second = (int(match[name] or 0) for name in ("hour", "minute", "second"))
    offset, zone = match["zone"], UTC
    try:
        if offset and offset[0] in "+-":
            size = timedelta(hours=int(offset[1:3]), minutes=int(offset[3:].strip(":") or 0))
            zone = timezone(-size if offset[0] == "-" else size)
        local = datetime(year, month, day, hour, minute, min(second, LAST_SECOND), tzinfo=zone)
        return local.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _of_mail(text: str) -> datetime | None:
    """Read dates as mails have them, RFC 822 and what is near it."""
    if not MAIL.match(text):
        return None
    text = NAMED_ZONE.sub(lambda zone: ZONES[zone[0]], OFFSET.sub(r"\1\2", text))
    try:
        if (read := parsedate_tz(text)) is None:
            return None
        year, month, day, hour, minute, second = read[:6]
        local = datetime(year, month, day, hour, minute, min(second, LAST_SECOND), tzinfo=UTC)
        return local - timedelta(seconds=read[9] or 0)
    except (ValueError, OverflowError, IndexError, TypeError):
        return None


def _of_feedparser(text: str, parsed: Any) -> datetime | None:
    """Read parts of dates, and what feedparser knows of Greek, Hungarian and Korean."""
    if parsed is None or (text.isascii() and not PARTS.fullmatch(text)):
        return None
    try:
        year, month, day, hour, minute, second = parsed[:6]
        return datetime(year, month, day, hour, minute, min(second, LAST_SECOND), tzinfo=UTC)
    except (ValueError, TypeError, OverflowError):
        return None


def fabricated(dates: Sequence[datetime], built: datetime | None, now: datetime) -> str | None:
    """Why no date of a document is believed: they were made with it. None where they may be true.

    dates: of all posts that have one       built: what the document says of itself
    """
    if len(dates) < MIN_DATES:
        return None
    first, last = min(dates), max(dates)
    if first == last:
        return f"all {len(dates):,} dates are the same: not believed"
    for moment, name in ((now, "the visit"), (built, "the document")):
        if moment and moment - MINUTE <= first and last <= moment + MINUTE:
            return f"all {len(dates):,} dates are those of {name}: not believed"
    return None


def believed(stated: datetime | None, now: datetime) -> datetime | None:
    """The date where it can be true; a clock that is a little fast reads as `now`."""
    if stated is None or not EARLIEST <= stated <= now + MAX_AHEAD:
        return None
    return min(stated, now)


def problems_of(reader: DateReader, stated: Sequence[datetime], now: datetime) -> list[str]:
    """What is wrong with a document's dates, one line each."""
    problems = []
    if reader.unread:
        problems.append(
            f"{count(len(reader.unread), 'date')} not read, such as {reader.unread[0]!r}"
        )
    if wrong := [date for date in stated if believed(date, now) is None]:
        problems.append(
            f"{count(len(wrong), 'date')} before 1995 or in the future: not believed,"
            f" such as {wrong[0]:%Y-%m-%d %H:%M}"
        )
    return problems
