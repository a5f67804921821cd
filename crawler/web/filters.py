"""Filters of the templates: times, numbers and links, safe for text from outside.

Templates escape all text. In addition, texts longer than MAX_CHARACTERS are cut before they are
printed, because a title of a site may have a megabyte.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from markupsafe import Markup, escape

from crawler.reports.target import target_id
from crawler.utils.text import amount, megabytes, span

MAX_CHARACTERS = 2000
ELLIPSIS = "…"
LINKED = ("http", "https")
NOTHING = Markup('<span class="none">\N{EN DASH}</span>')


def cut(value: Any, characters: int = MAX_CHARACTERS) -> Any:
    """Return a text of at most so many characters; other values, and markup, unchanged.

    Lone surrogates, which cannot be encoded, become replacement characters.
    """
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    text = value if len(value) <= characters else value[: characters - 1] + ELLIPSIS
    return text.encode("utf-8", "replace").decode()


def shown(value: Any) -> Any:
    """Return a value as templates print it: nothing for None, long texts cut."""
    return "" if value is None else cut(value)


def time_of(at: datetime | None) -> Markup:
    """Return a time in UTC, which a script converts to the reader's zone; a dash for None."""
    if at is None:
        return NOTHING
    utc = at.astimezone(UTC)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        f"{utc:%Y-%m-%dT%H:%M:%S}Z", f"{utc:%Y-%m-%d %H:%M:%S} UTC", f"{utc:%Y-%m-%d %H:%M} UTC"
    )


def ago(at: datetime | None, now: datetime) -> Markup:
    """Return a time by its distance, such as `3 h ago` or `in 5 min`; a dash for None."""
    if at is None:
        return NOTHING
    seconds = (now - at).total_seconds()
    text = f"{span(seconds)} ago" if seconds >= 0 else f"in {span(-seconds)}"
    utc = at.astimezone(UTC)
    return Markup('<time datetime="{}" title="{}" data-relative>{}</time>').format(
        f"{utc:%Y-%m-%dT%H:%M:%S}Z", f"{utc:%Y-%m-%d %H:%M:%S} UTC", text
    )


def number(value: float | None) -> str | Markup:
    """Return a number with separators of thousands; a dash for None."""
    return NOTHING if value is None else amount(value)


def utc(at: datetime) -> str:
    """Return a time in UTC as text, for attributes."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def decimal(value: float | None) -> str | Markup:
    """Return a number with three significant digits, or all of a longer integer part."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def exact(value: float) -> str:
    """Return a number with up to ten digits."""
    return f"{value:,.10g}"


def percent(share: float | None) -> str | Markup:
    """Return a share between 0 and 1 in percent; a dash for None."""
    return NOTHING if share is None else f"{share:.1%}".replace("%", " %")


def size(value: float | None) -> str | Markup:
    """Return a number of bytes in MB; a dash for None."""
    return NOTHING if value is None else megabytes(value)


def is_linked(url: Any) -> bool:
    """Return whether a URL from outside may be a link: only those of the web, not `javascript:`."""
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
    except ValueError:
        return False
    return parts is not None and parts.scheme in LINKED and bool(parts.netloc)


def outside(url: Any, text: Any = None) -> Markup:
    """Return a URL from outside as a link, or as text if it is not a URL of the web.

    text: shown instead of the URL
    """
    label = cut(str(url if text in (None, "") else text))
    if not is_linked(url) or len(url) > MAX_CHARACTERS:
        return Markup('<bdi class="outside">{}</bdi>').format(label)
    return Markup(
        '<a class="outside" href="{}" rel="noopener noreferrer nofollow" target="_blank">'
        "<bdi>{}</bdi></a>"
    ).format(cut(url), label)


def whole(text: str) -> Markup:
    """Return a text of the app itself without a cut; never use it for text from outside."""
    return escape(text)


FILTERS = {
    "ago": ago, "cut": cut, "decimal": decimal, "exact": exact, "number": number,
    "outside": outside, "percent": percent, "size": size, "target_id": target_id,
    "time": time_of, "utc": utc, "whole": whole,
}  # fmt: skip
