"""Amounts as users write them: `265/day`, `6h`, `95%`."""

from __future__ import annotations

import math
import re

_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"
_PER_DAY = re.compile(rf"{_NUMBER}\s*(?:/\s*d(?:ay)?)?", re.I)
_PER_HOUR = re.compile(rf"{_NUMBER}\s*(?:/\s*h(?:our)?)?", re.I)
_DURATION = re.compile(rf"{_NUMBER}\s*(m|h|d|w)", re.I)
_SHARE = re.compile(rf"{_NUMBER}\s*(%?)")
_PERIOD = re.compile(rf"{_NUMBER}\s*(s|m|h|d|w)", re.I)
_HOURS = {"m": 1 / 60, "h": 1.0, "d": 24.0, "w": 168.0}
_SECONDS = {"s": 1.0} | {unit: 3600 * hours for unit, hours in _HOURS.items()}


def per_day(text: str) -> float:
    """Requests a day, >= 0, from `265` or `265/day`; ValueError says what is wrong."""
    if not (found := _PER_DAY.fullmatch(text.strip())):
        raise ValueError(f"{text!r} is no number of requests a day, such as 265, 265/day or 0.5")
    return float(found[1])


def per_hour(text: str) -> float:
    """Requests an hour, >= 0, from `40` or `40/hour`; ValueError says what is wrong."""
    if not (found := _PER_HOUR.fullmatch(text.strip())):
        raise ValueError(f"{text!r} is no number of requests an hour, such as 40 or 40/hour")
    return float(found[1])


def hours(text: str) -> float:
    """Hours, > 0, from `90m`, `6h`, `2d` or `1w`; ValueError says what is wrong."""
    found = _DURATION.fullmatch(text.strip())
    if not found or not (amount := float(found[1])):
        raise ValueError(f"{text!r} is no time such as 90m, 6h, 2d or 1w")
    return amount * _HOURS[found[2].lower()]


def seconds(text: str) -> float:
    """Seconds, > 0, from `30s`, `5m`, `2h`, `1d` or `1w`; ValueError says what is wrong."""
    found = _PERIOD.fullmatch(text.strip())
    if not found or not (amount := float(found[1])):
        raise ValueError(f"{text!r} is no time such as 30s, 5m, 2h, 1d or 1w")
    return amount * _SECONDS[found[2].lower()]


def share(text: str) -> float:
    """A share, > 0 and < 1, from `0.95` or `95%`; ValueError says what is wrong."""
    found = _SHARE.fullmatch(text.strip())
    amount = float(found[1]) / (100 if found[2] else 1) if found else math.nan
    if not 0 < amount < 1:
        raise ValueError(f"{text!r} is no share between 0 and 1, such as 0.95 or 95%")
    return amount
