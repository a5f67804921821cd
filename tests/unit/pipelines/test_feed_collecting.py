"""Effects of a feed document: new, edited, and missed posts, feed size, and history."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from crawler.items import (
    Entry,
    FeedDocument,
    Fetched,
    Kind,
    KnownPost,
    Monitor,
    Outcome,
    Planned,
    Target,
    planned_feed_size,
)
from pipelines.content import ContentPipeline
from pipelines.feed_posts import collect, decide, is_gap, missed_posts, outcome_of, past
from pipelines.outcomes import FEEDS, Rules
from schedules.history import CHANGE, History
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


def test_at_a_first_look_every_post_is_new() -> None:
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


def test_a_known_post_with_another_text_is_edited_and_keeps_its_key() -> None:
    before = fetched(entry("a"), entry("b"))
    posts = stored(before, "a", "b")
    page = fetched(entry("a", text="corrected"), entry("b"), seen=seen_until(NOW - HOUR))
    collected = collect(page, Monitor(), posts)
    assert [key for key, _ in collected.edited] == ["key of a"]
    assert collected.new == ()
    assert outcome_of(page, collected) is Outcome.CHANGED


def test_a_document_that_only_lost_old_posts_is_unchanged() -> None:
    page = fetched(entry("b"), seen=seen_until(NOW - HOUR))
    collected = collect(page, Monitor(), stored(page, "b"))
    assert outcome_of(page, collected) is Outcome.UNCHANGED


def test_a_post_that_a_crash_kept_from_its_visit_is_new_again() -> None:
    page = fetched(entry("a"), seen=seen_until(NOW - HOUR))
    posts = stored(page, "a", at=NOW - HOUR / 2)
    assert [key for key, _ in collect(page, Monitor(), posts).new] == ["key of a"]


def test_the_window_grows_until_posts_leave_and_follows_the_document_then() -> None:
    def observe(monitor: Monitor, *names: str) -> Monitor:
        return collect(fetched(*map(entry, names)), monitor, {}).monitor

    young = observe(Monitor(), "b", "a")
    grown = observe(young, "c", "b", "a")
    assert [(m.feed_size, m.full) for m in (young, grown)] == [(2, False), (3, False)]
    assert planned_feed_size(grown) == 10, "the feed may have room for more posts"
    rolled = observe(grown, "d", "c", "b")
    assert (rolled.feed_size, rolled.full, planned_feed_size(rolled)) == (3, True, 3)
    shrunk = observe(rolled, "e", "d")
    assert shrunk.feed_size == 2
    assert observe(shrunk).feed_size == 2, "an empty document gives no information"


def test_a_plan_may_fetch_a_feed_more_rarely_than_pages() -> None:
    every, planned = timedelta(days=60), NOW + timedelta(days=59)
    assert timedelta(hours=FEEDS.longest_hours) == timedelta(days=28)
    page = fetched(entry("a"))
    phase = (planned - EPOCH) % every
    page.target.plan = Planned("plan", Schedule(1, (), every / HOUR, phase / HOUR))
    assert decide(page, Rules(FEEDS, FEEDS, 3), Monitor(), {}).next_visit == planned


def test_posts_are_lost_when_no_post_of_the_last_document_is_left() -> None:
    monitor = collect(fetched(entry("a"), entry("b")), Monitor(), {}).monitor
    assert not is_gap(fetched(entry("c"), entry("b")), monitor)
    assert is_gap(fetched(entry("d"), entry("c")), monitor)
    assert not is_gap(fetched(), monitor)


def test_how_many_were_lost_follows_from_the_rate_and_the_hours_that_no_document_covers() -> None:
    last = NOW - 10 * HOUR
    # Ten posts in ten days; now two in the last two hours, and none in the eight hours before.
    seen = seen_until(last, *(last - i * 24 * HOUR for i in range(10)))
    monitor = collect(fetched(entry("old")), Monitor(), {}).monitor
    page = fetched(entry("y", NOW - HOUR), entry("x", NOW - 2 * HOUR), seen=seen)
    assert missed_posts(page, monitor, 2) == pytest.approx(12 / (240 + 2) * 8)


def test_without_dates_the_rate_over_the_whole_time_less_what_came_is_lost() -> None:
    last = NOW - 240 * HOUR
    seen = seen_until(last, *(last - i * 12 * HOUR for i in range(20)))
    monitor = collect(fetched(entry("old")), Monitor(), {}).monitor
    page = fetched(entry("y"), entry("x"), seen=seen)
    assert missed_posts(page, monitor, 2) == pytest.approx(20 / 240 * 240 - 2)


def test_nothing_is_lost_when_a_post_is_older_than_the_last_look() -> None:
    seen = seen_until(NOW - 10 * HOUR, NOW - 20 * HOUR)
    monitor = collect(fetched(entry("old")), Monitor(), {}).monitor
    page = fetched(entry("y", NOW - HOUR), entry("x", NOW - 11 * HOUR), seen=seen)
    assert missed_posts(page, monitor, 2) == 0


def test_the_dates_of_a_first_document_are_a_past() -> None:
    page = fetched(entry("c", NOW - HOUR), entry("b", NOW - 5 * HOUR), entry("a", NOW - 9 * HOUR))
    history = past(page, collect(page, Monitor(), {}))
    assert history.since == minutes(NOW - 9 * HOUR)
    assert history.until == minutes(NOW)
    assert [stated for _, _, stated in records(history)] == [
        minutes(NOW - 5 * HOUR), minutes(NOW - HOUR),
    ]  # fmt: skip


def test_posts_found_within_a_minute_of_the_last_fetch_are_in_the_past() -> None:
    seen = seen_until(NOW, NOW - HOUR)
    pushed = fetched(entry("b", NOW), seen=seen, at=NOW + timedelta(seconds=40))
    history = past(pushed, collect(pushed, Monitor(), {}))
    at = minutes(NOW)
    assert (history.since, history.until) == (seen.since, at)
    assert records(history)[1:] == [(at - 1, at, at)]
    again = fetched(entry("b", NOW), seen=seen, at=NOW + timedelta(seconds=50))
    assert past(again, collect(again, Monitor(), stored(again, "b"))) == seen


@pytest.mark.parametrize("dates", [(NOW - HOUR, None), (None, None), ()])
def test_without_dates_the_past_begins_with_the_first_look(dates: Dates) -> None:
    page = fetched(*(entry(str(i), date) for i, date in enumerate(dates)))
    history = past(page, collect(page, Monitor(), {}))
    assert history == History.begin(minutes(NOW))


def test_every_new_post_is_a_record_of_its_own_and_so_are_lost_ones() -> None:
    last = NOW - 10 * HOUR
    seen = seen_until(last, *(last - i * HOUR for i in range(240)))
    monitor = collect(fetched(entry("old")), Monitor(), {}).monitor
    page = fetched(entry("y", NOW - HOUR), entry("x", NOW - 2 * HOUR), seen=seen)
    collected = collect(page, monitor, {})
    assert collected.missed_posts == pytest.approx(8, rel=0.01)
    new = records(past(page, collected))[240:]
    assert new[:8] == [(minutes(last), minutes(NOW - 2 * HOUR), 0)] * 8
    assert [row[2] for row in new[8:]] == [minutes(NOW - 2 * HOUR), minutes(NOW - HOUR)]
    assert collected.monitor.gaps == 1
    assert collected.monitor.last_gap_at == NOW


def test_a_date_outside_of_the_two_looks_says_nothing() -> None:
    seen = seen_until(NOW - HOUR, NOW - 20 * HOUR)
    page = fetched(entry("late", NOW - 30 * HOUR), seen=seen)
    assert records(past(page, collect(page, Monitor(), {})))[-1] == (
        minutes(NOW - HOUR), minutes(NOW), 0,
    )  # fmt: skip
