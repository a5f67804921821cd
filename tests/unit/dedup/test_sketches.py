"""Sketches: comparison, lookup, and storage of texts."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest

from crawler.dedup import minhash
from crawler.dedup.minhash import by_characters, by_supershingles, by_words, exactly, jaccard
from crawler.dedup.points import Keys
from crawler.dedup.schemes import scheme_of
from crawler.dedup.sketch import (
    CHARACTERS_SHAPE,
    CJK_SHAPE,
    EXACT,
    KEY_BITS,
    LONG,
    NAMES,
    SHORT,
    SUPERSHINGLES,
    SUPERSHINGLES_THRESHOLD,
    WORDS_SHAPE,
    Shape,
    Sketch,
)
from crawler.dedup.text import code_points, compared_points, normal_text
from tests.unit.prose import Writer

THRESHOLD = 0.7


def sketch(text: str) -> Sketch:
    made = by_characters(text)
    assert made is not None
    return made


def shapes(text: str) -> set[Shape]:
    return set(sketch(text).parts)


def keys(made: Sketch) -> set[int]:
    return set(made.bands.tolist())


def finds(one: str, other: str, threshold: float = THRESHOLD) -> bool:
    """Return True if each text finds the other and their similarity reaches the threshold."""
    a, b = sketch(one), sketch(other)
    return not keys(a).isdisjoint(keys(b)) and a.similarity(b) >= threshold


def words(count: int, seed: int = 0) -> str:
    return " ".join(Writer(seed).words(count))


def mixed(han: int, seed: int = 0) -> str:
    """Return 100 characters, not counting spaces: `han` Chinese ones and words of two letters."""
    writer = Writer(seed)
    letters = writer.random.choices("abcdefghijklmnopqrstuvwxyz", k=100 - han)
    pairs = ["".join(letters[n : n + 2]) for n in range(0, len(letters), 2)]
    return writer.chinese(han) + " " + " ".join(pairs)


# Normal form


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("Déjà VU", "déjà vu"),
        ("Straße STRASSE", "strasse strasse"),
        ("a\u0301 \u00e1", "á á"),
        ("ﬁne № ① ｗｉｄｅ", "fine no 1 wide"),
        ("你好，世界！（一）", "你好,世界!(一)"),
        ("wait…", "wait..."),
        (" a \n\tb\u00a0c\u3000d\u2028e ", "a b c d e"),
        ("soft\u00adhyphen zero\u200bwidth \ufeffmark", "softhyphen zerowidth mark"),
        ("\u201cIt\u2019s\u201d \u00abtrue\u00bb \u2013 1\u22122", '"it\'s" "true" - 1-2'),
        ("\u2066@ada\u2069 \u202bleft\u202c", "@ada left"),
        ("\u2764\ufe0f \U0001f468\u200d\U0001f469", "\u2764 \U0001f468\U0001f469"),
        ("\U0001f3f4\U000e0067\U000e0062\U000e007f", "\U0001f3f4"),
        ("a\u200b\u0301", "á"),
        ("İ", "i\u0307"),
        ("", ""),
        ("\u200b \n", ""),
    ],
)
def test_the_normal_form(text: str, normal: str) -> None:
    assert normal_text(text) == normal


def test_texts_with_the_same_normal_form_have_the_same_sketch() -> None:
    text = Writer(1).text(50)
    shouted = text.upper().replace(" ", " \u200b\n").replace(".", "\uff0e")
    assert sketch(shouted).encode() == sketch(text).encode()


# What is compared of the normal form


def compared_text(text: str) -> str:
    return "".join(map(chr, compared_points(text).tolist()))


@pytest.mark.parametrize(
    ("text", "compared"),
    [
        ("Café Łódź søren đường", "cafe lodz soren duong"),
        ("IĞDIR ığdır İzmir", "igdir igdir izmir"),
        ("всё ещё Άθήνα", "все еще αθηνα"),
        ("שָׁלוֹם עוֹלָם", "שלום עולם"),
        ("أَهْلاً بِكُــم إلى آخر", "اهلا بكم الي اخر"),
        ("ی ک ي ك ٥۵५", "ي ك ي ك 555"),
        ("สวัสดีครับ हिन्दी がギ 한국", "สวัสดีครับ हिन्दीがギ한국"),
        ("It's “the” U.S. (really)!", "its the us really"),
        ("well-known and/or snake_case -- so", "well known and or snake case so"),
        ("1.5 15 1,000 12:30 v2. x.5 5.x 3.", "1.5 15 1,000 12:30 v2 x5 5x 3"),
        ("C++ is $5 + 10 % > 3 😀", "c++ is $5 + 10 > 3 😀"),
        ("你好 ， 世界 。 用 Python 3.11 写", "你好世界用python 3.11写"),
        ("한국어 문장.", "한국어 문장"),
        ("Q&amp;A &lt;b&gt; &#8217;s &#x41; &nosuch; a&b", "qa <b> s a nosuch ab"),
        (f"&#{'1' * 6000}; x", f"#{'1' * 6000} x".lstrip("#")),
        (" -- ... ", "-- ..."),
        ("", ""),
    ],
)
def test_the_compared_text(text: str, compared: str) -> None:
    assert compared_text(text) == compared


@pytest.mark.parametrize(
    "changed",
    [
        lambda text: text.replace("é", "e").replace("ü", "u").replace("ñ", "n"),
        lambda text: re.sub(r"[^\w\s]", "", text),
        lambda text: html.escape(html.escape(text)).replace("&amp;", "&"),
        str.upper,
    ],
)
def test_copy_without_accents_or_punctuation_is_the_same(changed: Callable[[str], str]) -> None:
    text = "“Él vive en Zürich”, dijo el niño; ¿y tú? Él no respondió: se fue, sin más, al café."
    assert sketch(changed(text)).encode() == sketch(text).encode()


def test_copy_with_other_spaces_and_punctuation_is_the_same_in_chinese() -> None:
    text = Writer(3).chinese(60)
    spaced = " ".join(f"{text[at : at + 7]}，" for at in range(0, 60, 7))
    assert sketch(spaced).encode() == sketch(text).encode()


@pytest.mark.parametrize(("one", "other"), [("1.5", "15"), ("a-b", "ab"), ("...", "!!")])
def test_short_texts_that_differ_in_punctuation_stay_different(one: str, other: str) -> None:
    assert sketch(one).similarity(sketch(other)) == 0


# Choice of shingles


@pytest.mark.parametrize(
    ("han", "expected"),
    [
        (0, {CHARACTERS_SHAPE}),
        (39, {CHARACTERS_SHAPE}),
        (40, {CHARACTERS_SHAPE, CJK_SHAPE}),
        (60, {CHARACTERS_SHAPE, CJK_SHAPE}),
        (61, {CJK_SHAPE}),
        (100, {CJK_SHAPE}),
    ],
)
def test_share_of_cjk_determines_shingle_shapes(han: int, expected: set[Shape]) -> None:
    assert shapes(mixed(han)) == expected


@pytest.mark.parametrize("text", ["こんにちは世界", "안녕하세요 세계", "ㄅㄆㄇㄈㄉ", "𠀀𠀁𠀂𠀃"])
def test_east_asian_scripts_use_shingles_of_three(text: str) -> None:
    assert shapes(text) == {CJK_SHAPE}


@pytest.mark.parametrize("text", ["Привет, мир", "สวัสดีชาวโลก", "مرحبا بالعالم", "😀😃😄😁😆"])
def test_other_scripts_use_shingles_of_five(text: str) -> None:
    assert shapes(text) == {CHARACTERS_SHAPE}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("before", "after"), [(38, 40), (39, 41), (59, 61), (60, 62), (49, 51)])
def test_edit_that_changes_shingle_shape_is_found(before: int, after: int, seed: int) -> None:
    """Replace a word of two letters with two Chinese characters."""
    text = mixed(before, seed)
    edited = text[:before] + Writer(seed + 100).chinese(after - before) + text[before:-3]
    assert shapes(edited) == shapes(mixed(after))
    assert finds(text, edited)


# Choice of bands


@pytest.mark.parametrize(
    ("count", "expected"),
    [(10, (SHORT,)), (39, (SHORT,)), (40, (SHORT, LONG)), (60, (SHORT, LONG)), (61, (LONG,))],
)
def test_number_of_words_determines_bands(count: int, expected: tuple[object, ...]) -> None:
    assert sketch(words(count)).bandings == expected
    assert sketch(Writer(1).chinese(2 * count)).bandings == expected
    assert len(sketch(words(count)).bands) == sum(banding.bands for banding in expected)


def test_script_without_spaces_estimates_words_from_letters() -> None:
    assert sketch("ภาษาไทยไม่มีเว้นวรรค" * 3).bandings == (SHORT,)
    assert sketch("ภาษาไทยไม่มีเว้นวรรค" * 50).bandings == (LONG,)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    ("before", "after"), [(39, 41), (40, 39), (49, 51), (59, 61), (60, 61), (58, 62), (45, 39)]
)
def test_edit_that_changes_banding_is_found(before: int, after: int, seed: int) -> None:
    text = words(max(before, after), seed).split()
    at = seed * 3
    short = text[:at] + text[at + abs(after - before) :]
    assert finds(" ".join(short), " ".join(text))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("count", [39, 40, 59, 60])
def test_edit_that_changes_banding_is_found_in_chinese(count: int, seed: int) -> None:
    text = Writer(seed).chinese(2 * count + 2)
    at = seed * 5
    assert finds(text[:at] + text[at + 2 :], text)


# Texts of all sizes


@pytest.mark.parametrize("make", [by_characters, by_words, by_supershingles, exactly])
@pytest.mark.parametrize("text", ["", " \n", "\u200b\ufeff"])
def test_an_empty_text_has_no_sketch(make: object, text: str) -> None:
    assert callable(make)
    assert make(text) is None


@pytest.mark.parametrize("text", ["o", "ok", "Nope", "你", "你好", "😀"])
def test_text_shorter_than_a_shingle_matches_only_itself(text: str) -> None:
    assert shapes(text) == {EXACT}
    assert sketch(text).similarity(sketch(f" {text.upper()}\n")) == 1
    assert finds(text, text)
    for other in ("no", "o k", "你们", "😁", "okay", text + text + text):
        assert sketch(text).similarity(sketch(other)) == 0
        assert not keys(sketch(text)) & keys(sketch(other))


@pytest.mark.parametrize("text", ["ten chars!", "十个字的帖子在这里。"])
def test_post_of_ten_characters_matches_only_itself(text: str) -> None:
    assert len(text) == 10
    assert finds(text, text.upper())
    for other in ("for a cat.", "ten cats !", "还有一个短的帖子。。"):
        assert sketch(text).similarity(sketch(other)) < THRESHOLD


def test_edited_megabyte_post_is_found() -> None:
    text = Writer(1).text(200_000)[:1_000_000]
    edited = text[:500_000] + Writer(2).text(500) + text[500_000:]
    assert finds(text, edited, 0.95)
    assert len(sketch(text).encode()) == 130


def test_edited_multilingual_post_is_found() -> None:
    english, russian = Writer(1).text(40), "Съешь же ещё этих мягких булок. " * 2
    text = f"{english}\n{Writer(2).chinese(80)}。\n{russian}"
    for edited in (
        text.replace("мягких", "свежих"),
        english.replace(" ", " so ", 1) + text[len(english) :],
        text.replace("。", Writer(3).chinese(6)),
    ):
        assert finds(text, edited)
    assert not finds(text, f"{Writer(4).text(40)}\n{Writer(5).chinese(80)}。\n{russian}")


def test_different_posts_are_not_similar() -> None:
    made = [sketch(Writer(seed).text(100)) for seed in range(40)]
    assert max(a.similarity(b) for a, b in combinations(made, 2)) < 0.4
    assert not any(keys(a) & keys(b) for a, b in combinations(made, 2))


# Stored form

STORED = [
    words(100),
    words(50),
    words(20),
    "ok",
    mixed(50),
    Writer(1).chinese(300),
    Writer(1).chinese(100),
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", STORED, ids=range(len(STORED)))
def test_sketch_survives_a_round_trip(name: str, text: str) -> None:
    made = scheme_of(name, THRESHOLD).sketch(text)
    assert made is not None
    read = Sketch.decode(made.encode())
    assert read.encode() == made.encode()
    assert read.bands.tolist() == made.bands.tolist()
    assert read.similarity(made) == made.similarity(read) == 1


def test_size_of_stored_sketches() -> None:
    assert len(sketch(words(100)).encode()) == 130
    assert len(sketch(mixed(50)).encode()) == 259
    assert len(sketch("ok").encode()) == 18


@pytest.mark.parametrize(
    "stored", [b"", b"\0", b"\1\x63" + bytes(128), sketch("a" * 9).encode()[:-1]]
)
def test_decode_rejects_invalid_bytes(stored: bytes) -> None:
    with pytest.raises(ValueError, match=r"sketch|shape|buffer"):
        Sketch.decode(stored)


def keys_by_shape() -> dict[tuple[Shape, object], Keys]:
    """Return all keys of a few hundred texts, by shape and banding."""
    parts: dict[tuple[Shape, object], list[Keys]] = {}
    for seed in range(60):
        for count in (2, 20, 100):
            texts = (words(count, seed), Writer(seed).chinese(2 * count), "ok" + chr(97 + seed))
            schemes = (by_characters, by_words, by_supershingles)
            for made in (make(text) for text in texts for make in schemes):
                assert made is not None
                for shape, part in made.parts.items():
                    for banding in made.bandings or (None,):
                        single = Sketch({shape: part}, (banding,) if banding else ())
                        parts.setdefault((shape, banding), []).append(single.bands)
    return {shape: np.unique(np.concatenate(bands)) for shape, bands in parts.items()}


def test_keys_fit_in_47_bits_and_differ_between_shapes() -> None:
    by_shape = keys_by_shape()
    assert {shape for shape, _ in by_shape} == {
        EXACT,
        CJK_SHAPE,
        CHARACTERS_SHAPE,
        WORDS_SHAPE,
        SUPERSHINGLES,
    }
    together = np.concatenate(list(by_shape.values()))
    assert 0 <= together.min() < together.max() < 2**KEY_BITS
    # All bits are used, so that the keys spread over the whole index.
    assert together.max() > 0.99 * 2**KEY_BITS
    assert np.unique(together).size == together.size


# Shingles of words, and supershingles as in the paper


def test_word_shingles_have_five_words_or_cjk_characters() -> None:
    made = by_words("one two three four five")
    assert made is not None
    assert set(made.parts) == {WORDS_SHAPE}
    for text in ("一二三四五", "一 二 三 四 五", "一二 three 四五"):
        other = by_words(text)
        assert other is not None
        assert set(other.parts) == {WORDS_SHAPE}
    short = by_words("one two three four")
    assert short is not None
    assert set(short.parts) == {EXACT}


@pytest.mark.parametrize(
    ("text", "same"),
    [("one two", "one  two\n"), ("中文字", "中 文 字"), ("a中b文", "a 中 b 文")],
)
def test_the_same_words_make_the_same_tokens(text: str, same: str) -> None:
    ours, its = (minhash.tokens(compared_points(t)) for t in (text, same))
    assert ours.tolist() == its.tolist()


def test_moved_word_boundaries_change_tokens() -> None:
    one, other = (minhash.tokens(code_points(text)) for text in ("a bc d", "ab c d"))
    assert (one == other).tolist() == [False, False, True]


@pytest.mark.parametrize("seed", range(5))
def test_word_shingles_find_an_edited_copy(seed: int) -> None:
    text = words(300, seed).split()
    one, other = by_words(" ".join(text)), by_words(" ".join([*text[:100], "new", *text[101:]]))
    assert one is not None
    assert other is not None
    assert keys(one) & keys(other)
    assert one.similarity(other) > 0.9


@pytest.mark.parametrize(("agreeing", "duplicates"), [(0, False), (1, False), (2, True), (6, True)])
def test_two_agreeing_features_mean_duplicate_and_one_key(agreeing: int, duplicates: bool) -> None:
    one, other = by_supershingles(words(100, 1)), by_supershingles(words(100, 2))
    assert one is not None
    assert other is not None
    features = other.parts[SUPERSHINGLES].copy()
    features[: 8 * agreeing] = one.parts[SUPERSHINGLES][: 8 * agreeing]
    like = Sketch({SUPERSHINGLES: features})
    scheme = scheme_of("supershingles", THRESHOLD)
    assert scheme.threshold == SUPERSHINGLES_THRESHOLD
    assert (one.similarity(like) >= scheme.threshold) is duplicates
    assert len(keys(one) & keys(like)) == agreeing * (agreeing - 1) // 2


@pytest.mark.parametrize("name", NAMES)
def test_scheme_name_includes_its_version(name: str) -> None:
    scheme = scheme_of(name, 0.6)
    assert scheme.name == f"{name}-3"
    assert scheme.threshold == (1 / 3 if name == "supershingles" else 0.6)


# Exact matches


def plain_jaccard(one: str, other: str, width: int) -> float:
    a, b = (
        {normal[at : at + width] for at in range(len(normal) - width + 1)}
        for normal in map(compared_text, (one, other))
    )
    return len(a & b) / len(a | b)


@pytest.mark.parametrize("seed", range(5))
def test_exact_similarity_is_jaccard_of_shingles(seed: int) -> None:
    text = Writer(seed).text(80)
    edited = text.replace("a", "o", 9 * seed)
    assert jaccard(text, edited, CHARACTERS_SHAPE) == plain_jaccard(text, edited, 5)
    assert jaccard(text, edited, CJK_SHAPE) == plain_jaccard(text, edited, 3)


def test_texts_shorter_than_a_shingle_share_no_shingles() -> None:
    assert jaccard("abcd", "abcd", CHARACTERS_SHAPE) == 0
    assert jaccard("abcde", "abcd", CHARACTERS_SHAPE) == 0
    assert jaccard("abcde", "ABCDE ", CHARACTERS_SHAPE) == 1


def test_estimates_of_edited_texts_are_near_the_exact_similarity() -> None:
    errors = []
    for seed in range(300):
        writer = Writer(seed)
        text = writer.words(writer.random.randint(20, 200))
        edited = list(text)
        for _ in range(writer.random.randint(1, len(text) // 6)):
            edited[writer.random.randrange(len(edited))] = writer.words(1)[0]
        one, other = " ".join(text), " ".join(edited)
        exact = jaccard(one, other, CHARACTERS_SHAPE)
        errors.append(sketch(one).similarity(sketch(other)) - exact)
    assert abs(np.mean(errors)) < 0.01
    assert np.std(errors) < 0.045
    assert max(map(abs, errors)) < 0.16
