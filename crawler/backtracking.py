"""Regular expressions that try more and more ways: found before a crawl, by texts made for them.

A repeat within a repeat, such as `(a+)+$`, goes through twice as many ways with each character of a
text that it does not fit. Texts are made of what each repeat takes, so often that it shows.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain, islice
from re import _constants as op  # type: ignore[attr-defined] # the parser that `re` itself uses
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from crawler.timelimit import TooLong, time_limit

# What URLs hold, for classes of characters.
USUAL = "a0/-_.=& "
MOST_EXAMPLES = 6
# A repeat that ends sooner is none.
FEW = 8
MOST_TEXTS = 80
LONGEST = 128
LENGTHS = (*range(4, 40, 2), 48, 64, 96, LONGEST)
ENDS = ("", "!", "//", "\n\n")
TOO_LONG_SECONDS = 0.2
ENOUGH_SECONDS = 2.0
SHOWN_CHARACTERS = 40
REPEATS = frozenset({op.MAX_REPEAT, op.MIN_REPEAT})
CATEGORIES = {
    op.CATEGORY_DIGIT: r"\d", op.CATEGORY_NOT_DIGIT: r"\D", op.CATEGORY_SPACE: r"\s",
    op.CATEGORY_NOT_SPACE: r"\S", op.CATEGORY_WORD: r"\w", op.CATEGORY_NOT_WORD: r"\W",
}  # fmt: skip
Parts = Iterable[tuple[Any, Any]]


@lru_cache(maxsize=1024)
def hard_text(pattern: str) -> str | None:
    """A short text that a regular expression takes long to refuse; None where none was found.

    pattern: one that compiles
    """
    compiled, began = re.compile(pattern), time.thread_time()
    for before, repeated in islice(_repeats(pattern), MOST_TEXTS):
        for end in ENDS:
            text = _first_hard(compiled, before, repeated, end)
            if text is not None or time.thread_time() - began > ENOUGH_SECONDS:
                return text
    return None


def refuse_endless(pattern: str) -> None:
    """Raise ValueError for a regular expression that takes long to refuse a short text."""
    if (text := hard_text(pattern)) is not None:
        shown = text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
        raise ValueError(
            f"{pattern!r} may search for ever, as in {shown!r} "
            "(repeats within repeats, such as (a+)+, or in a row that fit the same)"
        )


def _first_hard(compiled: re.Pattern[str], before: str, repeated: str, end: str) -> str | None:
    """The shortest of texts with more and more of the same that takes too long."""
    for length in LENGTHS:
        text: str = before + repeated * (length // len(repeated)) + end
        if _is_hard(compiled, text):
            return text
    return None


def _is_hard(compiled: re.Pattern[str], text: str) -> bool:
    began = time.thread_time()
    try:
        with time_limit(TOO_LONG_SECONDS):
            compiled.search(text)
    except TooLong:
        return True
    return time.thread_time() - began > TOO_LONG_SECONDS


def _repeats(pattern: str) -> Iterator[tuple[str, str]]:
    """What a text has to begin with to come to a repeat, and what that takes; each pair once."""
    tree = parser.parse(pattern)
    found = chain.from_iterable(_within(tree, "", n) for n in range(MOST_EXAMPLES))
    yield from dict.fromkeys(pair for pair in found if 0 < len(pair[1]) <= LONGEST)


def _within(parts: Parts, before: str, n: int) -> Iterator[tuple[str, str]]:
    for code, value in parts:
        if code in REPEATS and value[1] >= FEW:
            yield before, _example(value[2], n)
        for inner in _inner(code, value):
            yield from _within(inner, before, n)
        before += _of_part(code, value, n)


def _inner(code: Any, value: Any) -> list[Parts]:
    """The sequences that a part is made of."""
    if code is op.BRANCH:
        return list(value[1])
    if code in REPEATS or code is op.POSSESSIVE_REPEAT:
        return [value[2]]
    if code is op.SUBPATTERN:
        return [value[3]]
    if code is op.ATOMIC_GROUP:
        return [value]
    return [value[1]] if code in (op.ASSERT, op.ASSERT_NOT) else []


def _example(parts: Parts, n: int) -> str:
    """The n-th text that fits a sequence."""
    return "".join(_of_part(code, value, n) for code, value in parts)


def _of_part(code: Any, value: Any, n: int) -> str:
    if code is op.LITERAL:
        return chr(value)
    if code in (op.ANY, op.IN, op.NOT_LITERAL):
        fit = [x for x in USUAL if _fits(code, value, x)] or [chr(0x4E00)]
        return fit[n % len(fit)]
    inner = _inner(code, value)
    if not inner or code in (op.ASSERT, op.ASSERT_NOT):
        return ""
    text = _example(inner[n % len(inner)], n)
    # Now and then with what may be left out.
    times = max(value[0], n % 2) if code in REPEATS else 1
    return text * min(times, FEW)


def _fits(code: Any, value: Any, character: str) -> bool:
    if code is op.NOT_LITERAL:
        return bool(ord(character) != value)
    if code is op.ANY:
        return True
    negated = value[0][0] is op.NEGATE
    return negated is not any(_holds(kind, entry, character) for kind, entry in value)


def _holds(code: Any, value: Any, character: str) -> bool:
    """Whether one entry of a class holds a character."""
    if code is op.LITERAL:
        return bool(ord(character) == value)
    if code is op.RANGE:
        return bool(value[0] <= ord(character) <= value[1])
    return bool(code is op.CATEGORY) and re.match(CATEGORIES[value], character) is not None
