"""Sizes of the differences between two texts."""

from __future__ import annotations

import random
from math import isqrt
from time import process_time

import pytest

from crawler.cli.commands.history import lines_of
from crawler.utils.diff import EXACT_PAIRS, MAX_LEVELS, Matcher, by_word, diff_size
from crawler.utils.edits import MAX_CHARACTERS, difference


@pytest.mark.parametrize(
    ("before", "after", "size"),
    [
        ("price 12.50", "price 13.50", 2),
        ("", "", 0),
        ("", "abc", 3),
        ("abc", "", 3),
        ("abc", "abc", 0),
        ("abc", "xyz", 6),
        ("in stock", "not in stock", 4),
        ("a\nb\nc", "a\nc", 2),
        ("한국", "한글", 2),
        ("😀", "😁", 2),
    ],
)
def test_size_counts_deleted_and_inserted_characters(before: str, after: str, size: int) -> None:
    assert diff_size(before, after) == size


def large(seed: int) -> list[str]:
    """Return unrelated lines of a text that is too large for an exact comparison."""
    numbers = random.Random(seed)
    count = isqrt(EXACT_PAIRS) // 65 + 100
    return [f"{numbers.getrandbits(256):064x}\n" for _ in range(count)]


def test_large_texts_are_compared_quickly_by_lines() -> None:
    same = large(1)
    before, after = "".join(same), "".join([*same[:500], "new line\n", *same[501:]])
    started = process_time()
    size = diff_size(before, after)
    assert process_time() - started < 5
    assert 0 < size <= len(same[500]) + len("new line\n")


def test_large_unrelated_texts_are_compared_quickly() -> None:
    before, after = "".join(large(1)), "".join(large(2))
    started = process_time()
    assert len(before) < diff_size(before, after) <= len(before) + len(after)
    assert process_time() - started < 5


def test_single_insertion_in_long_line_has_size_1() -> None:
    before = "".join(large(1)).replace("\n", " ")
    after = before[:30_000] + "!" + before[30_000:]
    assert diff_size(before, after) == 1


def test_size_of_large_difference_is_symmetric() -> None:
    before = large(1)
    after = random.Random(3).sample(before, len(before))
    forward = diff_size("".join(before), "".join(after))
    assert forward == diff_size("".join(after), "".join(before))


def test_size_of_shuffled_lines_ignores_order() -> None:
    numbers = random.Random(4)
    lines = [f"line number {numbers.randrange(150):04}\n" for _ in range(30_000)]
    shuffled = numbers.sample(lines, len(lines))
    # Lines that are equal at both ends may be removed before the comparison.
    assert diff_size("".join(lines), "".join(["new\n", *shuffled[1:]])) < 10 * len(lines[0])


def printed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Return the lines that `scrapy history --diff` prints for the fields that differ."""
    fields = difference(before, after, Matcher())["fields"]
    return [line.plain for field in fields for line in lines_of(field["parts"])]


def test_diff_shows_deletions_and_insertions() -> None:
    before, after = "tea\nprice: 1\nold", "tea\nprice: 2"
    assert printed({"f": before}, {"f": after}) == [" tea", "-price: 1", "-old", "+price: 2"]
    assert printed({"f": "a"}, {"g": "b"}) == ["+b", "-a"]


def test_equal_contents_have_no_diff() -> None:
    assert printed({"f": "a"}, {"f": "a"}) == []
    assert difference({"f": "a"}, {"f": "a"}, Matcher())["fields"] == [
        {"name": "f", "kind": "same", "parts": []}
    ]


WORDS = [f"word{number}" for number in range(5000)]


def article(*edits: tuple[int, str]) -> dict[str, str]:
    """Return a content with one long HTML field, in which some words were replaced."""
    words = WORDS.copy()
    for at, word in edits:
        words[at] = word
    return {"body": f"<article>{' '.join(words)}</article>"}


def test_long_line_is_compared_by_word_with_context() -> None:
    after = article((2500, "<b>new</b>"), (2504, "x"), (4000, "!"))
    (line,) = printed(article(), after)
    excerpt = "word2499 [-word2500-]{+<b>new</b>+} word2501 word2502 word2503 [-word2504-]{+x+} "
    assert excerpt in line
    assert "word3999 [-word4000-]{+!+} word4001" in line
    assert line.startswith("~… 21,")
    assert len(line) < 1000


def test_nearby_changes_are_merged() -> None:
    def changes(gap: str) -> list[tuple[str, str]]:
        before, after = f"It is scarlet {gap} small and square.", f"It is orange {gap} round."
        return [(c.old, c.new) for c in by_word(before, after, Matcher()) if c.old or c.new]

    assert changes("but") == [("scarlet but small and square", "orange but round")]
    assert changes("as before, but") == [("scarlet", "orange"), ("small and square", "round")]


def test_characters_of_unspaced_scripts_are_words() -> None:
    changes = by_word("博物馆星期一开放", "博物馆星期二开放", Matcher())
    assert [(c.same, c.old, c.new) for c in changes] == [
        ("博物馆星期", "一", "二"), ("开放", "", ""),
    ]  # fmt: skip


def test_long_deleted_text_is_shortened() -> None:
    (line,) = printed(article(), {})
    assert line.startswith("-<article>word0 ")
    assert line.endswith(" word4999</article>")
    assert 1990 < len(line) < 2100


def test_terminal_control_characters_are_escaped() -> None:
    lines = printed({"a": "1"}, {"a": "\x1b]0;title\x07\u202e2"})
    assert lines == ["-1", "+\\x1b]0;title\\x07\\u202e2"]
    (line,) = printed(article(), article((2500, "\x1b[2J")))
    assert "{+\\x1b[2J+}" in line


def slow_contents(kind: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return two slow-to-compare contents of at least one megabyte."""
    numbers = random.Random(5)
    separator = " " if "word" in kind else "\n"
    if kind in ("lines of few kinds", "words of few kinds"):
        sides = [[f"w{numbers.randrange(99)}" for _ in range(300_000)] for _ in "ab"]
    elif kind == "words in another order":
        words = [f"w{number}" for number in range(200_000)]
        sides = [words, numbers.sample(words, len(words))]
    elif kind == "every other word":
        sides = [[f"{x}{n:06} the" for n in range(100_000)] for x in "ab"]
    else:
        sides = [[f"{x} a b c {n} " * 20 for n in range(5_000)] for x in "ab"]
    before, after = ({"text": separator.join(side)} for side in sides)
    return before, after


@pytest.mark.soak
@pytest.mark.parametrize(
    "kind",
    ["lines of few kinds", "words of few kinds", "words in another order", "every other word",
     "long lines"],
)  # fmt: skip
def test_diffs_are_limited_in_time_and_length(kind: str) -> None:
    before, after = slow_contents(kind)
    started = process_time()
    lines = printed(before, after)
    assert process_time() - started < 15
    assert lines
    assert sum(map(len, lines)) < 1.5 * MAX_CHARACTERS


def test_repeated_lines_are_compared_quickly() -> None:
    # difflib compares each repeated line with all the lines equal to it, one at a time.
    def lines(other: str) -> str:
        return "".join(f"{n // 2 % 50 if n % 2 else other + str(n):>30}\n" for n in range(9_999))

    started = process_time()
    assert diff_size(lines("old"), lines("new")) == pytest.approx(2 * 5000 * 31, rel=0.01)
    assert process_time() - started < 5


def test_matcher_limits_nested_anchors() -> None:
    def nested(between: str) -> list[str]:
        numbers = range(1, 5000)
        return [item for n in numbers for item in (f"line {n + 1}", f"line {n}", between)]

    old, new = nested("a"), nested("b")
    runs = Matcher(pairs=1).runs(old, new)
    assert 1 <= len(runs) <= 2 * MAX_LEVELS + 1
    assert all(old[i : i + n] == new[j : j + n] for i, j, n in runs)
