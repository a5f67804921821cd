"""Invariants of content: stored values and hashes."""

from __future__ import annotations

import json
import unicodedata
from datetime import UTC, datetime
from typing import Any

import bson
from hypothesis import given
from hypothesis import strategies as st

from crawler.extract.content import content_hash, digest, normal
from crawler.items import Kind, Link
from tests.unit.pages import fetched, target

TEXTS = st.text(st.characters(), max_size=20)
MOMENTS = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | MOMENTS
VALUES: st.SearchStrategy[Any] = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=8,
)
CONTENTS = st.dictionaries(st.from_regex(r"[a-z_]{1,6}", fullmatch=True), VALUES, max_size=5)
LINKS = st.builds(
    Link,
    st.integers(0, 5).map(lambda n: f"https://shop.example/item/{n}"),
    st.sampled_from(Kind),
    st.none() | st.sampled_from(["tea", "mugs"]),
)


@given(VALUES)
def test_normal_form_can_be_stored_and_hashed(value: Any) -> None:
    assert bson.encode({"value": normal(value)})
    assert len(digest(normal(value))) == 32


@given(TEXTS)
def test_nul_and_lone_surrogates_are_removed(text: str) -> None:
    clean = normal(text)
    assert "\0" not in clean
    assert clean.encode("utf-8").decode("utf-8") == clean


@given(VALUES)
def test_normal_form_is_idempotent(value: Any) -> None:
    once = normal(value)
    assert repr(normal(once)) == repr(once)


@given(TEXTS)
def test_normal_form_ignores_unicode_composition(text: str) -> None:
    clean = normal(text)
    assert normal(unicodedata.normalize("NFD", clean)) == clean


@given(CONTENTS, st.randoms())
def test_hash_ignores_key_order(content: dict[str, Any], order: Any) -> None:
    pairs = list(normal(content).items())
    shuffled = list(pairs)
    order.shuffle(shuffled)
    assert digest(dict(pairs)) == digest(dict(shuffled))


@given(CONTENTS, CONTENTS)
def test_only_equal_contents_have_equal_hashes(one: dict[str, Any], other: dict[str, Any]) -> None:
    one, other = normal(one), normal(other)
    as_text = [json.dumps(value, sort_keys=True, default=str) for value in (one, other)]
    assert (digest(one) == digest(other)) == (as_text[0] == as_text[1])


@given(st.lists(LINKS, max_size=6), st.randoms())
def test_hash_ignores_link_order(links: list[Link], order: Any) -> None:
    shuffled = list(links)
    order.shuffle(shuffled)
    hashes = {content_hash(fetched(target(Kind.LIST), links=tuple(x))) for x in (links, shuffled)}
    assert len(hashes) == 1
