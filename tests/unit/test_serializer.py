"""Requests as JSON: what goes out comes back, and nothing that comes in can run."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler.redis.serializer import dumps, loads

LEAVES = st.none() | st.booleans() | st.integers() | st.text() | st.binary()
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.binary(), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text() | st.binary(), VALUES))
def test_what_is_written_is_read(value: dict[str, object]) -> None:
    assert loads(dumps(value)) == value


def test_a_request_has_bytes_in_its_headers_and_its_body() -> None:
    request = {"url": "http://a/", "headers": {b"Accept": [b"*/*"]}, "body": b"\xff\0"}
    assert loads(dumps(request)) == request


@pytest.mark.parametrize("value", [object(), {1, 2}, lambda: None])
def test_what_json_cannot_tell_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="cannot be written as JSON"):
        dumps({"meta": value})


@pytest.mark.parametrize("text", [pickle.dumps({"url": "http://a/"}), b"[1]", b"", b"\xff"])
def test_what_was_never_written_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        loads(text)


def test_the_text_is_json() -> None:
    assert json.loads(dumps({"a": [1, "b"]})) == {"a": [1, "b"]}
