"""Boilerplate is learned from posts with different texts and excluded from comparisons."""

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
from crawler.dedup.minhash import by_characters
from crawler.dedup.sketch import Sketch
from crawler.dedup.text import code_points
from tests.integration.claiming import edited, text

THRESHOLD = 0.7
CJK = [chr(point) for point in range(0x4E00, 0x4E00 + 3000)]


def with_boilerplate(seed: int, words: int = 12) -> str:
    """Return a one-line post that consists mostly of boilerplate."""
    menu, footer = text(1, 60), text(2, 40)
    return f"{menu} {text(1000 + seed, words)} {footer}"


def cjk_with_boilerplate(seed: int) -> str:
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


@pytest.mark.parametrize("make", [with_boilerplate, cjk_with_boilerplate])
def test_shared_boilerplate_counts_until_it_is_learned(make) -> None:
    table = taught([make(seed) for seed in range(MIN_POSTS)])
    one, other = make(50), make(51)
    assert sketch(one).similarity(sketch(other)) >= THRESHOLD
    assert sketch(one, table).similarity(sketch(other, table)) < 0.3


@pytest.mark.parametrize("make", [with_boilerplate, cjk_with_boilerplate])
@pytest.mark.parametrize("seed", range(20))
def test_copy_is_found_wherever_it_was_edited(make, seed: int) -> None:
    table = taught([make(other) for other in range(5)])
    words = make(50 + seed)
    random, at = Random(seed), words
    if make is with_boilerplate:
        copy = edited(words, 3, seed)
    else:
        place = random.randrange(len(at) - 2)
        copy = at[:place] + "".join(random.choices(CJK, k=2)) + at[place + 2 :]
    assert sketch(copy, table).similarity(sketch(words, table)) >= THRESHOLD


def test_titles_separate_posts_unless_own_texts_are_equal() -> None:
    table = taught([with_boilerplate(seed) for seed in range(5)])
    menu, footer = text(1, 60), text(2, 40)

    def titled(words: str, title: str | None, source: str = "feed") -> Sketch:
        post = sourced(source, f"{menu} {words} {footer}", title)
        made = by_characters(post.text) if post else None
        assert post is not None
        assert made is not None
        weighted = weighed(made, post, table)
        assert weighted.own is not None
        return Sketch.decode(weighted.encode())

    words = text(50, 12)
    one, other = words, edited(words, 3)
    assert titled(one, None).similarity(titled(other, None)) >= THRESHOLD
    assert titled(one, "News").similarity(titled(other, "NEWS ")) >= THRESHOLD
    assert titled(one, "News").similarity(titled(other, None)) >= THRESHOLD
    assert titled(one, "News").similarity(titled(other, "More news")) < THRESHOLD
    assert titled(one, "News").similarity(titled(one, "More news")) == 1


def test_full_copy_is_found_in_source_without_boilerplate() -> None:
    table = taught([with_boilerplate(other) for other in range(5)])
    another, copies, others = sketch(with_boilerplate(90, 20), table), 0, 0
    for seed in range(100):
        words = with_boilerplate(100 + seed, 20)
        copy = sketch(edited(words, 2, seed))
        copies += copy.similarity(sketch(words, table)) >= THRESHOLD
        others += copy.similarity(another) >= THRESHOLD
    # The estimate uses only 128 values, so a few copies may miss their original or match an
    # unrelated post.
    assert copies >= 98
    assert others <= 10


def test_copy_is_found_within_other_boilerplate() -> None:
    first_table = taught([with_boilerplate(seed) for seed in range(5)])
    second_table = taught([f"{text(7, 90)} {text(500 + s, 40)}" for s in range(5)], "other")
    body = text(300, 40)
    one = f"{text(1, 60)} {body} {text(2, 40)}"
    other = f"{text(7, 90)} {body}"
    assert sketch(one).similarity(sketch(other)) < THRESHOLD
    assert sketch(one, first_table).similarity(sketch(other, second_table)) >= THRESHOLD


def test_repeated_posts_do_not_become_boilerplate() -> None:
    same = [text(5)] * 1000
    copies = [edited(text(6), 3, seed) for seed in range(12)]
    daily = [f"{text(8)} 12 May 20{day:02} {day} degrees" for day in range(60)]
    for texts in (same, copies, daily):
        table = taught(texts)
        assert sketch(texts[0], table).own is None
        assert sketch(texts[-1], table).similarity(sketch(texts[0], table)) >= THRESHOLD


def test_table_size_is_bounded() -> None:
    table = Table("feed")
    for number in range(300):
        long = text(number, 800) + text(number // 5, 400)
        table.learn(f"p{number}", given(long[:20_000]))
    assert len(table.posts) == MAX_POSTS
    assert max(post.size for post in table.posts.values()) <= MAX_MARKS_A_POST
    assert 0 < table.common.size <= MAX_COMMON
    assert sourced("feed", "a" * 20_001) is None


def test_earlier_posts_become_pending_when_boilerplate_is_found() -> None:
    table = taught([with_boilerplate(seed) for seed in range(MIN_POSTS - 1)])
    assert table.pending == {}
    table.learn("late", given(with_boilerplate(70)))
    assert set(table.pending) == {f"p{n}" for n in range(MIN_POSTS - 1)} | {"late"}


def test_concurrent_updates_of_two_workers_are_merged() -> None:
    """Check that the second worker adds its posts to those the first worker stored."""
    late = Table("feed")
    late.learn("late", given(with_boilerplate(71)))
    stored = taught([with_boilerplate(1), with_boilerplate(2)])
    stored.take_over(late)
    assert set(stored.pending) == set(stored.posts) == {"p0", "p1", "late"}
    assert stored.common.size > 50
    # Other workers learned boilerplate after the late worker compared its post.
    stored = taught([with_boilerplate(seed) for seed in range(5)])
    before = stored.version
    stored.pending.clear()
    stored.take_over(late)
    assert stored.pending["late"] == before


def test_known_source_learns_from_a_sample_and_from_edits() -> None:
    table = taught([with_boilerplate(seed) for seed in range(EAGER_POSTS - 1)])
    assert all(table.learns_from(f"new{number}", number) for number in range(8))
    table.learn("last", given(with_boilerplate(99)))
    wanted = [number for number in range(100) if table.learns_from(f"new{number}", number)]
    assert wanted == list(range(0, 100, SAMPLED_POSTS))
    assert table.learns_from("last", 1)


def test_an_edit_of_a_post_does_not_count_twice() -> None:
    table = Table("feed")
    for seed in range(10):
        table.learn("same", given(with_boilerplate(seed)))
    assert table.common.size == 0
    assert len(table.posts) == 1


@pytest.mark.parametrize("words", ["", "short", "a" * 500, "\U0001f600" * 100, "\ud800 lone " * 20])
def test_table_learns_any_text(words: str) -> None:
    table = taught([words] * 5 + [f"{words} {text(1, 30)}"])
    made = by_characters(words)
    if made is not None:
        assert weighed(made, given(words), table).similarity(made) >= 0


def test_marks_of_a_passage_do_not_depend_on_its_context() -> None:
    passage = text(3, 60)
    alone = set(marks_of(code_points(passage)).hashes.tolist())
    inside = set(marks_of(code_points(f"{text(4)} {passage} {text(5)}")).hashes.tolist())
    assert len(alone) > 20
    assert alone <= inside


def test_tally_counts_match_a_dictionary() -> None:
    counts, latest = dict[int, int](), list[set[int]]()
    tally = Tally([], np.empty(0, np.uint32))
    for number in range(200):
        post = given(" ".join(text(seed, 30) for seed in (number, number // 2, number // 3, 5000)))
        taught = tally.learn(post, 40, 0, MIN_POSTS)
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
def test_weighted_sketch_survives_a_round_trip(seed: int) -> None:
    table = taught([with_boilerplate(other) for other in range(5)])
    made = sketch(with_boilerplate(60 + seed), table)
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
def test_short_gap_between_boilerplate_marks_is_covered(
    gap: int, chosen: list[bool], is_covered: bool
) -> None:
    size, starts = 30, np.array([20, 50 + gap], np.int32)
    marks = Marks(np.array([1, 2], np.uint32), starts, starts + np.int32(size))
    mask = covered(code_points("x" * (100 + gap + size)), marks, np.array(chosen))
    assert mask[50 : 50 + gap].tolist() == [is_covered] * gap
    assert [bool(mask[start : start + size].all()) for start in starts] == chosen


def test_known_source_is_reviewed_once_per_many_posts() -> None:
    table = taught([with_boilerplate(seed) for seed in range(MIN_POSTS)])
    assert table.is_new
    assert table.pending
    assert [table.needs_review(1) for _ in range(2)] == [True, True]
    table = taught([with_boilerplate(seed) for seed in range(EAGER_POSTS)])
    # The first review follows immediately, the next one after POSTS_A_REVIEW posts.
    assert [table.needs_review(POSTS_A_REVIEW // 2) for _ in range(4)] == [True, False] * 2


def test_reviewed_posts_are_no_longer_pending() -> None:
    table = taught([with_boilerplate(seed) for seed in range(MIN_POSTS)])
    later = {**table.pending, "p0": table.version + 1}
    table.pending = later.copy()
    table.note({"p0": table.version, "p1": table.version})
    assert table.pending.keys() == later.keys() - {"p1"}
    assert table.revision == 1


def test_rarely_changing_table_is_rarely_checked() -> None:
    table = Table("feed", changed_at=100.0, checked_at=104.0)
    assert table.is_fresh(104.3)
    assert not table.is_fresh(104.5)
    table.checked_at = 200.0
    assert table.is_fresh(200.0 + 0.9 * MAX_UNCHECKED_SECONDS)
    assert not table.is_fresh(200.1 + MAX_UNCHECKED_SECONDS)
