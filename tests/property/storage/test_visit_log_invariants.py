"""Invariants of histories from a log of visits, compared with histories built by visits."""

from __future__ import annotations

from math import isnan

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from crawler.planning.visit_log import CHANGED, NEW, VISIT, histories_of
from schedules.history import CHANGE, MAX_CHANGES, History

TARGETS = 3
VISITS = st.lists(
    st.tuples(
        st.integers(0, TARGETS - 1),
        st.integers(0, 4),
        st.sampled_from([0, 0, CHANGED, CHANGED, NEW]),
    ),
    max_size=30,
)


def left_by(visits: list[tuple[int, int]]) -> History | None:
    """Return the history that a target has after visits of (minute, kind)."""
    history = None
    for at, kind in visits:
        if history is None or kind == NEW:
            history = History.begin(at)
        else:
            history = history.seen(at, changed=kind == CHANGED)
    return history


def check(rows: list[tuple[int, int, int]]) -> None:
    """Compare all histories of a log of (target, minute, kind)."""
    log = np.array([(0, minute, kind) for _, minute, kind in rows], VISIT)
    result = histories_of(TARGETS, np.array([target for target, _, _ in rows], np.int64), log)
    for target in range(TARGETS):
        history = left_by([(minute, kind) for own, minute, kind in rows if own == target])
        begin, end = result.first[target], result.first[target + 1]
        if history is None:
            assert isnan(result.since[target])
            assert isnan(result.until[target])
            assert begin == end
            continue
        changes = np.frombuffer(history.changes, CHANGE)
        assert result.since[target] == history.since / 60
        assert result.until[target] == history.until / 60
        assert np.allclose(result.after[begin:end] * 60, changes["after"])
        assert np.allclose(result.by[begin:end] * 60, changes["by"])


@given(VISITS)
def test_histories_from_log_match_visits(
    visits: list[tuple[int, int, int]],
) -> None:
    rows, at = [], 1_000
    for target, minutes, kind in visits:
        at += minutes
        rows.append((target, at, kind))
    check(rows)


def test_log_drops_old_changes_like_visits() -> None:
    check([(1, 1_000 + 60 * i, CHANGED) for i in range(MAX_CHANGES + 20)])
