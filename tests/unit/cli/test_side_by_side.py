"""Side-by-side comparison of two texts: sentences, their alignment, and the words that differ."""

from __future__ import annotations

from crawler.reports.duplicates import GAP, MAX_SENTENCES, DiffRow, diff_rows, is_long, sentences

TEXT = "The museum opens on Monday. It was closed for two years. Come and see! Entry is free."


def compared_rows(left: str, right: str) -> list[tuple[str, str, str]]:
    return [(row["mark"], row["left"], row["right"]) for row in diff_rows(left, right)]


def marked_words(row: DiffRow) -> tuple[list[str], list[str]]:
    return (
        [row["left"][start:stop] for start, stop in row["left_spans"]],
        [row["right"][start:stop] for start, stop in row["right_spans"]],
    )


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


def test_texts_equal_except_case_and_spaces_are_collapsed() -> None:
    (gap,) = diff_rows(TEXT, TEXT.upper().replace(" ", "  "))
    assert (gap["mark"], gap["left_out"]) == (GAP, 4)


def test_changed_sentence_is_aligned_with_the_old_one() -> None:
    pairs = diff_rows(TEXT, TEXT.replace("Monday", "Tuesday").replace("on", "at", 1))
    assert [row["mark"] for row in pairs] == ["|", " ", GAP]
    assert marked_words(pairs[0]) == (["on", "Monday"], ["at", "Tuesday"])
    assert pairs[2]["left_out"] == 2


def test_added_and_removed_sentences_have_no_counterpart() -> None:
    assert compared_rows(TEXT, TEXT.replace(" It was closed for two years.", "")) == [
        (" ", "The museum opens on Monday.", "The museum opens on Monday."),
        ("<", "It was closed for two years.", ""),
        (" ", "Come and see!", "Come and see!"),
        (GAP, "", ""),
    ]
    assert compared_rows("", "New.") == [(">", "", "New.")]
    assert diff_rows("", "") == []


def test_edited_sentence_is_aligned_despite_insertions() -> None:
    right = TEXT.replace(
        "It was closed for two years.",
        "Something new stands here instead. It was closed for three years.",
    )
    assert [mark for mark, _, _ in compared_rows(TEXT, right)] == [" ", ">", "|", " ", GAP]


def test_marks_differing_chinese_words() -> None:
    (row,) = diff_rows("博物馆星期一重新开放。", "博物馆星期二重新开放。")
    assert marked_words(row) == (["一"], ["二"])


def test_only_beginnings_of_long_texts_are_compared() -> None:
    left = " ".join(f"Sentence number {n} says nothing." for n in range(5000))
    assert is_long(left)
    assert not is_long(TEXT)
    assert [row["left_out"] for row in diff_rows(left, left)] == [MAX_SENTENCES]
    assert diff_rows(left, left.replace("nothing", "less"))[0]["mark"] == "|"
    assert len(diff_rows("a. " * 9000, "a. " * 8000 + "b.")) == 1
    assert diff_rows("no end " * 2000, "never an end " * 2000)
