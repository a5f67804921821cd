"""Parse JSON without losing digits of its numbers, and without half characters in its texts."""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal, InvalidOperation
from typing import Any

from crawler.utils.text import without_surrogates

# Floats with at most this many characters have all digits of the text, unless it has an exponent.
MAX_FLOAT_CHARACTERS = 16
# Longer integers are text. Converting them takes quadratic time, and Python refuses it.
MAX_DIGITS = 300
INT64 = 2**63
# One of two escapes that only together are a character.
_HALF = re.compile(r"\\u[dD][89a-fA-F]")


class Digits(str):
    """A number as text, because a float would lose digits of it."""

    __slots__ = ()


def loads(text: str) -> Any:
    """Return the value of a JSON document; raises ValueError or RecursionError.

    Numbers keep all their digits: those that do not fit a float are int or Digits. Halves of
    surrogate pairs become U+FFFD. Control characters in texts are accepted.
    """
    value = json.loads(text, strict=False, parse_float=_float, parse_int=_int)
    return _clean(value) if _HALF.search(text) or not text.isascii() else value


def exact_number(value: Decimal) -> int | float | Digits:
    """Return a decimal as float or int if that is exact, else its digits."""
    as_float = float(value)
    if math.isfinite(as_float) and Decimal(repr(as_float)) == value:
        return as_float
    # The size first: 1e999999999 has a billion digits as an int.
    if value.is_finite() and abs(value) < INT64 and value == value.to_integral_value():
        return int(value)
    return Digits(value)


def _float(text: str) -> int | float | Digits:
    if len(text) <= MAX_FLOAT_CHARACTERS and "e" not in text and "E" not in text:
        return float(text)
    try:
        return exact_number(Decimal(text))
    except InvalidOperation:
        return Digits(text)


def _int(text: str) -> int | Digits:
    return int(text) if len(text) <= MAX_DIGITS else Digits(text)


def _clean(value: Any) -> Any:
    if isinstance(value, str) and not isinstance(value, Digits):
        return without_surrogates(value)
    if isinstance(value, list):
        return [_clean(part) for part in value]
    if isinstance(value, dict):
        return {without_surrogates(key): _clean(part) for key, part in value.items()}
    return value
