"""Serialize requests for scrapy-redis as JSON, so that write access to Redis cannot run code.

With pickle, scrapy-redis's default, it could. Types that JSON lacks are marked: bytes, and dicts
with keys that are not strings.

Workers share only requests of limited size with the keys, headers and meta below. All other
requests stay with the worker that created them, so that no one can use Redis to choose a proxy,
send a cookie or disable robots.txt.
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
# A string, closed or not, or a bracket. The quantifiers are possessive, so that each character is
# read once.
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
# Checks of the parts of a request; all parts but the URL are optional.
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
    """Serialize a request's dict; raises TypeError for types that are not supported."""
    return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"))


def loads(text: str | bytes) -> dict[str, Any]:
    """Deserialize a request's dict; raises ValueError if it is too large or not from `dumps`."""
    raw = text.encode() if isinstance(text, str) else text
    if len(raw) > MAX_BYTES:
        raise ValueError(f"longer than {MAX_BYTES:,} bytes")
    text = raw.decode()
    depth = 0
    # Check the depth first: json.loads would exhaust the stack.
    for token in TOKENS.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token[0], 0)
        if depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    try:
        value = _restored(json.loads(text))
    except TypeError as error:
        raise ValueError(str(error)) from None
    if not isinstance(value, dict):
        raise ValueError("not a request")
    return value


def check(value: dict[str, Any]) -> None:
    """Raise ValueError with the name of the part unless workers can share a request's dict."""
    if "url" not in value:
        raise ValueError("missing url")
    for name, part in value.items():
        if name not in PARTS or not PARTS[name](part):
            raise ValueError(f"unsupported part or value: {name!r}")


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


def _restored(value: Any) -> Any:
    if isinstance(value, list):
        return [_restored(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {BYTES}:
        return str(value[BYTES]).encode("latin-1")
    if value.keys() == {PAIRS}:
        return {_restored(key): _restored(entry) for key, entry in value[PAIRS]}
    return {key: _restored(entry) for key, entry in value.items()}
