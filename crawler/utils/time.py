"""Clocks, and parsers for durations and rates. No other module reads the current time.

Many processes store times and compare them, so all of them use the clock of the MongoDB server.
Freshet measures the server's time when it opens a database and then periodically. In between, it
adds the time that passed on a monotonic clock, so that setting this machine's clock has no effect.
Until a database is opened, this machine's clock is used.

All times are in UTC, truncated to milliseconds like the times in MongoDB.
"""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Time of the next visit of targets that are not to be visited again.
NEVER = datetime(9999, 1, 1, tzinfo=UTC)
HOUR_MILLISECONDS = 3_600_000
# The number of units in a second by the number of digits, from March 1973 on. Numbers with other
# lengths are not times: 8 digits are a date such as 20240715, and 14 digits one with a time.
UNIX_UNITS = {
    9: 1, 10: 1, 12: 1000, 13: 1000, 15: 1_000_000, 16: 1_000_000, 18: 10**9, 19: 10**9,
}  # fmt: skip
UNIX = re.compile(
    r"@?(?P<number>[1-9]\d{8,18})(?:\.(?P<fraction>\d{1,9}))?"
    r"|/Date\((?P<net>[1-9]\d{8,18})(?:[+-]\d{4})?\)/"
)
MAX_UNIX_YEAR = 2100
# A date without separators and its hour, or hour and minute, as in 202407151230.
JOINED = re.compile(r"((?:19|20)\d\d)(\d\d)(\d\d)(\d\d)(\d\d)?")
MAX_DATE_CHARACTERS = 200
ISO_TIME = re.compile(
    r"\d{4}-\d\d-\d\d(?:T\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?(?:Z|[+-]\d\d:\d\d))?", re.ASCII
)
# The name of a region such as America/New_York at the end of a date, maybe in brackets, or a North
# American time. What follows an offset is a comment, as in `+01:00[Europe/Paris][u-ca=gregory]`.
REGION = re.compile(
    r"(?<=[\d\s\[(zZmM.])[\[(]?([A-Za-z_]{2,20}(?:/[A-Za-z0-9_+-]{1,20}){1,2})[\])]?$"
)
ANNOTATION = re.compile(r"\[!?[\w-]{1,40}=[\w-]{1,40}\]$")
COMMENT = re.compile(r"([+-]\d\d:?\d\d) ?\([^()]{1,60}\)$")
US_TIME = re.compile(
    r"(?<=[\d\s.mM])\(?(ET|CT|MT|PT|(?:US )?(?:Eastern|Central|Mountain|Pacific) Time)\)?$", re.I
)
US_REGIONS = {
    "e": "America/New_York", "c": "America/Chicago", "m": "America/Denver",
    "p": "America/Los_Angeles",
}  # fmt: skip


def in_milliseconds(moment: datetime) -> datetime:
    """Truncate a time to whole milliseconds, as MongoDB does when it stores the time."""
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def start_of_day(moment: datetime) -> datetime:
    """Return the start of the day (UTC) of a time."""
    return moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def iso(moment: datetime) -> str:
    """Format an aware time as `2026-05-01T12:00:00Z`."""
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def time_in(text: str) -> datetime | date | None:
    """Return the time in a text such as `2026-05-01T12:00:00Z`, or the date; None without one.

    A midnight is the date: as values of a page, dates are stored as times.
    """
    if ISO_TIME.fullmatch(text) is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if any((at.hour, at.minute, at.second, at.microsecond)) else at.date()


def milliseconds(moment: datetime) -> int:
    """Return the whole milliseconds since the start of 1970 (UTC)."""
    return (moment - EPOCH) // timedelta(milliseconds=1)


def from_milliseconds(count: int) -> datetime:
    """Return the time that is `count` milliseconds after the start of 1970 (UTC)."""
    return EPOCH + timedelta(milliseconds=count)


# On Linux, CLOCK_BOOTTIME includes the time that the machine was suspended. CLOCK_MONOTONIC would
# fall behind the server's clock.
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def steady_seconds() -> float:
    """Return the time of a monotonic clock in seconds; only differences are meaningful."""
    return time.clock_gettime(_STEADY)


class ServerTime:
    """A clock that follows a server's clock. Once it does, its time never goes backwards."""

    def __init__(self) -> None:
        self._then: datetime | None = None
        self._at = self._slow_seconds = 0.0

    def now(self) -> datetime:
        """Return the server's current time, or this machine's before the first `follow`."""
        if self._then is None:
            return datetime.now(UTC)
        passed = steady_seconds() - self._at
        # A clock that is ahead runs at half speed until the server has caught up.
        return self._then + timedelta(seconds=passed - min(passed, self._slow_seconds) / 2)

    def follow(self, server: datetime, at: float, within_seconds: float) -> float:
        """Adjust this clock to a server's time, and return the difference in seconds.

        server:         time that the server reported
        at:             `steady_seconds()` at which it reported this time
        within_seconds: tolerance; smaller differences are not corrected
        """
        now, steady = self.now(), steady_seconds()
        ahead_seconds = (server - now).total_seconds() + steady - at
        if self._then is None:
            self._then, self._at = server, at
        elif abs(ahead_seconds) > within_seconds:
            self._then, self._at = now + timedelta(seconds=max(0.0, ahead_seconds)), steady
            self._slow_seconds = 2 * max(0.0, -ahead_seconds)
        return ahead_seconds


# Shared by the whole process, which uses one database server.
SERVER_TIME = ServerTime()


@dataclass(frozen=True, slots=True)
class Clock:
    """The clock of a crawl; `offset_hours` shifts it, for demonstrations and tests."""

    offset_hours: float = 0.0

    def now(self) -> datetime:
        """Return the current time by MongoDB's clock, aware and in UTC."""
        return in_milliseconds(SERVER_TIME.now() + timedelta(hours=self.offset_hours))


def unix_time(text: str) -> datetime | None:
    """Return the time that a Unix time stands for, in UTC; None if it is not one.

    text: seconds since 1970, or milli-, micro- or nanoseconds, also as `/Date(1780315200000)/`

    Times from March 1973 to 2100 are read. Digits that are also a date and an hour, such as
    2024071512, are not: most likely, the date is meant.
    """
    match = UNIX.fullmatch(text)
    if match is None:
        return None
    digits = match["number"] or match["net"]
    if (units := UNIX_UNITS.get(len(digits))) is None or _is_joined_date(digits):
        return None
    seconds, rest = divmod(int(digits), units)
    microseconds = rest * 1_000_000 // units
    if units == 1 and match["fraction"]:
        microseconds = int(match["fraction"][:6].ljust(6, "0"))
    try:
        moment = EPOCH + timedelta(seconds=seconds, microseconds=microseconds)
    except OverflowError:
        return None
    return moment if moment.year < MAX_UNIX_YEAR else None


def _is_joined_date(digits: str) -> bool:
    if (match := JOINED.fullmatch(digits)) is None:
        return False
    try:
        datetime(*(int(part or 0) for part in match.groups()), tzinfo=UTC)  # type: ignore[arg-type, misc]
    except ValueError:
        return False
    return True


def split_zone(text: str) -> tuple[str, ZoneInfo | None]:
    """Split the name of a time zone off the end of a date; the zone is None without one.

    The names are those of regions, such as America/Los_Angeles, and of North American times whose
    offset depends on the season, such as ET or Pacific Time. If the rest of the date has an offset,
    the offset counts: in `2026-03-15T12:00+01:00[Europe/Paris]`, the region is a comment.
    """
    rest = text[:MAX_DATE_CHARACTERS].rstrip()
    while annotation := ANNOTATION.search(rest):
        rest = rest[: annotation.start()].rstrip()
    if comment := COMMENT.search(rest):
        return rest[: comment.end(1)], None
    if region := REGION.search(rest):
        name = _regions().get(region[1].lower())
        if name is not None:
            return rest[: region.start()].rstrip(), ZoneInfo(name)
    elif rest.endswith("[UTC]"):
        return rest.removesuffix("[UTC]"), ZoneInfo("UTC")
    elif us_time := US_TIME.search(rest):
        initial = us_time[1].lower().removeprefix("us ")[0]
        return rest[: us_time.start()].rstrip(), ZoneInfo(US_REGIONS[initial])
    return rest, None


@cache
def _regions() -> dict[str, str]:
    """Return the names of time zones by their names in lower case."""
    return {name.lower(): name for name in available_timezones()}


def http_date(value: str) -> datetime | None:
    """Return the time in a header; None if it is invalid. Times without a zone are in UTC."""
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, TypeError, OverflowError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"
_PER_DAY = re.compile(rf"{_NUMBER}\s*(?:/\s*d(?:ay)?)?", re.I)
_PER_HOUR = re.compile(rf"{_NUMBER}\s*(?:/\s*h(?:our)?)?", re.I)
_DURATION = re.compile(rf"{_NUMBER}\s*(s|m|h|d|w)", re.I)
_SHARE = re.compile(rf"{_NUMBER}\s*(%?)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def per_day(text: str) -> float:
    """Parse a number of requests per day (>= 0) such as `265` or `265/day`. Raises ValueError."""
    if not (match := _PER_DAY.fullmatch(text.strip())):
        raise ValueError(f"invalid request rate: {text!r}. Use requests a day: 265, 265/day or 0.5")
    return float(match[1])


def per_hour(text: str) -> float:
    """Parse a number of requests per hour (>= 0) such as `40` or `40/hour`. Raises ValueError."""
    if not (match := _PER_HOUR.fullmatch(text.strip())):
        raise ValueError(f"invalid request rate: {text!r}. Examples: 40, 40/hour")
    return float(match[1])


def hours(text: str) -> float:
    """Parse a duration (> 0) such as `90m`, `6h`, `2d` or `1w` as hours. Raises ValueError."""
    return _duration(text, "mhdw", "90m, 6h, 2d, 1w") / 3600


def seconds(text: str) -> float:
    """Parse a duration (> 0) such as `30s`, `5m` or `1w` as seconds. Raises ValueError."""
    return _duration(text, "smhdw", "30s, 5m, 2h, 1d, 1w")


def _duration(text: str, units: str, examples: str) -> float:
    match = _DURATION.fullmatch(text.strip())
    unit = match[2].lower() if match else ""
    if not match or unit not in units or not (amount := float(match[1])):
        raise ValueError(f"invalid duration: {text!r}. Examples: {examples}")
    return amount * _SECONDS[unit]


def share(text: str) -> float:
    """Parse a share between 0 and 1 (exclusive) such as `0.95` or `95%`. Raises ValueError."""
    match = _SHARE.fullmatch(text.strip())
    amount = float(match[1]) / (100 if match[2] else 1) if match else math.nan
    if not 0 < amount < 1:
        raise ValueError(f"invalid share: {text!r}. Use a number between 0 and 1: 0.95 or 95%")
    return amount
