"""Requests as JSON for scrapy-redis, instead of pickle: who writes to Redis cannot run code here.

What JSON does not know is marked: bytes and dictionaries whose keys are no text.

Only requests of a bounded size that have nothing but the keys, headers and meta below are shared by
workers. All others stay with the worker that made them, so that a text in Redis cannot choose a
proxy, send a cookie or switch robots.txt off.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from crawler.utils.urls import is_http

BYTES, PAIRS = "$bytes", "$pairs"
MAX_BYTES, MAX_DEPTH = 256_000, 32
MAX_URL, MAX_PRIORITY, MAX_TRIES = 8_000, 1_000_000, 20
# A string, closed or not, or what opens or closes a list or an object. Possessive, so that each
# character is read once.
TOKENS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)
METHODS = frozenset({"GET", "HEAD", "POST"})
HEADERS = frozenset(
    {b"accept", b"accept-language", b"content-type", b"origin", b"referer", b"x-requested-with"}
)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_int(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_name(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _are_headers(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(name, bytes)
        and name.lower() in HEADERS
        and isinstance(lines, list)
        and all(isinstance(x, bytes) and not re.search(rb"[\r\n\0]", x) for x in lines)
        for name, lines in value.items()
    )


META: dict[str, Callable[[Any], bool]] = {
    "depth": lambda value: _is_int(value, 0, MAX_PRIORITY),
    "dont_merge_cookies": _is_bool,
    "dont_redirect": _is_bool,
    "dont_retry": _is_bool,
    "handle_httpstatus_all": _is_bool,
    "handle_httpstatus_list": lambda value: (
        isinstance(value, list) and all(_is_int(status, 100, 999) for status in value)
    ),
    "max_retry_times": lambda value: _is_int(value, 0, MAX_TRIES),
}
# What each part of a request must be; all but the URL may be left out.
PARTS: dict[str, Callable[[Any], bool]] = {
    "url": lambda value: isinstance(value, str) and len(value) <= MAX_URL and is_http(value),
    "callback": _is_name,
    "errback": _is_name,
    "method": lambda value: isinstance(value, str) and value in METHODS,
    "headers": _are_headers,
    "body": lambda value: isinstance(value, bytes),
    "cookies": lambda value: value in ({}, []),
    "meta": lambda value: (
        isinstance(value, dict)
        and all(name in META and META[name](entry) for name, entry in value.items())
    ),
    "encoding": lambda value: value == "utf-8",
    "priority": lambda value: _is_int(value, -MAX_PRIORITY, MAX_PRIORITY),
    "dont_filter": _is_bool,
    "flags": lambda value: value == [],
    "cb_kwargs": lambda value: isinstance(value, dict) and all(isinstance(k, str) for k in value),
}


def dumps(value: dict[str, Any]) -> str:
    """A request's dictionary as text; raises TypeError for what cannot be told in JSON."""
    return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"))


def loads(text: str | bytes) -> dict[str, Any]:
    """What `dumps` was given; raises ValueError for what it never wrote, or what is too large."""
    raw = text.encode() if isinstance(text, str) else text
    if len(raw) > MAX_BYTES:
        raise ValueError(f"longer than {MAX_BYTES:,} bytes")
    text = raw.decode()
    depth = 0
    # Python's parser of JSON goes as deep as the text does, until its stack is full.
    for token in TOKENS.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token[0], 0)
        if depth > MAX_DEPTH:
            raise ValueError(f"nested more than {MAX_DEPTH} deep")
    try:
        value = _lively(json.loads(text))
    except TypeError as error:
        raise ValueError(str(error)) from None
    if not isinstance(value, dict):
        raise ValueError("not a request")
    return value


def check(value: dict[str, Any]) -> None:
    """Raise ValueError, which names the part, unless workers may share a request's dictionary."""
    if "url" not in value:
        raise ValueError("no url")
    for name, part in value.items():
        if name not in PARTS or not PARTS[name](part):
            raise ValueError(f"{name!r} is not allowed in Redis, or has a value that is not")


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
