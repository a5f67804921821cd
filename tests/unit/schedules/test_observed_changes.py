"""Histories built observation by observation, and from true changes and visits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedules.evaluation.world import never, seen
from schedules.history import CHANGE, MAX_CHANGES, Histories, History, Times


def changes_of(history: History) -> list[tuple[int, int, int]]:
    return [tuple(record) for record in np.frombuffer(history.changes, CHANGE).tolist()]


def test_change_record_starts_at_previous_observation() -> None:
    past = History.begin(100).seen(160, changed=False).seen(220, changed=True, stated_minute=190)
    assert past == History(100, 220, past.changes)
    assert changes_of(past) == [(160, 220, 190)]


def test_changes_within_a_minute_are_merged() -> None:
    first = History.begin(100).seen(100, changed=True)
    assert (first.since, first.until, changes_of(first)) == (99, 100, [(99, 100, 0)])
    assert first.seen(100, changed=True) == first
    later = History.begin(100).seen(160, changed=False)
    assert later.seen(160, changed=False) == later
    later = later.seen(160, changed=True, stated_minute=160)
    assert (later.since, later.until, changes_of(later)) == (100, 160, [(159, 160, 160)])
    assert changes_of(later.seen(161, changed=True)) == [(159, 160, 160), (160, 161, 0)]


@pytest.mark.parametrize("at", [0, 99, 100])
def test_observation_that_is_not_later_is_ignored(at: int) -> None:
    past = History.begin(40).seen(100, changed=True)
    assert past.seen(at, changed=True) == past
    assert past.seen(at, changed=False) == past


def test_oldest_changes_are_dropped_with_their_span() -> None:
    past = History.begin(0)
    for at in range(1, MAX_CHANGES + 11):
        past = past.seen(at, changed=True)
    records = changes_of(past)
    assert len(records) == MAX_CHANGES
    assert past.since == records[0][0] == 10
    assert past.until == records[-1][1] == MAX_CHANGES + 10
    # The next document of a feed has several new posts.
    until = MAX_CHANGES + 20
    past = past.extended(until, [(past.until, at, 0) for at in range(past.until + 1, until + 1)])
    assert past.since == changes_of(past)[0][0] == 20


def test_selection_of_histories() -> None:
    many = Histories(
        np.array([1.0, 2.0, 3.0]), np.array([9.0, 9.0, 9.0]), np.array([0, 2, 2, 3]),
        np.array([1.0, 4.0, 5.0]), np.array([2.0, 5.0, 6.0]),
    )  # fmt: skip
    some = many.of(np.array([2, 0, 1]))
    assert some.since.tolist() == [3, 1, 2]
    assert some.first.tolist() == [0, 1, 3, 3]
    assert some.by.tolist() == [6, 2, 5]
    assert len(many.of(np.array([], int))) == 0


def times(*rows: list[float]) -> Times:
    first = np.cumsum([0, *(len(row) for row in rows)])
    return Times(first, np.array([at for row in rows for at in row], float))


def test_visits_record_spans_of_changes() -> None:
    past = seen(never(2), times([10, 20, 30], []), times([5, 12, 13, 30], [15]))
    assert past.since[0] == 10
    assert past.until[0] == 30
    assert np.isnan(past.since[1])
    assert list(zip(past.after, past.by, strict=True)) == [(10, 20), (20, 30)]


def test_history_can_be_extended_in_parts() -> None:
    happened = times([12, 25], [3])
    whole = seen(never(2), times([10, 20, 30], [1, 5]), happened)
    first = seen(never(2), times([10], []), happened)
    parts = seen(seen(first, times([20], [1]), happened), times([30], [5]), happened)
    for name in ("since", "until", "first", "after", "by"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))


MINUTES = st.lists(st.integers(0, 300), max_size=12, unique=True).map(sorted)


@given(st.lists(st.tuples(MINUTES, MINUTES), min_size=1, max_size=4))
def test_visits_match_single_observations(rows: list[tuple[list[int], list[int]]]) -> None:
    visits, changes = (times(*([at / 60 for at in row[k]] for row in rows)) for k in (0, 1))
    past = seen(never(len(rows)), visits, changes)
    for i, (visited, happened) in enumerate(rows):
        history: History | None = None
        for at in visited:
            if history is None:
                history = History.begin(at)
            else:
                history = history.seen(
                    at, changed=any(history.until < change <= at for change in happened)
                )
        own = slice(past.first[i], past.first[i + 1])
        if history is None:
            assert np.isnan(past.since[i])
            assert past.first[i] == past.first[i + 1]
            continue
        assert (round(past.since[i] * 60), round(past.until[i] * 60)) == (
            history.since,
            history.until,
        )
        spans = np.rint(np.column_stack([past.after[own], past.by[own]]) * 60).astype(int)
        assert [tuple(span) for span in spans.tolist()] == [c[:2] for c in changes_of(history)]
