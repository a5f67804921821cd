"""Side-by-side comparison of two texts by sentences, and the words that differ."""

from __future__ import annotations

from crawler.reports.duplicates import MAX_SENTENCES, by_sentence, is_long, sentences
from crawler.utils.edits import MAX_CHARACTERS, DiffPart

TEXT = "The museum opens on Monday. It was closed for two years. Come and see! Entry is free."


def marked(part: DiffPart) -> str:
    """Return the text of a part with marks around the words of one side."""
    marks = {"deleted": "[-{}-]", "inserted": "{{+{}+}}"}
    return "".join(marks.get(each["kind"], "{}").format(each["text"]) for each in part["segments"])


def compared(left: str, right: str) -> list[tuple[str, int, str]]:
    return [(part["kind"], part["lines"], marked(part)) for part in by_sentence(left, right)]


def test_splits_sentences_in_several_languages() -> None:
    assert sentences('He said "No." Then 3.5 km.\nNew line… End') == [
        'He said "No."', "Then 3.5 km.", "New line…", "End",
    ]  # fmt: skip
    assert sentences("博物馆开了。他说：“来吧！”真的？是") == [
        "博物馆开了。",
        "他说：“来吧！”",
        "真的？",
        "是",
    ]
    assert sentences("バスは来る。「本当？」と言った。") == [
        "バスは来る。",
        "「本当？」",
        "と言った。",
    ]


def test_long_sentences_are_split_and_control_characters_removed() -> None:
    words = sentences("word " * 200)
    assert len(words) > 1
    assert " ".join(words) == ("word " * 200).strip()
    assert max(len(piece) for piece in sentences("字" * 4800)) <= 240
    assert sentences("a\x1b[2Jb\u202ec") == ["a [2Jbc"]
    assert sentences("") == []


def test_texts_equal_except_case_and_spaces_are_folded() -> None:
    assert compared(TEXT, TEXT.upper().replace(" ", "  ")) == [("folded", 4, "")]


def test_words_of_an_edited_sentence_are_marked() -> None:
    assert compared(TEXT, TEXT.replace("Monday", "Tuesday").replace("two", "three")) == [
        (
            "changed", 2,
            "The museum opens on [-Monday-]{+Tuesday+}.\n"
            "It was closed for [-two-]{+three+} years.",
        ),
        ("same", 2, "Come and see!\nEntry is free."),
    ]  # fmt: skip


def test_added_and_removed_sentences_have_one_side() -> None:
    assert compared(TEXT, TEXT.replace(" It was closed for two years.", "")) == [
        ("same", 1, "The museum opens on Monday."),
        ("changed", 1, "[-It was closed for two years.-]"),
        ("same", 2, "Come and see!\nEntry is free."),
    ]
    assert compared("", "New.") == [("changed", 1, "{+New.+}")]
    assert compared("", "") == []


def test_marks_differing_chinese_words() -> None:
    assert compared("博物馆星期一重新开放。", "博物馆星期二重新开放。") == [
        ("changed", 1, "博物馆星期[-一-]{+二+}重新开放。")
    ]


def test_only_beginnings_of_long_texts_are_compared() -> None:
    left = " ".join(f"Sentence number {n} says nothing." for n in range(5000))
    assert is_long(left)
    assert not is_long(TEXT)
    assert [part["lines"] for part in by_sentence(left, left)] == [MAX_SENTENCES]
    (part,) = by_sentence(left, left.replace("nothing", "less"))
    assert (part["kind"], part["lines"]) == ("changed", MAX_SENTENCES)
    characters = sum(len(each["text"]) for each in part["segments"])
    assert 50_000 < characters < MAX_CHARACTERS + 1000
