"""Invariants of search, for any text and any query."""

from __future__ import annotations

import unicodedata
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from crawler.search import Query, bare, marks, passage, search_words, words_of

TEXTS = st.text(max_size=60) | st.text(
    st.sampled_from(
        "ab cßÉ\u0301İ\u0130ﬁ™€_-'\"“,. \n虚拟世界カｶﾞが한국\u1112\u1161ไทยहि😀\0\u202e\udcff"
    ),
    max_size=60,
)


@given(TEXTS)
@example("ﾊﾞバ")
@example("\u1112\u1161\u11ab국")
def test_text_matches_its_own_words_and_phrases(text: str) -> None:
    assert not words_of(text) or Query.of([text.replace('"', " ")]).matches([text])
    for word in words_of(text):
        query = Query.of([word])
        assert not query.terms or query.matches([text])
        assert not query.terms or not Query.of(["a"], [word]).matches([text])


@given(TEXTS, TEXTS)
def test_marks_cover_matching_words(text: str, given: str) -> None:
    query = Query.of([given, *text.split()[:2]])
    spans = marks(text, query.terms)
    assert list(spans) == sorted(spans)
    assert all(0 <= start < stop <= len(text) for start, stop in spans)
    assert all(before[1] < after[0] for before, after in pairwise(spans))
    folded = [bare(unicodedata.normalize("NFC", text[start:stop])).strip() for start, stop in spans]
    assert all(folded)


@given(TEXTS, st.lists(TEXTS, max_size=5), st.integers(12, 80))
def test_passage_fits_and_is_printable(text: str, given: list[str], columns: int) -> None:
    excerpt = passage([text * 5], Query.of(given).terms, columns)
    assert excerpt.text.isprintable()
    assert cell_len(excerpt.text) <= columns
    assert all(stop <= len(excerpt.text) for _, stop in excerpt.marks)


@given(st.lists(TEXTS, max_size=8), st.booleans())
def test_queries_contain_no_operators(given: list[str], every: bool) -> None:
    query = Query.of(given, every=every)
    for look_up in query.look_ups if query.terms else ():
        assert look_up.count('"') % 2 == 0
        assert look_up.replace('"', "").split() == words_of_look_up(look_up)
        look_up.encode()
    query.matches(given)


def words_of_look_up(look_up: str) -> list[str]:
    """Return the words of a lookup, separated by anything except letters, marks, and numbers."""
    kept = (x if unicodedata.category(x)[0] in "LMN" else " " for x in look_up)
    return "".join(kept).split()


@given(
    TEXTS,
    st.recursive(
        TEXTS | st.integers() | st.none(),
        lambda x: st.lists(x) | st.dictionaries(st.text(max_size=3), x),
    ),
)
def test_search_words_of_items_are_normalized(text: str, field: object) -> None:
    words = search_words(text, text, {"field": field})
    if words is not None:
        assert words.split(" ") == words_of_look_up(words)
        words.encode()
