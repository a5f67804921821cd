"""Invariants of sketches for any text, and the kernels compared with plain Python."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from crawler.dedup import minhash
from crawler.dedup.band_keys import band_keys
from crawler.dedup.minhash import (
    by_characters,
    by_words,
    hashes_of,
    jaccard,
    low_bytes,
    permutations,
    values_of,
)
from crawler.dedup.points import BETWEEN_DIGITS, DROP, CodePoints, folded
from crawler.dedup.schemes import scheme_of
from crawler.dedup.sketch import CHARACTERS_SHAPE, CJK_SHAPE, KEY_BITS, NAMES, Sketch
from crawler.dedup.text import code_points, compared_points, normal_text

# Any text, including lone surrogates; and a small alphabet, so that texts have shared parts.
ANY = st.text(st.characters(exclude_categories=()), max_size=60)
FEW = st.text("ab 你好", max_size=60)
MARKS = st.text("aAßİﬁ\u0345\u0301\u200d\ufe0f\u1100\u1161\u11a8，… \n\ud800", max_size=12)
TEXTS = ANY | FEW | MARKS
LONGER = st.text("abcdefghijklmnopqrst 你好世界", min_size=60, max_size=400)
# With 128 values, five standard errors are at most 0.22.
MAX_ERROR = 0.25


def sketches(text: str) -> list[Sketch]:
    """Return a text's sketch in each scheme; an empty text has none."""
    made = (scheme_of(name, 0.7).sketch(text) for name in NAMES)
    return [sketch for sketch in made if sketch is not None]


# Normal form


@given(TEXTS)
@example("\u03b1\u200d\u0345")
def test_normal_form_is_idempotent(text: str) -> None:
    assert normal_text(normal_text(text)) == normal_text(text)


@given(TEXTS, st.sampled_from(["NFC", "NFD", "NFKC", "NFKD"]))
def test_unicode_forms_have_one_normal_form(text: str, form: str) -> None:
    assert normal_text(unicodedata.normalize(form, text)) == normal_text(text)


@given(TEXTS)
def test_normal_form_has_single_spaces(text: str) -> None:
    normal = normal_text(text)
    assert normal == " ".join(normal.split())


@given(st.lists(st.text("abcXYZ", min_size=1), max_size=8), st.data())
def test_normal_form_ignores_case_and_whitespace(words: list[str], data: st.DataObject) -> None:
    gaps = st.text(" \t\n\u00a0\u2003\u3000", min_size=1, max_size=3)
    text = "".join(f"{word.swapcase()}{data.draw(gaps)}" for word in words)
    assert normal_text(text) == " ".join(words).lower()


@given(TEXTS)
def test_code_points_match_text(text: str) -> None:
    assert code_points(text).tolist() == [ord(character) for character in text]


@given(TEXTS)
def test_compared_points_have_single_spaces_and_match_for_equal_normal_texts(text: str) -> None:
    compared = "".join(map(chr, compared_points(text).tolist()))
    assert compared == compared.strip(" ")
    assert "  " not in compared
    assert bool(compared) == bool(normal_text(text))
    if "&" not in text:
        assert compared_points(normal_text(text)).tolist() == compared_points(text).tolist()


FOLDED = st.text("ab 1.-!你が한", max_size=12)


@given(FOLDED)
def test_folding_matches_plain_python(text: str) -> None:
    """Fold step by step, where the kernel takes one pass."""
    table = np.arange(128, dtype=np.uint32)
    table[[ord("-"), ord("!"), ord(".")]] = (32, DROP, BETWEEN_DIGITS)
    text_between = text.replace("!", "")
    kept = [
        char
        for at, char in enumerate(text_between)
        if char != "." or (text_between[at - 1 : at] == "1" == text_between[at + 1 : at + 2])
    ]
    words = "".join(kept).replace("-", " ").split()
    expected = " ".join(words)
    for script in "你が":
        expected = expected.replace(f" {script}", script).replace(f"{script} ", script)
    if ".!" not in text and "!." not in text and ".." not in text:
        assert "".join(map(chr, folded(code_points(text), table).tolist())) == expected


@given(LONGER)
def test_signatures_by_characters_match_those_of_each_kernel(text: str) -> None:
    made, points = by_characters(text), compared_points(text)
    assert made is not None
    for shape, part in made.parts.items():
        assert shape in (CHARACTERS_SHAPE, CJK_SHAPE)
        hashes = hashes_of(points, shape)
        assert hashes is not None
        assert part.tolist() == low_bytes(values_of(hashes)).tolist()


# Similarity


@given(TEXTS, TEXTS)
def test_similarity_is_symmetric_and_within_0_and_1(one: str, other: str) -> None:
    for a, b in zip(sketches(one), sketches(other), strict=False):
        assert 0 <= a.similarity(b) == b.similarity(a) <= 1


@given(TEXTS)
def test_text_is_identical_to_itself_with_same_bands(text: str) -> None:
    for a, b in zip(sketches(text), sketches(f"\n{text} "), strict=True):
        assert a.similarity(b) == 1
        assert a.bands.tolist() == b.bands.tolist()


@given(TEXTS)
def test_only_empty_text_has_no_sketch(text: str) -> None:
    assert len(sketches(text)) == (len(NAMES) if normal_text(text) else 0)


@given(TEXTS)
def test_decoded_sketch_has_same_bands(text: str) -> None:
    for made in sketches(text):
        read = Sketch.decode(made.encode())
        assert read.encode() == made.encode()
        assert read.bands.tolist() == made.bands.tolist()
        assert len(read.bands) > 0


@given(LONGER, LONGER, st.integers(0, 400))
def test_estimate_is_near_exact_similarity(one: str, other: str, shared: int) -> None:
    """Compare two texts with the same beginning."""
    other = one[:shared] + other[shared:]
    a, b = by_characters(one), by_characters(other)
    assert a is not None
    assert b is not None
    for shape in a.parts.keys() & b.parts.keys():
        estimate = Sketch({shape: a.parts[shape]}).similarity(Sketch({shape: b.parts[shape]}))
        assert abs(estimate - jaccard(one, other, shape)) < MAX_ERROR


@given(FEW, FEW)
def test_jaccard_is_symmetric_and_within_0_and_1(one: str, other: str) -> None:
    assert 0 <= jaccard(one, other, CHARACTERS_SHAPE) == jaccard(other, one, CHARACTERS_SHAPE) <= 1


@given(st.text("你好世界一二三", min_size=5, max_size=40))
def test_word_sketch_ignores_spaces_between_cjk_characters(text: str) -> None:
    one, other = by_words(text), by_words(" ".join(text))
    assert one is not None
    assert other is not None
    assert one.encode() == other.encode()


# Kernels

BITS32, BITS64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
CJK = [
    (0x3040, 0x312F), (0x31F0, 0x31FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xAC00, 0xD7AF),
    (0xF900, 0xFAFF), (0x20000, 0x3FFFF),
]  # fmt: skip
# The first and the last character of each range, and the characters next to them.
EDGES = "".join(chr(end + off) for ends in CJK for end in ends for off in (-1, 0, 1))
POINTS = st.text("ab  🦀é" + EDGES, max_size=40) | st.text("a ", max_size=80) | ANY


def is_cjk(character: str) -> bool:
    return any(first <= ord(character) <= last for first, last in CJK)


def words_of(text: str) -> list[str]:
    """Return the words of a text; each CJK character is a word."""
    separated = "".join(f" {char} " if is_cjk(char) else char for char in text)
    return [word for word in separated.split(" ") if word]


def fnv(units: list[int]) -> int:
    value = 0x811C9DC5
    for unit in units:
        value = ((value ^ unit) * 0x01000193) & BITS32
    return value


def fmix(value: int) -> int:
    value = ((value ^ (value >> 16)) * 0x85EBCA6B) & BITS32
    value = ((value ^ (value >> 13)) * 0xC2B2AE35) & BITS32
    return value ^ (value >> 16)


def splitmix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & BITS64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & BITS64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & BITS64
    return value ^ (value >> 31)


def count(points: CodePoints) -> tuple[int, int, int]:
    return minhash.count_outside(points, np.zeros(points.size, np.bool_))


def test_edges_include_bounds_of_cjk_ranges() -> None:
    assert is_cjk(chr(0x3040))
    assert not is_cjk(chr(0x303F))
    assert "\U00020000" in EDGES


@given(POINTS)
def test_counts_match_plain_python(text: str) -> None:
    others = [word for word in words_of(text) if not is_cjk(word[0])]
    assert count(code_points(text)) == (
        sum(map(is_cjk, text)),
        sum(map(len, others)),
        sum(-(-len(word) // minhash.LETTERS_A_WORD) for word in others),
    )


@given(POINTS)
def test_tokens_match_plain_python(text: str) -> None:
    expected = [fnv([ord(char) for char in word]) for word in words_of(text)]
    assert minhash.tokens(code_points(text)).tolist() == expected


@given(POINTS, st.integers(1, 6))
def test_shingles_match_plain_python(text: str, width: int) -> None:
    assume(len(text) >= width)
    points = [ord(char) for char in text]
    expected = [fnv(points[at : at + width]) for at in range(len(points) - width + 1)]
    assert minhash.shingle_hashes(code_points(text), width).tolist() == expected


@given(st.lists(st.integers(0, BITS32), min_size=1, max_size=20), st.integers(1, 10))
def test_minima_match_plain_python(hashes: list[int], count: int) -> None:
    a, b = permutations(count)
    expected = [
        min((factor * fmix(value) + summand) & BITS32 for value in hashes)
        for factor, summand in zip(a.tolist(), b.tolist(), strict=True)
    ]
    assert minhash.minima(np.array(hashes, dtype=np.uint32), a, b).tolist() == expected


@given(st.binary(min_size=24, max_size=24), st.integers(0, 200), st.sampled_from([KEY_BITS, 64]))
def test_band_keys_match_plain_python(values: bytes, tag: int, bits: int) -> None:
    bands, rows = 4, 6
    expected = []
    for band in range(bands):
        value = ((tag * 1024 + band) * 0x9E3779B97F4A7C15) & BITS64
        for byte in values[band * rows : (band + 1) * rows]:
            value = splitmix(value ^ byte)
        expected.append(value >> (64 - bits))
    made = band_keys(np.frombuffer(values, np.uint8), bands, rows, tag, bits)
    assert made.view(np.uint64).tolist() == expected


@pytest.mark.parametrize("text", ["", " ", "你"])
def test_kernels_accept_nearly_empty_texts(text: str) -> None:
    points = code_points(text)
    assert count(points) == (len(text.strip()), 0, 0)
    assert minhash.tokens(points).size == len(text.strip())
