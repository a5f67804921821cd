"""Requests as JSON for scrapy-redis, instead of pickle: who writes to Redis cannot run code here.

What JSON does not know is marked: bytes and dictionaries whose keys are no text.
"""

from __future__ import annotations

import json
from typing import Any

BYTES, PAIRS = "$bytes", "$pairs"


def dumps(value: dict[str, Any]) -> str:
    """A request's dictionary as text; raises TypeError for what cannot be told in JSON."""
    return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"))


def loads(text: str | bytes) -> dict[str, Any]:
    """What `dumps` was given; raises ValueError for what it never wrote."""
    value = _lively(json.loads(text))
    if not isinstance(value, dict):
        raise ValueError("not a request")
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {BYTES: value.decode("latin-1")}
    if isinstance(value, dict):
        pairs = [(_plain(key), _plain(entry)) for key, entry in value.items()]
        if all(isinstance(key, str) and not key.startswith("$") for key, _ in pairs):
            return dict(pairs)
        return {PAIRS: pairs}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def _lively(value: Any) -> Any:
    if isinstance(value, list):
        return [_lively(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {BYTES}:
        return str(value[BYTES]).encode("latin-1")
    if value.keys() == {PAIRS}:
        return {_lively(key): _lively(entry) for key, entry in value[PAIRS]}
    return {key: _lively(entry) for key, entry in value.items()}
