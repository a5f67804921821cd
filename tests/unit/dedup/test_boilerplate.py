"""Boilerplate: learned from posts with text of their own, then excluded from the comparison."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from crawler.dedup.boilerplate import (
    EAGER_POSTS,
    MAX_COMMON,
    MAX_MARKS_A_POST,
    MAX_POSTS,
    MAX_UNCHECKED_SECONDS,
    MIN_POSTS,
    POSTS_A_REVIEW,
    SAMPLED_POSTS,
    Sourced,
    Table,
    sourced,
    weighed,
)
from crawler.dedup.marks import COMMON, MAX_GAP, Marks, Tally, covered, marks_of
from crawler.dedup.post_text import code_points
from crawler.dedup.signature import by_characters
from crawler.dedup.sketch import Sketch
from tests.integration.claiming import edited, text

THRESHOLD = 0.7
CJK = [chr(point) for point in range(0x4E00, 0x4E00 + 3000)]


def framed(seed: int, words: int = 12) -> str:
    """Return a one-line post that consists mostly of boilerplate."""
    menu, footer = text(1, 60), text(2, 40)
    return f"{menu} {text(1000 + seed, words)} {footer}"


def framed_cjk(seed: int) -> str:
    """Return a Chinese post, which has no spaces, that consists mostly of boilerplate."""
    random, own = Random(1), Random(1000 + seed)
    menu = "".join(random.choices(CJK, k=120))
    return menu[:80] + "".join(own.choices(CJK, k=24)) + menu[80:]


def given(words: str, source: str = "feed") -> Sourced:
    post = sourced(source, words)
    assert post is not None
    return post


def sketch(words: str, table: Table | None = None) -> Sketch:
    made = by_characters(words)
    assert made is not None
    return made if table is None else weighed(made, given(words, table.source), table)


def taught(texts: list[str], source: str = "feed") -> Table:
    table = Table(source)
    for number, words in enumerate(texts):
        table.learn(f"p{number}", given(words, source))
    return table


@pytest.mark.parametrize("make", [framed, framed_cjk])
def test_posts_of_one_frame_are_alike_until_it_is_known(make) -> None:
    table = taught([make(seed) for seed in range(MIN_POSTS)])
    one, other = make(50), make(51)
    assert sketch(one).similarity(sketch(other)) >= THRESHOLD
    assert sketch(one, table).similarity(sketch(other, table)) < 0.3


@pytest.mark.parametrize("make", [framed, framed_cjk])
@pytest.mark.parametrize("seed", range(20))
def test_a_copy_is_found_wherever_its_words_are_changed(make, seed: int) -> None:
    table = taught([make(other) for other in range(5)])
    words = make(50 + seed)
    random, at = Random(seed), words
    if make is framed:
        copy = edited(words, 3, seed)
    else:
        place = random.randrange(len(at) - 2)
        copy = at[:place] + "".join(random.choices(CJK, k=2)) + at[place + 2 :]
    assert sketch(copy, table).similarity(sketch(words, table)) >= THRESHOLD


def test_posts_of_one_source_with_different_titles_are_as_alike_as_what_else_they_have() -> None:
    table = taught([framed(seed) for seed in range(5)])
    menu, footer = text(1, 60), text(2, 40)

    def titled(words: str, title: str | None, source: str = "feed") -> Sketch:
        post = sourced(source, f"{menu} {words} {footer}", title)
        made = by_characters(post.text) if post else None
        assert post is not None
        assert made is not None
        weighed_ = weighed(made, post, table)
        assert weighed_.own is not None
        return Sketch.decode(weighed_.encode())

    words = text(50, 12)
    one, other = words, edited(words, 3)
    assert titled(one, None).similarity(titled(other, None)) >= THRESHOLD
    assert titled(one, "News").similarity(titled(other, "NEWS ")) >= THRESHOLD
    assert titled(one, "News").similarity(titled(other, None)) >= THRESHOLD
    assert titled(one, "News").similarity(titled(other, "More news")) < THRESHOLD
    assert titled(one, "News").similarity(titled(one, "More news")) == 1


def test_a_copy_of_all_is_found_at_a_source_without_that_boilerplate() -> None:
    table = taught([framed(other) for other in range(5)])
    another, copies, others = sketch(framed(90, 20), table), 0, 0
    for seed in range(100):
        words = framed(100 + seed, 20)
        copy = sketch(edited(words, 2, seed))
        copies += copy.similarity(sketch(words, table)) >= THRESHOLD
        others += copy.similarity(another) >= THRESHOLD
    # The estimate uses 128 values, so up to 10 % of a different post can look like our text.
    assert copies >= 98
    assert others <= 10


def test_a_copy_is_found_in_the_frame_of_another_source() -> None:
    here = taught([framed(seed) for seed in range(5)])
    there = taught([f"{text(7, 90)} {text(500 + s, 40)}" for s in range(5)], "other")
    body = text(300, 40)
    one = f"{text(1, 60)} {body} {text(2, 40)}"
    other = f"{text(7, 90)} {body}"
    assert sketch(one).similarity(sketch(other)) < THRESHOLD
    assert sketch(one, here).similarity(sketch(other, there)) >= THRESHOLD


def test_what_is_repeated_does_not_become_boilerplate() -> None:
    same = [text(5)] * 1000
    copies = [edited(text(6), 3, seed) for seed in range(12)]
    daily = [f"{text(8)} 12 May 20{day:02} {day} degrees" for day in range(60)]
    for texts in (same, copies, daily):
        table = taught(texts)
        assert sketch(texts[0], table).own is None
        assert sketch(texts[-1], table).similarity(sketch(texts[0], table)) >= THRESHOLD


def test_a_table_is_bounded() -> None:
    table = Table("feed")
    for number in range(300):
        long = text(number, 800) + text(number // 5, 400)
        table.learn(f"p{number}", given(long[:20_000]))
    assert len(table.posts) == MAX_POSTS
    assert max(post.size for post in table.posts.values()) <= MAX_MARKS_A_POST
    assert 0 < table.common.size <= MAX_COMMON
    assert sourced("feed", "a" * 20_001) is None


def test_posts_from_before_are_pending_once() -> None:
    table = taught([framed(seed) for seed in range(MIN_POSTS - 1)])
    assert table.pending == {}
    table.learn("late", given(framed(70)))
    assert set(table.pending) == {f"p{n}" for n in range(MIN_POSTS - 1)} | {"late"}


def test_what_two_workers_learn_at_the_same_moment_comes_together() -> None:
    """Check that the second worker adds its posts to those the first worker stored."""
    late = Table("feed")
    late.learn("late", given(framed(71)))
    stored = taught([framed(1), framed(2)])
    stored.take_over(late)
    assert set(stored.pending) == set(stored.posts) == {"p0", "p1", "late"}
    assert stored.common.size > 50
    # Boilerplate that other workers learned after the late worker compared its post.
    stored = taught([framed(seed) for seed in range(5)])
    before = stored.version
    stored.pending.clear()
    stored.take_over(late)
    assert stored.pending["late"] == before


def test_a_full_source_learns_from_a_sample_and_from_edits() -> None:
    table = taught([framed(seed) for seed in range(EAGER_POSTS - 1)])
    assert all(table.wants(f"new{number}", number) for number in range(8))
    table.learn("last", given(framed(99)))
    wanted = [number for number in range(100) if table.wants(f"new{number}", number)]
    assert wanted == list(range(0, 100, SAMPLED_POSTS))
    assert table.wants("last", 1)


def test_an_edit_of_a_post_does_not_count_twice() -> None:
    table = Table("feed")
    for seed in range(10):
        table.learn("same", given(framed(seed)))
    assert table.common.size == 0
    assert len(table.posts) == 1


@pytest.mark.parametrize("words", ["", "short", "a" * 500, "\U0001f600" * 100, "\ud800 lone " * 20])
def test_any_text_can_be_learned(words: str) -> None:
    table = taught([words] * 5 + [f"{words} {text(1, 30)}"])
    made = by_characters(words)
    if made is not None:
        assert weighed(made, given(words), table).similarity(made) >= 0


def test_marks_of_a_passage_do_not_depend_on_what_stands_around_it() -> None:
    passage = text(3, 60)
    alone = set(marks_of(code_points(passage)).hashes.tolist())
    inside = set(marks_of(code_points(f"{text(4)} {passage} {text(5)}")).hashes.tolist())
    assert len(alone) > 20
    assert alone <= inside


def test_a_tally_counts_as_a_dictionary_does() -> None:
    counts, latest = dict[int, int](), list[set[int]]()
    tally = Tally([], np.empty(0, np.uint32))
    for number in range(200):
        post = given(" ".join(text(seed, 30) for seed in (number, number // 2, number // 3, 5000)))
        taught = tally.teach(post, 40, 0, MIN_POSTS)
        assert taught is not None
        own_marks = set(taught.marks.tolist())
        assert 10 < len(own_marks) == taught.marks.size <= 40
        # The smallest hashes are kept, so posts that share a passage keep the same hashes of it.
        assert own_marks == {mark for mark in post.marks.hashes.tolist() if mark <= max(own_marks)}
        for mark in own_marks:
            counts[mark] = counts.get(mark, 0) + 1
        assert set(taught.frequent.tolist()) == {
            mark for mark in own_marks if counts[mark] >= MIN_POSTS
        }
        latest.append(own_marks)
        if number >= 30:
            gone = latest.pop(0)
            tally.remove(np.array(sorted(gone), np.uint32))
            for mark in gone:
                counts[mark] -= 1
    marks = np.array(sorted(counts), np.uint32)
    assert tally.states(marks).tolist() == [counts[int(mark)] for mark in marks]
    tally.make_common(marks[:3])
    assert (tally.states(marks) >= COMMON).sum() == 3


@pytest.mark.parametrize("seed", range(5))
def test_a_weighed_sketch_is_stored_as_it_is(seed: int) -> None:
    table = taught([framed(other) for other in range(5)])
    made = sketch(framed(60 + seed), table)
    assert made.own is not None
    back = Sketch.decode(made.encode())
    assert back.own is not None
    assert back.encode() == made.encode()
    assert (back.own.tag, back.own.title) == (made.own.tag, made.own.title)
    assert back.own.share == made.own.share
    assert back.bands.tolist() == made.bands.tolist()
    assert back.similarity(made) == 1


@pytest.mark.parametrize(
    ("gap", "chosen", "is_covered"),
    [
        (MAX_GAP, [True, True], True),
        (MAX_GAP + 1, [True, True], False),
        (MAX_GAP, [True, False], False),
        (MAX_GAP, [False, True], False),
    ],
    ids=["short", "long", "after a mark", "before a mark"],
)
def test_a_short_gap_between_marks_of_boilerplate_is_boilerplate(
    gap: int, chosen: list[bool], is_covered: bool
) -> None:
    size, starts = 30, np.array([20, 50 + gap], np.int32)
    marks = Marks(np.array([1, 2], np.uint32), starts, starts + np.int32(size))
    mask = covered(code_points("x" * (100 + gap + size)), marks, np.array(chosen))
    assert mask[50 : 50 + gap].tolist() == [is_covered] * gap
    assert [bool(mask[start : start + size].all()) for start in starts] == chosen


def test_posts_of_a_known_source_are_compared_again_after_many_posts() -> None:
    table = taught([framed(seed) for seed in range(MIN_POSTS)])
    assert table.is_new
    assert table.pending
    assert [table.needs_review(1) for _ in range(2)] == [True, True]
    table = taught([framed(seed) for seed in range(EAGER_POSTS)])
    # Immediately after a time without changes, then once for many posts.
    assert [table.needs_review(POSTS_A_REVIEW // 2) for _ in range(4)] == [True, False] * 2


def test_posts_that_were_compared_again_wait_no_longer() -> None:
    table = taught([framed(seed) for seed in range(MIN_POSTS)])
    later = {**table.pending, "p0": table.version + 1}
    table.pending = later.copy()
    table.note({"p0": table.version, "p1": table.version})
    assert table.pending.keys() == later.keys() - {"p1"}
    assert table.revision == 1


def test_a_table_that_rarely_changes_is_rarely_checked() -> None:
    table = Table("feed", changed_at=100.0, checked_at=104.0)
    assert table.is_fresh(104.3)
    assert not table.is_fresh(104.5)
    table.checked_at = 200.0
    assert table.is_fresh(200.0 + 0.9 * MAX_UNCHECKED_SECONDS)
    assert not table.is_fresh(200.1 + MAX_UNCHECKED_SECONDS)
