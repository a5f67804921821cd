"""Requests as JSON: lossless round trips, and no code execution on input."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler.frontier.redis_queue import MAX_BYTES, MAX_DEPTH, check, dumps, loads

LEAVES = st.none() | st.booleans() | st.integers() | st.text() | st.binary()
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.binary(), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text() | st.binary(), VALUES))
def test_values_survive_a_round_trip(value: dict[str, object]) -> None:
    assert loads(dumps(value)) == value


def test_bytes_in_headers_and_body_survive_a_round_trip() -> None:
    request = {"url": "http://a/", "headers": {b"Accept": [b"*/*"]}, "body": b"\xff\0"}
    assert loads(dumps(request)) == request


@pytest.mark.parametrize("value", [object(), {1, 2}, lambda: None])
def test_unsupported_types_are_rejected(value: object) -> None:
    with pytest.raises(TypeError, match="cannot be written as JSON"):
        dumps({"meta": value})


@pytest.mark.parametrize("text", [pickle.dumps({"url": "http://a/"}), b"[1]", b"", b"\xff"])
def test_invalid_input_is_rejected(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        loads(text)


def test_output_is_json() -> None:
    assert json.loads(dumps({"a": [1, "b"]})) == {"a": [1, "b"]}


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1),
        '{"a": "' + "x" * MAX_BYTES + '"}',
        '{"a": "\udcff"}',
        '{"$pairs": 7}',
        '{"$pairs": [[[], 1]]}',
        # A backtracking pattern would take quadratic time here.
        '"\\' * (MAX_BYTES // 2),
        '{"a": ' + '"\\"' * (MAX_BYTES // 4),
    ],
)
def test_oversized_or_deeply_nested_input_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        loads(text)


def test_brackets_in_strings_do_not_count_as_nesting() -> None:
    value = {"a": '\\"[{' * 1000, "b": [{"c": "]"}]}
    assert loads(dumps(value)) == value


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("url", "file:///etc/passwd"),
        ("url", "http://a/" + "x" * 10_000),
        ("method", "CONNECT"),
        ("method", ["GET"]),
        ("headers", {b"Authorization": [b"Basic eA=="]}),
        ("headers", {b"Accept": b"*/*"}),
        ("meta", {"bindaddress": "10.0.0.1"}),
        ("meta", {"target": {}}),
        ("meta", {"dont_retry": 1}),
        ("meta", {"handle_httpstatus_list": ["200"]}),
        ("cookies", [{"name": "a", "value": "b"}]),
        ("encoding", "utf-7"),
        ("priority", True),
        ("flags", ["cached"]),
        ("cb_kwargs", {b"a": 1}),
        ("_class", "scrapy.http.request.form.FormRequest"),
        ("args", []),
    ],
)
def test_disallowed_request_part_is_named_in_the_error(part: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"'{part}'"):
        check({"url": "http://a/", part: value})


def test_request_with_allowed_parts_is_accepted() -> None:
    check(
        {
            "url": "http://a/", "callback": "read", "errback": None, "method": "POST",
            "headers": {b"Accept-Language": [b"it"]}, "body": b"x", "cookies": {},
            "meta": {"depth": 1, "handle_httpstatus_list": [404]}, "encoding": "utf-8",
            "priority": -3, "dont_filter": False, "flags": [], "cb_kwargs": {"of": [1]},
        }
    )  # fmt: skip
