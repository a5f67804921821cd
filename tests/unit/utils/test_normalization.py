"""Normalization in linear time: equal to `unicodedata`, except for endless runs of marks."""

from __future__ import annotations

import re
import sys
import tracemalloc
import unicodedata
from pathlib import Path
from typing import get_args

import pytest

from crawler.dedup.text import normal_text
from crawler.utils.text import (
    BECOME_MARKS,
    END_OF_MARKS,
    MAX_CHARACTERS,
    MAX_MARKS,
    PIECE_CHARACTERS,
    Form,
    normalized,
    with_few_marks,
)

ROOT = Path(__file__).resolve().parents[3]
CALL = re.compile(r"unicodedata\.(?:is_)?normalized?\b|import normalize\b|from unicodedata import")
FORMS: tuple[Form, ...] = get_args(Form)
ORDINARY = {
    "ASCII": "It is a plain text, and nothing else. ",
    "French": "Élève à l’école, où la forêt était brûlée ; ﬁn. ",
    "Chinese": "新华社北京电，虚拟世界的学习与生活。",
    "Japanese": "がぎぐ ﾊﾟﾋﾟ カタカナ、漢字も。",
    "Korean": unicodedata.normalize("NFD", "한국어 문장입니다. "),
    "Thai": "ภาษาไทยเป็นภาษาที่มีระดับเสียงของคำแน่นอน ",
    "Vietnamese": unicodedata.normalize("NFD", "Tiếng Việt là ngôn ngữ của người Việt. "),
    "Hindi": "हिन्दी विश्व की एक प्रमुख भाषा है, क़लम। ",
    "Hebrew": "בְּרֵאשִׁ֖ית בָּרָ֣א אֱלֹהִ֑ים ",
    "Arabic": "ﷺ اَلسَّلَامُ عَلَيْكُمْ ",
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_texts_match_unicodedata(form: Form, name: str) -> None:
    text = ORDINARY[name]
    # The text itself, and the text repeated until it is normalized in pieces.
    for whole in (text, text * (2 * PIECE_CHARACTERS // len(text) + 1)):
        assert normalized(form, whole) == unicodedata.normalize(form, whole)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It is  a\tPlain text", "it is a plain text"),
        (ORDINARY["French"], "élève à l'école, où la forêt était brûlée ; fin."),
        (ORDINARY["Japanese"], "がぎぐ パピ カタカナ、漢字も。"),
        (ORDINARY["Korean"], "한국어 문장입니다."),
        ("ﷺ", "صلى الله عليه وسلم"),
    ],
)
def test_normal_text_of_ordinary_texts(text: str, expected: str) -> None:
    assert normal_text(text) == expected


def test_marks_beyond_the_limit_are_dropped() -> None:
    marks = "\u0301\u0316" * MAX_MARKS
    assert with_few_marks(f"a{marks}b") == f"a{marks[:MAX_MARKS]}b"
    assert with_few_marks(f"a{marks[:MAX_MARKS]}b") == f"a{marks[:MAX_MARKS]}b"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mark", ["\u0301\u0316", "\u0344\u0f73", "\uff9e\u0301", "\u0301\u00a8"])
def test_text_with_dropped_marks_is_normalized(form: Form, mark: str) -> None:
    once = normalized(form, f"a{mark * 200}b")
    assert once[-1] == "b"
    assert unicodedata.is_normalized(form, once)
    assert normalized(form, once) == once


def test_characters_that_decompose_to_marks_are_listed() -> None:
    decomposing = "".join(
        character
        for character in map(chr, range(sys.maxunicode + 1))
        if not unicodedata.combining(character)
        and unicodedata.combining(unicodedata.normalize("NFKD", character)[0])
    )
    assert decomposing == BECOME_MARKS
    rest = map(chr, range(END_OF_MARKS, sys.maxunicode + 1))
    assert not any(map(unicodedata.combining, rest))


def test_expanding_text_is_truncated() -> None:
    text = "\ufdfa" * (2 * MAX_CHARACTERS)
    tracemalloc.start()
    try:
        assert len(normal_text(text)) <= MAX_CHARACTERS
        # Four bytes per character in a few copies; without a limit, it used over a gigabyte.
        assert tracemalloc.get_traced_memory()[1] < 40 * MAX_CHARACTERS
    finally:
        tracemalloc.stop()


def test_only_text_module_normalizes() -> None:
    sources = [
        path
        for folder in ("crawler", "pipelines", "schedules", "spiders")
        for path in (ROOT / folder).rglob("*.py")
    ]
    callers = {path.name for path in sources if CALL.search(path.read_text(encoding="utf-8"))}
    assert callers == {"text.py"}
