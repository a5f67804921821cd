"""How commands show their help, Scrapy's way with its errors fixed, and read what several take."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime, timedelta

from scrapy.commands import ScrapyHelpFormatter

from crawler.utils import time as units

MAX_PATTERN = 1000


class Help(ScrapyHelpFormatter):
    """No line of an option's help is a heading.

    Scrapy takes each line for one that ends in a colon, and so, at some widths of the terminal, the
    middle of an option's help.
    """

    def _split_lines(self, text: str, width: int) -> list[str]:
        lines = super()._split_lines(text, width)
        return [f"{line} " if line.endswith(":") else line for line in lines]


class HelpWithLines(argparse.RawDescriptionHelpFormatter, Help):
    """The same, with the lines of examples as they are."""


def number(given: str) -> int:
    """A number of at least 1; for argparse."""
    try:
        found = int(given)
    except ValueError:
        found = 0
    if found < 1:
        raise argparse.ArgumentTypeError(f"{given!r} is not a number such as 100")
    return found


def when(given: str) -> datetime | timedelta:
    """A time, or how long ago; for argparse."""
    try:
        return timedelta(hours=units.hours(given))
    except (ValueError, OverflowError):
        pass
    try:
        moment = datetime.fromisoformat(given.strip())
        return moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
    except (ValueError, OverflowError):
        said = f"{given!r} is no time such as 2026-01-31, 2026-01-31T08:00Z or 7d"
        raise argparse.ArgumentTypeError(said) from None


def moment(given: datetime | timedelta, now: datetime) -> datetime:
    """The time that `when` was given."""
    if isinstance(given, datetime):
        return given
    try:
        return now - given
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)


def part(given: str) -> str:
    """A part of a URL, with `*` for any characters; for argparse."""
    if not given.strip("*") or len(given) > MAX_PATTERN:
        raise argparse.ArgumentTypeError(
            f"{given[:50]!r} is not a part of a URL such as /news/*-2026"
        )
    # What a terminal sent in another encoding is no text for MongoDB.
    return given.encode("utf-8", "replace").decode()
