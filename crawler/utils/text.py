"""Unicode normalization in linear time and bounded memory, for texts from outside.

`unicodedata` sorts the combining marks of a letter by insertion, with the interpreter locked: a
million marks in a row take hours, and no signal ends it. Some characters grow as well: NFKC makes
18 characters of U+FDFA. All normalization therefore goes through this module.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, Literal

Form = Literal["NFC", "NFD", "NFKC", "NFKD"]
# Marks on one letter, as in the Stream-Safe Text Format (UAX #15); real languages need 8.
MAX_MARKS = 30
# Characters of a text that are compared and searched, before and after normalization.
MAX_CHARACTERS = 1_000_000
# Of longer texts so many characters are normalized at a time.
PIECE_CHARACTERS = 65_536
# The last combining mark is below; with the table of all Unicode the first use would take longer.
END_OF_MARKS = 0x1F000
# Characters that become combining marks, but are none by their own class.
BECOME_MARKS = "\u0f73\u0f75\u0f81\uff9e\uff9f"
# Characters that never combine with what is before them.
APART = re.compile("[\x00-\x7f\u3400-\u9fff]")


def normalized(form: Form, text: str, longest: int | None = None) -> str:
    """Return a text in a normal form; marks beyond MAX_MARKS on one letter are dropped.

    longest: characters to read of the text, and to return
    """
    text = with_few_marks(text[:longest])
    # To ask is many times as fast, and nearly all texts are as they should be.
    if text.isascii() or unicodedata.is_normalized(form, text):
        return text
    parts, room = [], longest
    for piece in _pieces(text):
        # A mark may become two of them.
        part = with_few_marks(unicodedata.normalize(form, piece))[:room]
        parts.append(part)
        if room is not None and (room := room - len(part)) <= 0:
            break
    return "".join(parts)


def with_few_marks(text: str) -> str:
    """Return a text without the combining marks beyond the first MAX_MARKS in a row."""
    if text.isascii():
        return text
    mark, long_run = _patterns()
    # Each long run has a mark at one of these places, and most texts have none there.
    return long_run.sub(r"\1", text) if mark.search(text[::MAX_MARKS]) else text


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """A combining mark, and a run of too many with those to keep as its group."""
    marks = (chr(code) for code in range(0x300, END_OF_MARKS) if unicodedata.combining(chr(code)))
    mark = f"[{''.join(marks)}{BECOME_MARKS}]"
    return re.compile(mark), re.compile(f"({mark}{{{MAX_MARKS}}}){mark}++")


def _pieces(text: str) -> Iterator[str]:
    """Parts of a text that can be normalized one by one; one of usual length is one part."""
    start = 0
    while len(text) - start > PIECE_CHARACTERS:
        end = start + PIECE_CHARACTERS
        # Where nothing can be split safely within a whole piece, the text is not one to read.
        safe = APART.search(text, end, end + PIECE_CHARACTERS)
        end = safe.start() if safe else end
        yield text[start:end]
        start = end
    yield text[start:]


SHOWN_NAMES = 5
# An estimate whose upper bound is more than this many times the lower one is not shown.
MAX_FACTOR = 10
NOT_KNOWN = "not known yet"
MINUTE, HOUR, DAY = 60, 3600, 86_400


def amount(number: float) -> str:
    """A number >= 0 with three digits at least: 1,234 or 26.5 or 0.125."""
    whole = number >= 99.95 or number == round(number)
    return f"{number:,.0f}" if whole else f"{number:.3g}"


def rounded_up(number: float) -> str:
    """A number no smaller than this, and not much larger."""
    if number > 10:
        return f"{math.ceil(number)}"
    return f"{math.ceil(number * 100) / 100:g}"


def count(n: int, noun: str) -> str:
    """So many of something: `1 target`, `1,200 targets`."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def megabytes(n: float) -> str:
    """So many bytes as `0.3 MB`, `1,200 MB`."""
    mb = n / 1024**2
    return f"{mb:,.0f} MB" if mb >= 10 else f"{mb:.1f} MB"


def listed(names: Sequence[str], shown: int = SHOWN_NAMES) -> str:
    """Some names, and how many more there are."""
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {more} more" if more > 0 else "")


def is_known(low: float | None, high: float | None) -> bool:
    """Whether a figure >= 0 is known: its interval is there and within a factor of MAX_FACTOR."""
    return low is not None and high is not None and bool(0 < high <= MAX_FACTOR * low)


def moment(at: datetime, now: datetime) -> str:
    """A time to come and how far off it is: `2026-05-01 20:10 UTC (in 65 min)`."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC (in {span((at - now).total_seconds())})"


def span(seconds: float) -> str:
    """A length of time or an age: `45 s`, `39 min`, `10.7 h`, `3 days`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * MINUTE:
        return f"{seconds / MINUTE:.0f} min"
    if seconds < 2 * DAY:
        return f"{round(seconds / HOUR, 1):g} h"
    days = seconds / DAY
    return f"{round(days, 1 if days < 10 else None):g} days"


def period(hours: float) -> str:
    """A period as after "every": `minute`, `5 minutes`, `hour`, `36 hours`, `28 days`."""
    amount, unit = hours * HOUR, "second"
    for seconds, name in ((MINUTE, "minute"), (HOUR, "hour"), (DAY, "day")):
        # Up to two days are as clear in hours.
        if round(hours * HOUR / seconds, 1) >= (2 if name == "day" else 1):
            amount, unit = hours * HOUR / seconds, name
    shown = f"{round(amount, 1):g}"
    return unit if shown == "1" else f"{shown} {unit}s"


def often(per_week: float) -> str:
    """Visits a week, > 0, as people say it: `3 visits a week`, `a visit every 2 weeks`."""
    if per_week >= 14:
        return f"{round(per_week / 7, 1):g} visits a day"
    if per_week >= 1:
        return "a visit a week" if per_week == 1 else f"{round(per_week, 1):g} visits a week"
    return f"a visit every {round(1 / per_week, 1):g} weeks"


# Without blanks: `_id` of a target is the name, a blank and the URL.
SPIDER_NAME = r"^[A-Za-z0-9][\w.-]{0,63}\Z"
DOLLAR, FULL_DOLLAR = "$", "\uff04"
DOT, FULL_DOT = ".", "\uff0e"
NAMELESS = "_"


def is_spider_name(name: str) -> bool:
    """Return whether a site or a spider may have this name in the database."""
    return re.match(SPIDER_NAME, name) is not None


def storable_name(name: str) -> str:
    """A name with full-width forms for each `.` and for a first `$`; `_` for an empty one."""
    if name.startswith(DOLLAR):
        name = FULL_DOLLAR + name.removeprefix(DOLLAR)
    return name.replace(DOT, FULL_DOT) or NAMELESS


def with_storable_names(value: Any) -> Any:
    """A value whose dicts have such names at any depth; of two that become one the last counts."""
    if isinstance(value, dict):
        return {storable_name(name): with_storable_names(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [with_storable_names(entry) for entry in value]
    return value
