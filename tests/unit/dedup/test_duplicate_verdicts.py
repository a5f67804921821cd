"""Verdicts on two posts, from the similarity of their texts and their stored state."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from crawler.dedup.compare import ComparedPost, Measured, measure, verdict
from crawler.dedup.schemes import Scheme, scheme_of
from tests.integration.claiming import edited, text

SCHEME = scheme_of("characters", 0.7)
NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
LONG = text(1)


def side(key: str, words: str, scheme: Scheme = SCHEME, **stored: Any) -> ComparedPost:
    """Return a post whose stored sketch is up to date, unless `stored` overrides it."""
    sketch = scheme.sketch(words)
    fields = {"scheme": scheme.name, "stored": sketch, "at": NOON} | stored
    return ComparedPost(key, words, sketch, **fields)


def verdict_text(a: ComparedPost, b: ComparedPost, scheme: Scheme = SCHEME) -> str:
    return verdict(a, b, measure(a, b), scheme)


A = side("a", LONG)
B = side("b", edited(LONG, 3))
COPY = {"cluster": 1, "original": "a"}


def test_measures_bands_estimate_and_exact_similarity() -> None:
    measures = measure(A, B)
    assert (measures.of_bands, 0 < measures.shared_bands < 16) == (16, True)
    assert measures.exact["5 characters"] == pytest.approx(measures.similarity, abs=0.1)


def test_counts_only_bands_that_both_posts_can_share() -> None:
    short, middle = side("s", text(2, words=30)), side("m", text(2, words=50))
    assert measure(short, middle).of_bands == 25
    assert measure(middle, middle).of_bands == measure(middle, middle).shared_bands == 41
    tiny = side("t", "ok")
    assert measure(tiny, tiny) == Measured(1, 1, 1.0, {"whole text": 1.0})
    assert measure(tiny, side("u", "no")).exact == {"whole text": 0.0}
    assert measure(tiny, A) == Measured(0, 0, 0.0, {})
    paper = scheme_of("supershingles", 0.7)
    measures = measure(side("a", LONG, paper), side("b", LONG, paper))
    assert (measures.shared_bands, measures.of_bands, measures.similarity) == (15, 15, 1.0)


def test_verdict_on_copy_and_original() -> None:
    a, b = replace(A, **COPY), replace(B, **COPY)
    assert verdict_text(a, b) == "duplicates: B is a copy of A since 2026-03-02 12:00"
    assert verdict_text(b, a) == "duplicates: A is a copy of B since 2026-03-02 12:00"
    third = replace(B, key="c", **COPY)
    assert verdict_text(b, third) == "duplicates: both are copies of a"


def test_verdict_on_dissimilar_copies_of_one_original() -> None:
    a, other = replace(A, **COPY), side("c", text(7), **COPY)
    assert verdict_text(a, other).endswith(" (through another copy, which is similar to both)")
    assert verdict_text(replace(B, **COPY), other).endswith(
        "copies of a (each is similar to the original, but they are not to each other)"
    )
    changed = replace(other, stored=B.sketch)
    assert "(a text has changed since they were compared; run scrapy" in verdict_text(a, changed)


@pytest.mark.parametrize(
    ("b", "why"),
    [
        (
            ComparedPost("b", B.text, B.sketch),
            "B has not been compared yet; run scrapy duplicates rebuild",
        ),
        (replace(B, scheme="words-3"), "B was compared by scheme words-3; run scrapy duplicates"),
        (replace(B, stored=A.sketch), "the text of B has changed since it was compared;"),
        (B, "the bands they share belonged to other posts when they were stored"),
    ],
)
def test_verdict_explains_unmarked_similar_posts(b: ComparedPost, why: str) -> None:
    assert verdict_text(A, b).startswith(f"similar, but not marked as duplicates: {why}")


def test_verdict_on_posts_in_two_clusters() -> None:
    a, b = replace(A, cluster=1, original="x"), replace(B, cluster=2, original="y")
    assert verdict_text(a, b).endswith("to the posts of its own cluster when it was stored")


def test_verdict_on_similar_posts_without_a_shared_band() -> None:
    measured = Measured(0, 16, 0.71, {"5 characters": 0.7})
    assert verdict(A, B, measured, SCHEME).endswith("a lookup of one does not find the other")


def test_verdict_mentions_only_applied_labels() -> None:
    a, b = replace(A, **COPY), replace(B, **COPY)
    measures_ab = measure(a, b)
    assert verdict(a, b, measures_ab, SCHEME, label=True) == "duplicates: labeled as the same"
    assert verdict(A, B, measures_ab, SCHEME, label=False) == "not duplicates: labeled as such"
    assert verdict(a, b, measures_ab, SCHEME, label=False) == verdict_text(a, b)
    assert verdict(A, B, measures_ab, SCHEME, label=True) == verdict_text(A, B)


def test_verdict_on_different_posts() -> None:
    assert verdict_text(A, side("b", text(7))).endswith("is below 0.70")
    nearly = Measured(1, 16, 0.68, {"5 characters": 0.72})
    assert verdict(A, B, nearly, SCHEME) == (
        "not duplicates: similarity 0.68 is below 0.70 (an estimate, with an error of up to 0.08)"
    )
    assert verdict_text(A, side("b", "ok")).endswith("the shingles by which the other is compared")


def test_post_without_text_is_not_a_duplicate() -> None:
    empty = ComparedPost("b", "", None)
    assert verdict_text(A, empty) == "not duplicates: B has no text to compare"
    assert verdict_text(empty, empty) == "not duplicates: A has no text to compare"
    assert not empty.is_changed
    assert replace(A, sketch=None).is_changed
