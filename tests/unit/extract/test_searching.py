"""Full-text search: index words, parsing of queries, and passages around matches."""

from __future__ import annotations

from typing import Any

import pytest

from crawler.search import (
    MAX_INDEXED_CHARACTERS,
    Query,
    bare,
    marked,
    passage,
    search_words,
    words_of,
)
from crawler.utils.terminal import printable

# Texts, and the words in them that the MongoDB index does not find without help.
ADDED_WORDS = {
    "plain English, “quoted” — and it’s done": None,
    "München, Москва, naïve, İ aside": "i̇",
    "Straße und Ma\u00df": "strasse mass",
    "虚拟世界": "虚拟 拟世 世界",
    "今天，好": None,
    "我在GitHub上工作": "我在 github 上工 工作",
    "カタカナ、ｶﾀｶﾅ": "カタ タカ カナ",
    "책을 읽는 사람들": "사람 람들",
    "ภาษาไทย": "ภา าษ ษา าไ ไท ทย",
    "ＡＢＣ ﬁne": "abc fine",
    "great😀 Foo™ €100": "great foo 100",
    "snake_case": "snake case",
    "co\u00adop\u200beration": "cooperation",
}


@pytest.mark.parametrize("text", ADDED_WORDS)
def test_only_words_that_the_index_misses_are_added(text: str) -> None:
    assert search_words(None, text, {}) == ADDED_WORDS[text]
    assert search_words(text, None, {}) == ADDED_WORDS[text]


def test_words_of_nested_fields_are_added() -> None:
    fields = {
        "title": "A lamp",
        "tags": ["Bright", "深度学习"],
        "price": {"amount": 12.5, "currency": "EUR"},
        "parts": [{"name": "Foot"}, {"name": None, "sizes": [1, "XL"]}],
        "picture": "https://shop.example/lamp.jpg",
        "story": "It is bright and has a foot.",
    }
    text = "It is bright and has a foot."
    assert search_words("A lamp", text, fields) == "深度 度学 学习 eur xl"
    assert search_words(None, None, {"title": None, "price": 3}) is None


def test_title_may_be_any_field_value() -> None:
    assert search_words(["One", "Two"], None, {}) == "one two"
    assert search_words({"amount": 1}, 7, {}) is None


def test_number_of_added_words_is_bounded() -> None:
    long = "虚" * 3 + "拟世" * MAX_INDEXED_CHARACTERS
    words = search_words(long, long, {"more": long, "list": ["x1y2 " * MAX_INDEXED_CHARACTERS]})
    assert words is not None
    assert len(words) <= MAX_INDEXED_CHARACTERS
    assert words.split()[0] == "虚虚"
    assert {len(word) for word in words.split()} == {2}
    assert search_words("x" * 3 * MAX_INDEXED_CHARACTERS, None, {"a": "ß" + "x" * 10**6}) is None


@pytest.mark.parametrize(
    ("given", "terms"),
    [
        (["climate", "Change"], [("climate",), ("change",)]),
        (["climate change"], [("climate", "change")]),
        (['say "climate change" now'], [("say",), ("climate", "change"), ("now",)]),
        (["say “climate change” now"], [("say",), ("climate", "change"), ("now",)]),
        (['"climate change'], [("climate", "change")]),
        (['"a b" "c d'], [("a", "b"), ("c",), ("d",)]),
        (["C++", "state-of-the-art"], [("c",), ("state", "of", "the", "art")]),
        (["虚拟世界", "GitHub上"], [("虚拟世界",), ("github", "上")]),
        (["a\0b", "c\udcffd"], [("a", "b"), ("c", "d")]),
        (["twice", "TWICE"], [("twice",)]),
        (["", " ", '"', "!?-", "\u0301", "😀"], []),
    ],
)
def test_query_has_words_and_phrases(given: list[str], terms: list[tuple[str, ...]]) -> None:
    assert [term.words for term in Query.of(given).terms] == terms


@pytest.mark.parametrize(
    ("query", "look_ups"),
    [
        (Query.of(["climate"]), ["climate"]),
        (Query.of(["climate", "-change"]), ['"climate" "change"']),
        (Query.of(["虚拟世界", "game"]), ['"虚拟 拟世 世界" "game"']),
        (Query.of(["a b", "b c"]), ['"a" "b" "c"']),
        (Query.of(["climate", "change"], every=False), ["climate change"]),
        (
            Query.of(["a", "虚拟世界", "b", "c d"], every=False),
            ["a b", '"虚拟 拟世 世界"', '"c" "d"'],
        ),
        (Query.of(["虚拟世界"], every=False), ['"虚拟 拟世 世界"']),
    ],
)
def test_look_ups_cover_all_possible_matches(query: Query, look_ups: list[str]) -> None:
    assert query.look_ups == look_ups


def test_look_ups_of_long_queries_are_bounded() -> None:
    words = [f"w{i}" for i in range(5000)]
    for query in (Query.of(words), Query.of([" ".join(words)]), Query.of(words, every=False)):
        assert sum(len(look_up.split()) for look_up in query.look_ups) == 100
    assert len(Query.of([f"{x} {x}" for x in words], every=False).look_ups) == 100


@pytest.mark.parametrize(
    ("given", "text", "is_hit"),
    [
        ("cat", "The CAT sat", True),
        ("cat", "a category", False),
        ("the cat", "The\n\n“cat”", True),
        ("the cat", "the black cat", False),
        ("don't", "don’t", True),
        ("Straße", "STRASSE", True),
        ("munchen", "München", True),
        ("虚拟 世界", "虚拟世界", True),
        ("拟世", "虚拟世界", True),
        ("世拟", "虚拟世界", False),
        ("github上", "我在GitHub上工作", True),
        ("バス", "ハス", False),
        ("ﾊﾞｽ", "バス停", True),
        ("한국", "\u1112\u1161\u11ab국어", True),
    ],
)
def test_whole_words_match_after_normalization(given: str, text: str, *, is_hit: bool) -> None:
    assert Query.of([given]).matches(["", text]) is is_hit
    assert Query.of(["zebra", given], every=False).matches([text]) is is_hit
    assert not Query.of([given, "zebra"]).matches([text])
    assert not Query.of([given], ["other", given]).matches([text])


def bracketed_passage(text: str, *given: str, columns: int = 40) -> str:
    """Return a passage with its matches in brackets."""
    excerpt = passage([text], Query.of(given).terms, columns)
    return _bracketed(excerpt.text, excerpt.marks)


def _bracketed(text: str, spans: Any) -> str:
    for start, stop in reversed(spans):
        text = f"{text[:start]}[{text[start:stop]}]{text[stop:]}"
    return text


@pytest.mark.parametrize(
    ("text", "given", "passage"),
    [
        ("The cat sat.", ("cat", "sat"), "The [cat] [sat]."),
        ("The cat sat.", ("zebra",), "The cat sat."),
        ("Viele MÜNCHNER Straßen", ("munchner", "strassen"), "Viele [MÜNCHNER] [Straßen]"),
        ("我在GitHub上工作，虚拟世界", ("github上", "拟世"), "我在[GitHub上]工作，虚[拟世]界"),
        ("e\u0301te\u0301 ﬁne", ("ete", "fine"), "[e\u0301te\u0301] [ﬁne]"),
        ("the new, new york", ("new york", "new"), "the [new], [new york]"),
        ("ﾊﾞｽ停", ("バス",), "[ﾊﾞｽ]停"),
        ("", ("x",), ""),
    ],
)
def test_matches_are_marked_in_the_passage(text: str, given: tuple[str, ...], passage: str) -> None:
    assert bracketed_passage(text, *given) == passage


def test_passage_is_centered_on_the_first_hit() -> None:
    text = "one two three four " * 500 + "a hit at last " + "five six seven eight " * 500
    assert bracketed_passage(text, "hit") == "… four a [hit] at last five six seven …"
    assert bracketed_passage("虚拟" * 2000 + "一个世界" + "虚拟" * 2000, "一个世界") == (
        "…虚拟虚拟虚拟[一个世界]虚拟虚拟虚拟虚拟…"
    )
    assert bracketed_passage("x" * 5000 + " hit " + "y" * 5000, "hit").count("[hit]") == 1


def test_passage_comes_from_the_first_text_with_a_hit() -> None:
    terms = Query.of(["hit"]).terms
    assert passage(["nothing", "a hit", "the hit"], terms, 40).text == "a hit"
    assert passage(["nothing", "more"], terms, 40).text == "nothing"
    assert passage([], terms, 40).text == ""


def test_control_characters_are_removed() -> None:
    evil = "red \x1b[31malert\x07\r\n\u202eturned\u2066 \x9b2J\x00nul\u2028line\u00a0end"
    assert printable(evil) == "red [31malert turned 2J nul line end"
    excerpt = marked(evil, Query.of(["alert"]).terms)
    assert (excerpt.text, excerpt.marks) == (printable(evil), ())
    assert marked("an\x1b alert", Query.of(["alert"]).terms).marks == ((3, 8),)


def test_words_are_normalized() -> None:
    assert words_of("ＧｉｔＨｕｂ GITHUB github") == ["github"] * 3
    assert bare("Été — à Łódź, ガ") == " ete a łodz ガ "


# What people type, the terms of the query, and the excluded ones.
TYPED = {
    "oak table": (["oak", "table"], []),
    '"red lamp" -blue -"old one"': (["red lamp"], ["blue", "old one"]),
    "“smart quotes” „unten“ x": (["smart quotes", "unten", "x"], []),
    "state-of-the-art - dash -": (["state of the art", "dash"], []),
    '"unclosed foo': (["unclosed", "foo"], []),
    "don't": (["don t"], []),
    "-car": ([], ["car"]),
    '!!! "" --': ([], []),
}


@pytest.mark.parametrize("text", TYPED)
def test_typed_queries_have_phrases_and_excluded_words(text: str) -> None:
    query = Query.parse(text)
    terms = [[" ".join(term.words) for term in side] for side in (query.terms, query.without)]
    assert tuple(terms) == TYPED[text]


def test_longest_words_of_a_query_are_counted_first() -> None:
    assert Query.parse('a "red lampshade" 虚拟世界 red').tokens == [
        "lampshade", "red", "虚拟", "拟世", "世界", "a",
    ]  # fmt: skip
