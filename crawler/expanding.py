"""Secrets stand in the environment: `${VARIABLE}` in the keys of a wrapper."""

from __future__ import annotations

import os
import re
from urllib.parse import parse_qsl, quote, urlsplit

VARIABLE = re.compile(r"\$\{(\w+)\}")
SECRET_NAMES = re.compile(r"authorization|cookie|token|secret|password|api-?key|session", re.I)


def expanded(value: str) -> str:
    """The text with the variables' values; ValueError names one that is not set."""
    return VARIABLE.sub(lambda found: _value(found[1]), value)


def expanded_url(value: str) -> str:
    """As `expanded`, where a value may be the whole URL, or stand in it escaped."""
    if whole := VARIABLE.fullmatch(value):
        return _value(whole[1])
    return VARIABLE.sub(lambda found: quote(_value(found[1]), safe=""), value)


def shows_secret(url: str) -> bool:
    """Whether a password stands in a URL as it is, not as a variable."""
    parts = urlsplit(url)
    named = [value for name, value in parse_qsl(parts.query) if SECRET_NAMES.search(name)]
    return any(VARIABLE.sub("", secret) for secret in (parts.password or "", *named))


def _value(name: str) -> str:
    if (secret := os.environ.get(name)) is None:
        raise ValueError(f"environment variable {name} is not set")
    return secret
