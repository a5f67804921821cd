"""Normalize untrusted text, format figures for people, and make names storable in MongoDB.

All Unicode normalization goes through this module, because `unicodedata.normalize` is not safe for
untrusted text. It sorts combining marks by insertion while it holds the GIL: a million marks in a
row take hours, and signals cannot interrupt it. It can also multiply the size of a text: NFKC
converts U+FDFA to 18 characters. `normalized` takes linear time and bounded memory.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache
from typing import Any, Literal

# Legacy encodings that texts without a declaration may have.
LIKELY = ("cp949", "cp932", "gb18030", "big5", "euc_jp", "cp1251", "koi8_r", "cp1252")
GUESSED_BYTES = 65_536


def guessed_encoding(data: bytes, *more: str) -> str | None:
    """Return the most likely encoding of a text, from its start; None if none of them fits.

    more: encodings to consider in addition to LIKELY
    """
    from charset_normalizer import from_bytes  # slow to import, and rarely needed

    best = from_bytes(data[:GUESSED_BYTES], cp_isolation=[*LIKELY, *more]).best()
    return best.encoding if best else None


Form = Literal["NFC", "NFD", "NFKC", "NFKD"]
# Maximum number of combining marks on one letter, as in the Stream-Safe Text Format (UAX #15). Real
# languages need up to 8.
MAX_MARKS = 30
# Characters of a text that are compared and searched, before and after normalization.
MAX_CHARACTERS = 1_000_000
# Longer texts are normalized in pieces of this size.
PIECE_CHARACTERS = 65_536
# All combining marks have smaller code points. Scanning all of Unicode would slow down the first
# use.
END_OF_MARKS = 0x1F000
# Characters with combining class 0 that normalize to combining marks.
BECOME_MARKS = "\u0f73\u0f75\u0f81\uff9e\uff9f"
# Characters that never combine with preceding ones: safe points to split a text.
APART = re.compile("[\x00-\x7f\u3400-\u9fff]")


# Invisible characters: soft hyphen, joiners, directions, zero-width spaces, byte order,
# variation selectors (the same emoji in color or not), tags.
INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u180b-\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\ufe00-\ufe0f\ufeff\U000e0000-\U000e0fff]"
)
# Spaces that look like an ordinary one.
SPACES = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")


def seen_text(text: str) -> str:
    """Return a text without the characters that nobody sees, and with ordinary spaces."""
    return text if text.isascii() else SPACES.sub(" ", INVISIBLE.sub("", text))


def seen(value: Any) -> Any:
    """Return a value with `seen_text` in place of each of its texts."""
    if isinstance(value, str):
        return seen_text(value)
    if isinstance(value, list | tuple):
        return [seen(each) for each in value]
    if isinstance(value, dict):
        return {name: seen(each) for name, each in value.items()}
    return value


def differs(before: Any, after: Any) -> bool:
    """Return whether two values differ to the eye; invisible characters make no difference."""
    return bool(before != after) and seen(before) != seen(after)


_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]+")
MINUS = "\N{MINUS SIGN}"
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def without_surrogates(text: str) -> str:
    """Return a text with U+FFFD in place of lone surrogates, which no encoding can represent.

    They are halves of characters, from programs that cut a text within an emoji.
    """
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def one_line(text: str, max_characters: int) -> str:
    """Return a text without line breaks and control characters, cut to a number of characters."""
    shown = " ".join(_CONTROL.sub(" ", text).split())
    return shown if len(shown) <= max_characters else f"{shown[: max_characters - 1]}…"


def signed_percent(ratio: float) -> str:
    """Format how much a number changed in percent, with its sign: `+20 %`."""
    percents = abs(100 * ratio)
    decimals = 0 if percents >= 99.95 else 1
    text = f"{percents:,.{decimals}f}".removesuffix(".0")
    return f"{MINUS if ratio < 0 else '+'}{text} %"


def normalized(form: Form, text: str, max_characters: int | None = None) -> str:
    """Return a text in a normal form; marks beyond MAX_MARKS on one letter are dropped.

    max_characters: maximum length of the text before and after normalization
    """
    text = with_few_marks(text[:max_characters])
    # Nearly all texts are already normalized, and checking is many times faster.
    if text.isascii() or unicodedata.is_normalized(form, text):
        return text
    parts, room = [], max_characters
    for piece in _pieces(text):
        # Normalization may expand one mark to two.
        part = with_few_marks(unicodedata.normalize(form, piece))[:room]
        parts.append(part)
        if room is not None and (room := room - len(part)) <= 0:
            break
    return "".join(parts)


def with_few_marks(text: str) -> str:
    """Drop all combining marks beyond the first MAX_MARKS in a row."""
    if text.isascii():
        return text
    mark, long_run = _mark_patterns()
    # Every run that is too long has a mark at a multiple of MAX_MARKS. Most texts have none there.
    return long_run.sub(r"\1", text) if mark.search(text[::MAX_MARKS]) else text


@cache
def _mark_patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return patterns for a combining mark, and for a long run; its group has those to keep."""
    marks = (chr(code) for code in range(0x300, END_OF_MARKS) if unicodedata.combining(chr(code)))
    mark = f"[{''.join(marks)}{BECOME_MARKS}]"
    return re.compile(mark), re.compile(f"({mark}{{{MAX_MARKS}}}){mark}++")


def _pieces(text: str) -> Iterator[str]:
    """Split a text into pieces that can be normalized separately."""
    start = 0
    while len(text) - start > PIECE_CHARACTERS:
        end = start + PIECE_CHARACTERS
        # A text without a safe point in a whole piece is not meaningful: split it anywhere.
        safe = APART.search(text, end, end + PIECE_CHARACTERS)
        end = safe.start() if safe else end
        yield text[start:end]
        start = end
    yield text[start:]


SHOWN_NAMES = 5
# Estimates are not shown if their upper bound is more than this many times the lower bound.
MAX_FACTOR = 10
NOT_KNOWN = "not known yet"
MINUTE, HOUR, DAY = 60, 3600, 86_400
VOWELS = frozenset("aeiou")
# What a document of a collection is, if the name of the collection does not say it.
COLLECTIONS = {
    "days": "daily aggregate", "dead_letters": "dead letter", "outbox": "undelivered notification",
    "pushes": "push subscription", "sites": "site definition",
}  # fmt: skip


def amount(number: float) -> str:
    """Format a number (>= 0) with at least three significant digits: `1,234`, `26.5`, `0.125`."""
    whole = number >= 99.95 or number == round(number)
    # Decimal never formats with an exponent.
    return f"{number:,.0f}" if whole else f"{Decimal(f'{number:.3g}'):f}"


def rounded_up(number: float) -> str:
    """Format a number rounded up: to an integer above 10, else to two decimal places."""
    if number > 10:
        return f"{math.ceil(number)}"
    return f"{math.ceil(number * 100) / 100:g}"


def plain(number: float) -> str:
    """Format a number with six significant digits and no exponent, as options accept it."""
    return f"{Decimal(f'{number:.6g}'):f}"


def precise(number: float) -> str:
    """Format a number with at least six significant digits: `1,234,567`, `12,345.6`, `0.125`."""
    return f"{number:,.0f}" if number >= 99_999.5 else f"{Decimal(f'{number:.6g}'):,f}"


def is_price(value: Any) -> bool:
    """Return whether a stored value is a price: a dict of an amount and a currency."""
    return isinstance(value, Mapping) and value.keys() == {"amount", "currency"}


def price(value: Mapping[str, Any]) -> str:
    """Format a price with all its decimals: `£69.60`, `1,999 EUR`, `1.0832 USD`, `-$5`, `9.50`."""
    number, currency = value["amount"], value["currency"]
    if not isinstance(number, int | float) or not math.isfinite(number):
        return " ".join(str(part) for part in (number, currency) if part is not None)
    decimals = 0 if number == round(number) else 2 if number == round(number, 2) else ""
    shown = f"{abs(number):,.{decimals}f}" if decimals != "" else f"{abs(number):,}"
    sign = "-" if number < 0 else ""
    if not currency:
        return f"{sign}{shown}"
    is_symbol = len(currency) == 1
    return f"{sign}{currency}{shown}" if is_symbol else f"{sign}{shown} {currency}"


def count(n: float, noun: str) -> str:
    """Format a number (>= 0) of things: `1 target`, `1,200 targets`, `2 copies`, `0.5 posts`."""
    shown = amount(n)
    return f"{shown} {noun if shown == '1' else _plural(noun)}"


def _plural(noun: str) -> str:
    if noun.endswith("y") and noun[-2:-1] not in VOWELS:
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"


def documents(counts: Mapping[str, int]) -> str:
    """Format numbers of documents by collection: `2 targets, 5 visits, 1 daily aggregate`."""
    return ", ".join(count(n, COLLECTIONS.get(name, name[:-1])) for name, n in counts.items() if n)


def relative(ratio: float, what: str) -> str:
    """Format a ratio to other things: `46.0% of these requests`, `24 times these requests`."""
    return f"{ratio:.1%} of {what}" if ratio < 2 else f"{amount(ratio)} times {what}"


def probability(p: float) -> str:
    """Format a probability: `12%`, `0.15%`, and `less than 0.01%` if it is that small."""
    return f"{amount(float(f'{100 * p:.2g}'))}%" if p >= 1e-4 else "less than 0.01%"


def megabytes(n: float) -> str:
    """Format a number of bytes as `0.3 MB` or `1,200 MB`."""
    mb = n / 1024**2
    return f"{mb:,.0f} MB" if mb >= 10 else f"{mb:.1f} MB"


def listed(names: Sequence[str], shown: int = SHOWN_NAMES) -> str:
    """Join the first names with commas, and add the number of the others: `a, b and 3 more`."""
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {more} more" if more > 0 else "")


def is_known(low: float | None, high: float | None) -> bool:
    """Return True if an interval (>= 0) exists and its bounds differ by at most MAX_FACTOR."""
    return low is not None and high is not None and bool(0 < high <= MAX_FACTOR * low)


def moment(at: datetime, now: datetime) -> str:
    """Format a future time with its distance: `2026-05-01 20:10 UTC (in 65 min)`."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC (in {span((at - now).total_seconds())})"


def day(at: date) -> str:
    """Format a date as people write it: `20 Nov 2026`."""
    return f"{at.day} {MONTHS[at.month - 1]} {at.year}"


def span(seconds: float, *, is_exact: bool = True) -> str:
    """Format a duration or an age: `45 s`, `39 min`, `10.7 h`, `3 days`.

    is_exact: whether small numbers of hours and days have a decimal
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * MINUTE:
        return f"{seconds / MINUTE:.0f} min"
    if seconds < 2 * DAY:
        return f"{round(seconds / HOUR, 1 if is_exact else None):g} h"
    days = seconds / DAY
    return f"{round(days, 1 if is_exact and days < 10 else None):g} days"


def period(hours: float) -> str:
    """Format a period to follow "every": `minute`, `5 minutes`, `hour`, `36 hours`, `28 days`."""
    amount, unit = hours * HOUR, "second"
    for seconds, name in ((MINUTE, "minute"), (HOUR, "hour"), (DAY, "day")):
        # Periods shorter than two days are shown in hours.
        if round(hours * HOUR / seconds, 1) >= (2 if name == "day" else 1):
            amount, unit = hours * HOUR / seconds, name
    shown = f"{round(amount, 1):g}"
    return unit if shown == "1" else f"{shown} {unit}s"


def visit_frequency(per_week: float) -> str:
    """Format a number of visits per week (> 0): `3 visits a week`, `a visit every 2 weeks`."""
    if per_week >= 14:
        return f"{round(per_week / 7, 1):g} visits a day"
    visits, weeks = f"{round(per_week, 1):g}", f"{round(1 / per_week, 1):g}"
    if "1" in (visits, weeks):
        return "a visit a week"
    return f"{visits} visits a week" if per_week > 1 else f"a visit every {weeks} weeks"


# Spaces are not allowed: the `_id` of a target is the name, a space and the URL.
SPIDER_NAME = r"^[A-Za-z0-9][\w.-]{0,63}\Z"
DOLLAR, FULL_DOLLAR = "$", "\uff04"
DOT, FULL_DOT = ".", "\uff0e"
NAMELESS = "_"


def is_spider_name(name: str) -> bool:
    """Return True if a site or spider can have this name."""
    return re.match(SPIDER_NAME, name) is not None


def storable_name(name: str) -> str:
    """Convert a name to a valid MongoDB field name.

    Each `.` and a leading `$` become their full-width forms; an empty name becomes `_`.
    """
    if name.startswith(DOLLAR):
        name = FULL_DOLLAR + name.removeprefix(DOLLAR)
    return name.replace(DOT, FULL_DOT) or NAMELESS


def with_storable_names(value: Any) -> Any:
    """Apply `storable_name` to the keys of all nested dicts; if keys collide, the last wins."""
    if isinstance(value, dict):
        return {storable_name(name): with_storable_names(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [with_storable_names(entry) for entry in value]
    return value
