"""Effects of a feed document: new, edited, and missed posts, feed size, and history."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from crawler.items import (
    Entry,
    FeedDocument,
    Fetched,
    Kind,
    KnownFeed,
    KnownPost,
    Monitor,
    Outcome,
    Target,
    TargetPlan,
    planned_feed_size,
)
from pipelines.change_detection import FEEDS, Rules
from pipelines.content import ContentPipeline
from pipelines.feed_posts import collect, decide, extended_history, is_gap, missed_posts, outcome_of
from schedules.history import CHANGE, MAX_CHANGES, History
from schedules.schedule import Schedule

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Dates = Sequence[datetime | None]


def minutes(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(minutes=1)


def entry(name: str, published: datetime | None = None, text: str = "text") -> Entry:
    return Entry(name, f"https://blog.test/{name}", published, {"title": name, "main_text": text})


def fetched(*entries: Entry, seen: History | None = None, at: datetime = NOW) -> Fetched:
    target = Target("feeds", "https://blog.test/feed", Kind.FEED, history=seen)
    target.content_hash = "before" if seen else None
    page = Fetched(target, at, "scheme")
    page.document = FeedDocument("rss20", "Blog", None, entries)
    done: Fetched = ContentPipeline().process_item(page)
    return done


def seen_until(at: datetime, *posted: datetime, since: datetime | None = None) -> History:
    begin = minutes(since or at - timedelta(days=10))
    records = [(begin, minutes(at), minutes(post)) for post in posted]
    return History.begin(begin).extended(minutes(at), records)


def stored(
    of: Fetched, *names: str, at: datetime = NOW - timedelta(days=3)
) -> dict[str, KnownPost]:
    hashes = {post.id: post.content_hash for post in of.posts}
    return {name: KnownPost(f"key of {name}", hashes[name], at) for name in names}


def records(history: History) -> list[tuple[int, ...]]:
    return [tuple(map(int, row)) for row in np.frombuffer(history.changes, CHANGE)]


def test_first_fetch_finds_only_new_posts() -> None:
    page = fetched(entry("b"), entry("a"))
    collected = collect(page, Monitor(), {})
    assert [key for key, _ in collected.new] == [
        "feeds https://blog.test/feed b",
        "feeds https://blog.test/feed a",
    ]
    assert (collected.edited, collected.missed_posts) == ((), 0)
    assert outcome_of(page, collected) is Outcome.NEW
    after = collected.monitor
    assert (after.feed_size, after.full, after.posts, len(after.ids)) == (2, False, 2, 16)


def test_edited_post_keeps_its_key() -> None:
    before = fetched(entry("a"), entry("b"))
    posts = stored(before, "a", "b")
    page = fetched(entry("a", text="corrected"), entry("b"), seen=seen_until(NOW - HOUR))
    collected = collect(page, Monitor(), posts)
    assert [key for key, _ in collected.edited] == ["key of a"]
    assert collected.new == ()
    assert outcome_of(page, collected) is Outcome.CHANGED


@pytest.mark.parametrize("push", [None, "delivery"])
def test_posts_with_changed_ids_get_the_new_ids_from_polls_only(push: str | None) -> None:
    page = replace(fetched(entry("b"), entry("a"), seen=seen_until(NOW - HOUR)), push=push)
    known = stored(page, "b", "a")
    known["b"] = replace(known["b"], id="old b")
    collected = collect(page, Monitor(), known)
    assert collected.renamed == (() if push else (("key of b", "b"),))
    assert collected.posts == ()


def test_a_document_that_only_lost_old_posts_is_unchanged() -> None:
    page = fetched(entry("b"), seen=seen_until(NOW - HOUR))
    collected = collect(page, Monitor(), stored(page, "b"))
    assert outcome_of(page, collected) is Outcome.UNCHANGED


def test_post_stored_by_crashed_visit_is_new_again() -> None:
    page = fetched(entry("a"), seen=seen_until(NOW - HOUR))
    posts = stored(page, "a", at=NOW - HOUR / 2)
    assert [key for key, _ in collect(page, Monitor(), posts).new] == ["key of a"]


def test_feed_size_grows_until_posts_roll_off() -> None:
    def observe(monitor: Monitor, *names: str) -> Monitor:
        return collect(fetched(*map(entry, names)), monitor, {}).monitor

    young = observe(Monitor(), "b", "a")
    grown = observe(young, "c", "b", "a")
    assert [(m.feed_size, m.full) for m in (young, grown)] == [(2, False), (3, False)]
    assert planned_feed_size(grown) == 10, "the feed may have room for more posts"
    rolled = observe(grown, "d", "c", "b")
    assert (rolled.feed_size, rolled.full, planned_feed_size(rolled)) == (3, True, 3)
    cut_off = observe(rolled, "e", "d")
    assert cut_off.feed_size == 3, "one short document may be incomplete"
    shrunk = observe(cut_off, "f", "e")
    assert shrunk.feed_size == 2
    assert observe(shrunk).feed_size == 2, "an empty document gives no information"


def test_planned_feed_interval_may_exceed_longest_interval() -> None:
    every, planned = timedelta(days=60), NOW + timedelta(days=59)
    assert timedelta(hours=FEEDS.longest_hours) == timedelta(days=28)
    page = fetched(entry("a"))
    phase = (planned - EPOCH) % every
    page.target.plan = TargetPlan("plan", Schedule(1, (), every / HOUR, phase / HOUR))
    assert decide(page, Rules(FEEDS, FEEDS, 3), KnownFeed(Monitor(), {})).next_visit == planned


def test_gap_is_detected_if_no_previous_post_remains() -> None:
    monitor = collect(fetched(entry("a"), entry("b")), Monitor(), {}).monitor
    assert not is_gap(fetched(entry("c"), entry("b")), monitor)
    assert is_gap(fetched(entry("d"), entry("c")), monitor)
    assert not is_gap(fetched(), monitor)


def test_missed_posts_are_rate_times_uncovered_hours() -> None:
    last = NOW - 10 * HOUR
    # Ten posts in ten days; now two in the last two hours, and none in the eight hours before.
    seen = seen_until(last, *(last - i * 24 * HOUR for i in range(10)))
    monitor = collect(fetched(entry("old")), Monitor(), {}).monitor
    page = fetched(entry("y", NOW - HOUR), entry("x", NOW - 2 * HOUR), seen=seen)
    assert missed_posts(page, monitor, 2) == pytest.approx(12 / (240 + 2) * 8)


def test_missed_posts_without_dates_are_expected_minus_found() -> None:
    last = NOW - 240 * HOUR
    seen = seen_until(last, *(last - i * 12 * HOUR for i in range(20)))
    monitor = collect(fetched(entry("old")), Monitor(), {}).monitor
    page = fetched(entry("y"), entry("x"), seen=seen)
    assert missed_posts(page, monitor, 2) == pytest.approx(20 / 240 * 240 - 2)


def test_no_posts_are_missed_if_a_post_predates_last_fetch() -> None:
    seen = seen_until(NOW - 10 * HOUR, NOW - 20 * HOUR)
    monitor = collect(fetched(entry("old")), Monitor(), {}).monitor
    page = fetched(entry("y", NOW - HOUR), entry("x", NOW - 11 * HOUR), seen=seen)
    assert missed_posts(page, monitor, 2) == 0


def test_dates_of_first_document_become_history() -> None:
    page = fetched(entry("c", NOW - HOUR), entry("b", NOW - 5 * HOUR), entry("a", NOW - 9 * HOUR))
    history = extended_history(page, collect(page, Monitor(), {}))
    assert history.since == minutes(NOW - 9 * HOUR)
    assert history.until == minutes(NOW)
    assert [stated for _, _, stated in records(history)] == [
        minutes(NOW - 5 * HOUR), minutes(NOW - HOUR),
    ]  # fmt: skip


def test_posts_within_a_minute_of_last_fetch_are_recorded() -> None:
    seen = seen_until(NOW, NOW - HOUR)
    pushed = fetched(entry("b", NOW), seen=seen, at=NOW + timedelta(seconds=40))
    history = extended_history(pushed, collect(pushed, Monitor(), {}))
    at = minutes(NOW)
    assert (history.since, history.until) == (seen.since, at)
    assert records(history)[1:] == [(at - 1, at, at)]
    again = fetched(entry("b", NOW), seen=seen, at=NOW + timedelta(seconds=50))
    assert extended_history(again, collect(again, Monitor(), stored(again, "b"))) == seen


@pytest.mark.parametrize("dates", [(NOW - HOUR, None), (None, None), ()])
def test_history_without_dates_begins_at_first_fetch(dates: Dates) -> None:
    page = fetched(*(entry(str(i), date) for i, date in enumerate(dates)))
    history = extended_history(page, collect(page, Monitor(), {}))
    assert history == History.begin(minutes(NOW))


def test_new_and_missed_posts_are_separate_records() -> None:
    last = NOW - 10 * HOUR
    seen = seen_until(last, *(last - i * HOUR for i in range(240)))
    monitor = collect(fetched(entry("old")), Monitor(), {}).monitor
    page = fetched(entry("y", NOW - HOUR), entry("x", NOW - 2 * HOUR), seen=seen)
    collected = collect(page, monitor, {})
    assert collected.missed_posts == pytest.approx(8, rel=0.01)
    new = records(extended_history(page, collected))[240:]
    assert new[:8] == [(minutes(last), minutes(NOW - 2 * HOUR), 0)] * 8
    assert [row[2] for row in new[8:]] == [minutes(NOW - 2 * HOUR), minutes(NOW - HOUR)]
    assert collected.monitor.gaps == 1
    assert collected.monitor.last_gap_at == NOW


def test_rate_of_missed_posts_is_not_that_of_a_moment() -> None:
    """The first fetch was a day ago, and the only post appeared 30 milliseconds ago."""
    seen = History.begin(minutes(NOW - 24 * HOUR))
    monitor = collect(fetched(entry("old")), Monitor(), {}).monitor
    page = fetched(entry("new", NOW - timedelta(milliseconds=30)), seen=seen)
    assert collect(page, monitor, {}).missed_posts == pytest.approx(24)


def test_millions_of_missed_posts_take_no_more_records_than_a_history_keeps() -> None:
    """The first fetch was years ago, and a hundred posts appeared in the last hour."""
    posted = NOW - HOUR
    seen = History.begin(minutes(NOW - 24_000 * HOUR))
    monitor = collect(fetched(entry("old")), Monitor(), {}).monitor
    page = fetched(*(entry(f"new {n}", posted) for n in range(100)), seen=seen)
    collected = collect(page, monitor, {})
    assert collected.missed_posts > 2_000_000
    tracemalloc.start()
    try:
        history = extended_history(page, collected)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1_000_000
    assert len(records(history)) == MAX_CHANGES
    assert history.since == minutes(posted)


def test_date_outside_of_fetch_interval_is_ignored() -> None:
    seen = seen_until(NOW - HOUR, NOW - 20 * HOUR)
    page = fetched(entry("late", NOW - 30 * HOUR), seen=seen)
    assert records(extended_history(page, collect(page, Monitor(), {})))[-1] == (
        minutes(NOW - HOUR), minutes(NOW), 0,
    )  # fmt: skip


def document_of(*names: str, at: datetime = NOW, seen: History | None = None) -> Fetched:
    """Return a document whose posts were published an hour apart, the first one at `at`."""
    dated = (entry(name, at - n * HOUR) for n, name in enumerate(names))
    return fetched(*dated, seen=seen, at=at)


def test_pinned_post_does_not_hide_a_gap() -> None:
    last = NOW - 24 * HOUR
    pinned = entry("pinned", NOW - timedelta(days=300))
    before = fetched(pinned, *(entry(f"a{n}", last - n * HOUR) for n in range(9)), at=last)
    monitor = collect(before, Monitor(), {}).monitor
    seen = seen_until(last, *(last - n * HOUR for n in range(240)))
    new = [entry(f"b{n}", NOW - n * HOUR) for n in range(9)]
    page = fetched(pinned, *new, seen=seen)
    collected = collect(page, monitor, stored(page, "pinned"))
    assert collected.missed_posts == pytest.approx(16, rel=0.1)
    # The newest post of the last document remains, so nothing was missed.
    page = fetched(entry("a0", last), *new, seen=seen)
    assert collect(page, monitor, stored(page, "a0")).missed_posts == 0


def test_pinned_post_does_not_lengthen_the_history_of_the_first_document() -> None:
    pinned = entry("pinned", NOW - timedelta(days=60))
    page = fetched(pinned, *(entry(f"a{n}", NOW - n * HOUR) for n in range(5)))
    history = extended_history(page, collect(page, Monitor(), {}))
    assert history.since == minutes(NOW - 4 * HOUR)
    # In a document from the oldest to the newest, the first post is not pinned.
    for number in (2, 5):
        days = range(number, 0, -1)
        page = fetched(*(entry(f"a{day}", NOW - timedelta(days=day)) for day in days))
        history = extended_history(page, collect(page, Monitor(), {}))
        assert history.since == minutes(NOW - timedelta(days=number))


def test_one_post_without_date_does_not_discard_the_dates_of_the_others() -> None:
    dated = [entry(f"a{n}", NOW - n * HOUR) for n in range(5)]
    page = fetched(entry("ahead"), *dated)
    history = extended_history(page, collect(page, Monitor(), {}))
    assert len(records(history)) == 4
    last = NOW - 10 * HOUR
    seen = seen_until(last, *(last - n * HOUR for n in range(240)))
    monitor = collect(fetched(entry("old")), Monitor(), {}).monitor
    page = fetched(entry("ahead"), *dated, seen=seen)
    assert collect(page, monitor, {}).missed_posts == pytest.approx(6, rel=0.1)


def test_posts_missed_while_a_document_was_empty_are_estimated() -> None:
    start = NOW - 48 * HOUR
    monitor = collect(document_of(*"abcdefgh", at=start), Monitor(), {}).monitor
    seen = seen_until(start, *(start - n * HOUR for n in range(240)))
    empty = fetched(seen=seen, at=NOW - 24 * HOUR)
    collected = collect(empty, monitor, {})
    assert extended_history(empty, collected) == seen, "not an observation of silence"
    assert "the document is empty, but has had 8 posts" in collected.problems[0]
    page = document_of(*"stuvwxyz", seen=seen)
    after = collect(page, collected.monitor, {})
    assert after.missed_posts == pytest.approx(41, rel=0.1)
    assert after.problems == ()
    late = fetched(seen=seen, at=start + timedelta(days=8))
    assert extended_history(late, collected).until == minutes(late.at), "silent after a week"


def test_posts_that_expire_are_not_missed() -> None:
    """A feed of current alerts is empty at times."""
    start = NOW - 48 * HOUR
    monitor = collect(document_of("a", "b", at=start), Monitor(), {}).monitor
    seen = seen_until(start, start - HOUR)
    empty = fetched(seen=seen, at=NOW - 24 * HOUR)
    collected = collect(empty, monitor, {})
    history = extended_history(empty, collected)
    assert history.until == minutes(empty.at)
    page = document_of("c", seen=history)
    assert collect(page, collected.monitor, {}).missed_posts == 0


def test_short_document_is_not_a_gap() -> None:
    monitor = collect(document_of(*"abcdefgh"), Monitor(), {}).monitor
    assert is_gap(document_of(*"stuv"), monitor)
    assert not is_gap(document_of(*"stu"), monitor), "cut off"


def test_changed_ids_of_all_posts_are_a_problem() -> None:
    page = fetched(entry("b"), entry("a"), seen=seen_until(NOW - HOUR))
    known = {name: replace(post, id=f"old {name}") for name, post in stored(page, *"ab").items()}
    (problem,) = collect(page, Monitor(), known).problems
    assert problem.startswith("the ids of all 2 posts changed since the last visit")


def test_not_modified_is_doubted_once_a_week_without_new_posts() -> None:
    target = fetched(seen=seen_until(NOW, NOW - HOUR)).target
    for visited_days, now_days, doubted in ((0, 6, 0), (6, 7.5, 1), (7.5, 13, 0), (13, 14, 1)):
        target.visited_at = NOW + timedelta(days=visited_days)
        assert target.doubts_not_modified(NOW + timedelta(days=now_days)) == doubted
    assert not replace(target, history=None).doubts_not_modified(NOW + timedelta(days=30))
