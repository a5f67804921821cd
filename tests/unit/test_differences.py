"""How much of a text is new."""

from __future__ import annotations

import random
from math import isqrt
from time import perf_counter

import pytest

from crawler.differences import EXACT_PAIRS, diff_size, unified


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
def test_the_size_is_the_characters_deleted_and_inserted(
    before: str, after: str, size: int
) -> None:
    assert diff_size(before, after) == size


def large(seed: int) -> list[str]:
    """Lines that are not like one another, of a text too large for an exact comparison."""
    numbers = random.Random(seed)
    count = isqrt(EXACT_PAIRS) // 65 + 100
    return [f"{numbers.getrandbits(256):064x}\n" for _ in range(count)]


def test_large_texts_are_compared_fast_and_at_least_by_lines() -> None:
    same = large(1)
    before, after = "".join(same), "".join([*same[:500], "new line\n", *same[501:]])
    started = perf_counter()
    size = diff_size(before, after)
    assert perf_counter() - started < 5
    assert 0 < size <= len(same[500]) + len("new line\n")


def test_large_texts_of_nothing_alike_are_fast_too() -> None:
    before, after = "".join(large(1)), "".join(large(2))
    started = perf_counter()
    assert len(before) < diff_size(before, after) <= len(before) + len(after)
    assert perf_counter() - started < 5


def test_one_character_in_a_large_text_without_lines_is_one_character() -> None:
    before = "".join(large(1)).replace("\n", " ")
    after = before[:30_000] + "!" + before[30_000:]
    assert diff_size(before, after) == 1


def test_a_large_difference_is_the_same_both_ways() -> None:
    before = large(1)
    after = random.Random(3).sample(before, len(before))
    there = diff_size("".join(before), "".join(after))
    assert there == diff_size("".join(after), "".join(before))


def test_lines_without_measure_count_wherever_they_stand() -> None:
    numbers = random.Random(4)
    lines = [f"line number {numbers.randrange(150):04}\n" for _ in range(30_000)]
    shuffled = numbers.sample(lines, len(lines))
    # The lines at both ends may be cut where they are alike.
    assert diff_size("".join(lines), "".join(["new\n", *shuffled[1:]])) < 10 * len(lines[0])


def test_a_diff_shows_what_went_and_what_came() -> None:
    diff = unified(["title: a", "price: 1"], ["title: a", "price: 2"], ("old", "new"))
    assert diff == ["--- old", "+++ new", "@@ -1,2 +1,2 @@", " title: a", "-price: 1", "+price: 2"]


def test_equal_contents_have_no_diff() -> None:
    assert unified(["a"], ["a"], ("old", "new")) == []
