"""Values of options: `type=` functions for argparse, and a reader for options that stay text.

argparse ends with exit code 2 where a `type=` function refuses a value. Options whose mistakes are
the user's wishes rather than wrong usage stay text; `option` reads them, for exit code 1.
"""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TypeVar, overload

from crawler.errors import ConfigError
from crawler.utils import time as units

MAX_PATTERN = 1000
T = TypeVar("T")


@overload
def option(parse: Callable[[str], T], text: str, name: str) -> T: ...
@overload
def option(parse: Callable[[str], T], text: str | None, name: str) -> T | None: ...
def option(parse: Callable[[str], T], text: str | None, name: str) -> T | None:
    """Parse an option that may be absent; ConfigError names it where `parse` raises ValueError."""
    try:
        return None if text is None else parse(text)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None


def number(text: str) -> int:
    """A number of at least 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise ArgumentTypeError(f"{text!r} is not a number such as 100")
    return value


def weeks(text: str) -> float:
    """A finite number of weeks; ValueError, for `option`."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is no number of weeks, such as 3")
    return value


def pages(text: str) -> int:
    """A number of pages; ValueError, for `option`."""
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is no number of pages") from None


def when(text: str) -> datetime | timedelta:
    """A time, or how long ago."""
    try:
        return timedelta(hours=units.hours(text))
    except (ValueError, OverflowError):
        pass
    try:
        at = datetime.fromisoformat(text.strip())
        return at.replace(tzinfo=at.tzinfo or UTC).astimezone(UTC)
    except (ValueError, OverflowError):
        message = f"{text!r} is no time such as 2026-01-31, 2026-01-31T08:00Z or 7d"
        raise ArgumentTypeError(message) from None


def moment(given: datetime | timedelta | None, now: datetime) -> datetime | None:
    """The time of what `when` returned."""
    if given is None or isinstance(given, datetime):
        return given
    try:
        return now - given
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)


def storable(text: str) -> str:
    """Text for MongoDB, also where a terminal sent it in another encoding than UTF-8."""
    return text.encode("utf-8", "replace").decode()


def url_part(text: str) -> str:
    """A part of a URL, with `*` for any characters."""
    if not text.strip("*") or len(text) > MAX_PATTERN:
        raise ArgumentTypeError(f"{text[:50]!r} is not a part of a URL such as /news/*-2026")
    return storable(text)


def category(name: str) -> str:
    """A category in its normal form."""
    from crawler.feeds.subscriptions import category_of

    if not (normal := category_of(name)):
        raise ArgumentTypeError(f"{name!r} names no category")
    return normal
