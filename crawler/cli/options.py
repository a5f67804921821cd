"""Options that several commands have, and types of option values.

The types are `type=` functions for argparse, and parsers for `option`.
If a `type=` function rejects a value, argparse prints the usage and exits with code 2. Options with
values such as budgets and durations are stored as text instead and parsed by `base.option`, so that
an invalid value is a one-line error with exit code 1.
"""

from __future__ import annotations

import math
from argparse import ArgumentParser, ArgumentTypeError
from datetime import UTC, datetime, timedelta

from crawler.errors import ConfigError
from crawler.utils import time as units
from crawler.utils.text import without_surrogates

# Maximum length of a URL pattern, in characters.
MAX_PATTERN = 1000
# Maximum of numbers of rows and weeks. Larger ones would not fit into MongoDB, or into a time.
MAX_NUMBER, MAX_WEEKS = 1_000_000_000, 5200
# Minimum threshold of near-duplicates.
MIN_SIMILARITY = 0.3


def add_yes(parser: ArgumentParser) -> None:
    """Add `--yes`, which `base.confirm` reads."""
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")


def add_limit(parser: ArgumentParser, noun: str, default: int, more: str = "") -> None:
    """Add `--limit`. noun: what is limited, such as `changes`; more: the end of the help."""
    parser.add_argument(
        "--limit", metavar="N", type=positive_int, default=default,
        help=f"maximum number of {noun} (default: {default}){more}",
    )  # fmt: skip


def add_spiders(parser: ArgumentParser, only: str) -> None:
    """Add `--spider`, which may be repeated. only: the help, such as `prune only this spider`."""
    parser.add_argument(
        "--spider", action="append", metavar="NAME",
        help=f"{only} (may be repeated; default: all spiders)",
    )  # fmt: skip


def add_spider_of_target(parser: ArgumentParser) -> None:
    """Add `--spider`, which selects one of several targets with the same URL."""
    parser.add_argument(
        "--spider", metavar="NAME", help="spider of the target, if several visit the URL"
    )


def positive_int(text: str) -> int:
    """Parse an integer of at least 1, for argparse."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise ArgumentTypeError(f"{text!r} is not a positive integer such as 100")
    if value > MAX_NUMBER:
        raise ArgumentTypeError(f"{text!r} is more than {MAX_NUMBER:,}")
    return value


def similarity(text: str) -> float:
    """Parse a similarity threshold, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not MIN_SIMILARITY <= value <= 1:
        raise ArgumentTypeError(f"{text!r} is not a number from {MIN_SIMILARITY} to 1")
    return value


def weeks(text: str) -> float:
    """Parse a finite number of weeks, for `option`; raises ValueError."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is not a number of weeks such as 3")
    return value


def pages(text: str) -> int:
    """Parse a number of pages, for `option`; raises ValueError."""
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number of pages such as 10") from None
    if value > MAX_NUMBER:
        raise ValueError(f"{text!r} is more than {MAX_NUMBER:,}")
    return value


def time_or_age(text: str) -> datetime | timedelta:
    """Parse a time (UTC unless it has an offset) or an age such as `7d`, for argparse."""
    try:
        return timedelta(seconds=units.seconds(text))
    except (ValueError, OverflowError):
        pass
    try:
        at = datetime.fromisoformat(text.strip())
        return at.replace(tzinfo=at.tzinfo or UTC).astimezone(UTC)
    except (ValueError, OverflowError):
        message = f"{text!r} is not a time such as 2026-01-31, 2026-01-31T08:00Z, 7d or 30s"
        raise ArgumentTypeError(message) from None


def as_time(value: datetime | timedelta | None, now: datetime) -> datetime | None:
    """Return a value of `time_or_age` as a time; ages count back from now."""
    if value is None or isinstance(value, datetime):
        return value
    try:
        return now - value
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)


def past_time(value: datetime | timedelta | None, now: datetime) -> datetime | None:
    """Return a value of `--since` as a time.

    Raises ConfigError if it is in the future: nothing would match, as if nothing had happened.
    """
    at = as_time(value, now)
    if at is not None and at > now:
        raise ConfigError(
            f"--since: {at:%Y-%m-%d %H:%M} UTC is in the future. Name a time before "
            f"{now:%Y-%m-%d %H:%M} UTC"
        )
    return at


def valid_utf8(text: str) -> str:
    """Return a text that MongoDB can store: bytes that are not UTF-8 become U+FFFD.

    A terminal with another encoding sends such bytes. Python decodes them as surrogates, which
    MongoDB rejects.
    """
    return without_surrogates(text)


def url_part(text: str) -> str:
    """Parse a part of a URL, with `*` for any characters, for argparse."""
    if not text.strip("*") or len(text) > MAX_PATTERN:
        raise ArgumentTypeError(f"{text[:50]!r} is not a part of a URL such as /news/*-2026")
    return valid_utf8(text)


def category(name: str) -> str:
    """Parse a category and return it in its normal form, for argparse."""
    from crawler.feeds.subscriptions import category_of

    if not (normal := category_of(name)):
        raise ArgumentTypeError(f"{name!r} is not a category such as News/Local")
    return normal
