"""Effects of an observation on a page's history and on its next visit."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from zoneinfo import ZoneInfo

import pytest

from crawler.items import Fetched, Outcome, Target, TargetPlan, Validators, Visit
from crawler.storage.targets import in_minutes, planned_of
from pipelines import change_detection
from pipelines.change_detection import Rules, decide
from schedules.history import History
from schedules.intervals import Intervals
from schedules.schedule import Schedule
from tests.unit.pages import NOON, fetched, target

AT = in_minutes(NOON)
INTERVALS = Intervals(usual_hours=24, error_hours=1, longest_hours=100)
RULES = Rules(INTERVALS, INTERVALS, gone_confirmations=3)
HOUR = timedelta(hours=1)
YESTERDAY = format_datetime(NOON - 24 * HOUR, usegmt=True)
TODAY = format_datetime(NOON - HOUR, usegmt=True)
WATCHED = History(AT - 600, AT - 60)


def known_item(**state: object) -> Target:
    """Return an item that was fetched before."""
    usual = {"content_hash": "h1", "raw_hash": "r1", "selector_digest": "s1", "history": WATCHED}
    return target(**(usual | state))


def dated_fetch(before: str | None, now: str | None, outcome: Outcome = Outcome.CHANGED) -> Fetched:
    """Return a fetch with the previous and the current Last-Modified header."""
    content = "h1" if outcome is Outcome.UNCHANGED else "h2"
    of = known_item(validators=Validators(last_modified=before), false_dates=4)
    return fetched(of, content_hash=content, validators=Validators(last_modified=now))


# History


@pytest.mark.parametrize(
    ("page", "history"),
    [
        (fetched(content_hash="h1"), History.begin(AT)),
        (fetched(known_item(), content_hash="h1"), History(AT - 600, AT)),
        (fetched(known_item(), content_hash="h2"), WATCHED.seen(AT, changed=True)),
        (fetched(known_item(), outcome=Outcome.NOT_MODIFIED), History(AT - 600, AT)),
        (
            fetched(known_item(), content_hash="h2", selector_digest="s2", raw_hash="r1"),
            History(AT - 600, AT),
        ),
        (fetched(known_item(history=None), content_hash="h2"), History.begin(AT)),
        (fetched(known_item(), outcome=Outcome.GONE), None),
        (fetched(known_item(), outcome=Outcome.ERROR), None),
        (fetched(known_item(), outcome=Outcome.BLOCKED), None),
    ],
    ids=["new", "same", "changed", "304", "edited", "no history", "gone", "error", "blocked"],
)
def test_observations_extend_the_history(page: Fetched, history: History | None) -> None:
    assert decide(page, RULES).history == history


def test_alias_has_no_history() -> None:
    visit = decide(fetched(known_item(), content_hash="h2"), RULES)
    visit.become_alias("https://shop.example/item/2")
    assert (visit.history, visit.every_hours) == (None, None)


@pytest.mark.parametrize(
    ("before", "now", "hours"),
    [
        (YESTERDAY, TODAY, -1),
        (None, TODAY, -1),
        (YESTERDAY, "Wed, 01 May 2024 13:00:00 +0200", -1),
        (YESTERDAY, "Wed, 01 May 2024 11:00:00 -0000", -1),
        (TODAY, YESTERDAY, -24),
        (TODAY, TODAY, None),
        (YESTERDAY, None, None),
        (YESTERDAY, format_datetime(NOON + timedelta(minutes=1)), None),
        (YESTERDAY, "yesterday", None),
        (YESTERDAY, "", None),
        (YESTERDAY, "Wed, 99 May 2024 11:00:00 GMT", None),
        (YESTERDAY, "Mon, 01 Jan 2024 00:00:00 +9959", None),
        (YESTERDAY, "Thu, 01 Jan 1970 00:00:00 GMT", None),
        (YESTERDAY, "Mon, 03 Feb 1930 00:00:00 GMT", None),
        (YESTERDAY, "\x00" * 50, None),
    ],
)
def test_last_modified_gives_time_of_change(
    before: str | None, now: str | None, hours: float | None
) -> None:
    expected = 0 if hours is None else AT + hours * 60
    assert change_detection.stated_minute(dated_fetch(before, now)) == expected


@pytest.mark.parametrize(
    ("before", "now", "outcome", "is_false"),
    [
        (YESTERDAY, TODAY, Outcome.UNCHANGED, True),
        (YESTERDAY, YESTERDAY, Outcome.UNCHANGED, False),
        (None, TODAY, Outcome.UNCHANGED, False),
        (YESTERDAY, None, Outcome.UNCHANGED, False),
        (YESTERDAY, TODAY, Outcome.CHANGED, False),
        (YESTERDAY, TODAY, Outcome.NOT_MODIFIED, False),
    ],
)
def test_new_date_on_unchanged_content_counts_as_false(
    before: str | None, now: str | None, outcome: Outcome, is_false: bool
) -> None:
    page = dated_fetch(before, now, outcome)
    if outcome is Outcome.NOT_MODIFIED:
        page.outcome = outcome
    assert decide(page, RULES).false_dates == 4 + is_false


# The next visit


def next_visit(plan: TargetPlan | None, zone: str = "UTC", **page: object) -> Visit:
    rules = Rules(INTERVALS, INTERVALS, 3, ZoneInfo(zone))
    return decide(fetched(known_item(plan=plan), **({"content_hash": "h1"} | page)), rules)


def hours(moment: datetime) -> float:
    return (moment - NOON) / HOUR


# NOON is on a Wednesday, in hour 60 of the week.
@pytest.mark.parametrize(
    ("plan", "zone", "due"),
    [
        (None, "UTC", 24),
        (TargetPlan("p", Schedule(1, (10, 61))), "UTC", 1),
        (TargetPlan("p", Schedule(1, (10, 60))), "UTC", 100),
        (TargetPlan("p", Schedule(1, (64,))), "Europe/Paris", 2),
        (TargetPlan("p", Schedule(4, (61,))), "UTC", 100),
        (TargetPlan("p", Schedule(every_hours=7)), "UTC", None),
        (TargetPlan("p", Schedule(1, (61,)), until=NOON), "UTC", 24),
        (TargetPlan("p", Schedule(1, (61,)), until=NOON + HOUR), "UTC", 1),
    ],
)
def test_plan_determines_next_visit(plan: TargetPlan | None, zone: str, due: float | None) -> None:
    visit = next_visit(plan, zone)
    assert visit.every_hours is None
    if due is None:
        assert 0 < hours(visit.next_visit) <= 7
    else:
        assert hours(visit.next_visit) == due


def test_planned_feed_interval_may_exceed_error_maximum() -> None:
    long = replace(INTERVALS, planned_hours=9 * 168)
    visit, _ = change_detection.next_visit(
        fetched(known_item(plan=TargetPlan("p", Schedule(8, (7 * 168 + 60,))))), Outcome.UNCHANGED,
        ZoneInfo("UTC"), long,
    )  # fmt: skip
    assert 100 < hours(visit) <= 8 * 168
    assert hours(long.after_refusals(NOON, 20)) == 100


@pytest.mark.parametrize("outcome", [Outcome.ERROR, Outcome.BLOCKED, Outcome.GONE])
def test_failure_ignores_the_plan(outcome: Outcome) -> None:
    plan = TargetPlan("p", Schedule(1, (61,)))
    page: dict[str, object] = {"outcome": outcome}
    assert next_visit(plan, **page).next_visit == next_visit(None, **page).next_visit


@pytest.mark.parametrize(
    ("page", "every", "expected"),
    [
        ({"content_hash": "h2"}, 10, 5),
        ({"content_hash": "h1"}, 10, 12),
        ({"outcome": Outcome.NOT_MODIFIED}, 10, 12),
        ({"content_hash": "h2"}, 5, 4),
        ({"content_hash": "h1"}, 29, 30),
    ],
)
def test_adaptive_interval_follows_changes(
    page: dict[str, object], every: float, expected: float
) -> None:
    plan = TargetPlan("p", Schedule(every_hours=every), None, True, 4, 30)
    visit = next_visit(plan, **page)
    assert visit.every_hours == expected
    assert hours(visit.next_visit) == expected


def test_adaptive_interval_is_at_least_a_minute() -> None:
    plan = TargetPlan("p", Schedule(every_hours=1e-9), None, True)
    assert next_visit(plan, content_hash="h2").next_visit == NOON + timedelta(minutes=1)


@pytest.mark.parametrize(
    ("due_hours", "until", "push", "missed"),
    [
        (-3.5, None, None, 3),
        (-0.9, None, None, 0),
        (2, None, None, 0),
        (-3.5, NOON, None, 0),
        (-3.5, None, "a delivery", 0),
    ],
    ids=["late", "in time", "early", "plan has ended", "pushed"],
)
def test_planned_visits_after_due_time_count_as_missed(
    due_hours: float, until: datetime | None, push: str | None, missed: int
) -> None:
    plan = TargetPlan("p", Schedule(every_hours=1), until)
    of = known_item(plan=plan, next_visit=NOON + due_hours * HOUR)
    assert decide(fetched(of, content_hash="h1", push=push), RULES).missed_visits == missed


# The stored form


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (None, None),
        ({}, None),
        ({"id": "p"}, None),
        ({"id": "p", "slots": [], "every_hours": 0.0}, None),
        ({"id": "p", "weeks": 2, "slots": [3, 170]}, TargetPlan("p", Schedule(2, (3, 170)))),
        (
            {"id": "p", "policy": "adaptive", "every_hours": 6.0, "min_hours": 1, "max_hours": 9},
            TargetPlan("p", Schedule(1, (), 6.0, 0.0), None, True, 1, 9),
        ),
        ({"id": "p", "policy": "adaptive", "slots": [1]}, TargetPlan("p", Schedule(1, (1,)))),
        (
            {"id": "p", "every_hours": 6.0, "phase_hours": 2.0, "until": NOON},
            TargetPlan("p", Schedule(1, (), 6.0, 2.0), NOON),
        ),
    ],
)
def test_stored_plan_is_decoded(
    document: dict[str, object] | None, expected: TargetPlan | None
) -> None:
    assert planned_of(document) == expected


def test_minutes_are_rounded_down() -> None:
    assert in_minutes(datetime(1970, 1, 1, 0, 2, 59, 999, UTC)) == 2
