"""What cells hold, as pages show it: amounts of money, times, ages, addresses."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from jinja2 import ChainableUndefined

from crawler.utils.text import span

NEVER = "not read yet"


class NotRead(ChainableUndefined):
    """What stands in for the content of a cell that has none yet: says so, and is no error.

    It is as good as undefined: `default` replaces it, a loop over it is empty.
    """

    def __str__(self) -> str:
        return NEVER


class Money(dict[str, Any]):
    """An amount with its currency; as text `12.50 EUR`."""

    def __str__(self) -> str:
        amount = self["amount"]
        shown = f"{amount:,.2f}" if isinstance(amount, float) else str(amount)
        return " ".join(filter(None, (shown, self["currency"])))


def dressed(value: Any) -> Any:
    """A value of a cell with its amounts of money as Money, at any depth."""
    if isinstance(value, dict):
        kind = Money if value.keys() == {"amount", "currency"} else dict
        return kind((str(name), dressed(part)) for name, part in value.items())
    if isinstance(value, list):
        return [dressed(part) for part in value]
    return value


def as_text(value: Any) -> str:
    """A value in one line; times in UTC, None as a dash."""
    if isinstance(value, datetime):
        return in_utc(value)
    if isinstance(value, list):
        return ", ".join(map(as_text, value))
    return "–" if value is None else str(value)  # noqa: RUF001 - a dash is meant


def in_utc(moment: datetime) -> str:
    """A time for readers, to the second: `2026-05-01 12:00:00 UTC`."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def age(seconds: float | None) -> str:
    """How long ago something was: `3 min ago`; None is never."""
    if seconds is None:
        return "never"
    return "just now" if seconds < 5 else f"{span(seconds)} ago"


def address(value: Any) -> str:
    """A value for `href`: itself where it is an http or https URL, else `#`."""
    text = str(value).strip()
    return text if text.lower().startswith(("http://", "https://")) else "#"
