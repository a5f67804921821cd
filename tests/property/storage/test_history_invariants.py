"""Invariants of histories: equivalent arrays, and no observations in the future."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from crawler.storage.columns import NameColumn, TextColumn
from crawler.storage.histories import until_now
from crawler.storage.targets import history_document, history_of
from schedules.history import CHANGE, MINUTES, Histories, History, offsets

OBSERVATIONS = st.lists(st.tuples(st.integers(1, 500), st.booleans()), max_size=12)


@st.composite
def pasts(draw: st.DrawFn) -> History:
    history = History.begin(draw(st.integers(1, 10_000)))
    for pause, changed in draw(OBSERVATIONS):
        history = history.seen(history.until + pause, changed=changed)
    return history


def as_arrays(histories: list[History]) -> Histories:
    changes = np.frombuffer(b"".join(history.changes for history in histories), CHANGE)
    counts = np.array([len(history.changes) // CHANGE.itemsize for history in histories], np.int64)
    return Histories(
        np.array([history.since for history in histories], float) / MINUTES,
        np.array([history.until for history in histories], float) / MINUTES,
        offsets(counts),
        changes["after"] / MINUTES,
        changes["by"] / MINUTES,
    )


def up_to(history: History, now: int) -> History | None:
    """Return the history up to `now`, added observation by observation."""
    if history.since > now:
        return None
    cut = History(history.since, min(history.until, now))
    for change in np.frombuffer(history.changes, CHANGE):
        if change["by"] <= now:
            cut = History(cut.since, cut.until, cut.changes + change.tobytes())
        else:
            return History(cut.since, min(cut.until, int(change["after"])), cut.changes)
    return cut


@given(pasts())
def test_history_document_round_trips(history: History) -> None:
    assert history_of(history_document(history)) == history


@given(st.lists(pasts(), max_size=8), st.integers(0, 16_000))
def test_until_now_removes_future_observations(histories: list[History], now: int) -> None:
    arrays = as_arrays(histories)
    stated = np.arange(len(arrays.by), dtype=float)
    cut, kept, ahead = until_now(arrays, stated, now / MINUTES)
    assert ahead == sum(history.until > now for history in histories)
    expected = [up_to(history, now) for history in histories]
    assert np.isnan(cut.since).tolist() == [history is None for history in expected]
    rebuilt = as_arrays([history or History(0, 0) for history in expected])
    seen = ~np.isnan(cut.since)
    np.testing.assert_array_equal(cut.since[seen], rebuilt.since[seen])
    np.testing.assert_array_equal(cut.until[seen], rebuilt.until[seen])
    for name in ("first", "after", "by"):
        np.testing.assert_array_equal(getattr(cut, name), getattr(rebuilt, name))
    assert len(kept) == len(cut.by)
    assert np.all(cut.until[seen] <= now / MINUTES)


@given(st.lists(st.lists(st.text(max_size=5), max_size=4), max_size=4))
def test_text_column_round_trips(batches: list[list[str]]) -> None:
    texts = TextColumn()
    for batch in batches:
        texts.add(batch)
    taken = texts.finish()
    expected = [text for batch in batches for text in batch]
    assert list(taken) == expected
    assert [taken[i] for i in range(len(taken))] == expected


@given(st.lists(st.lists(st.none() | st.sampled_from("abc"), max_size=5), max_size=4))
def test_name_column_round_trips(batches: list[list[str | None]]) -> None:
    column = NameColumn()
    for batch in batches:
        column.add(batch)
    names, rows = column.finish()
    assert len(set(names)) == len(names)
    assert [names[i] if i >= 0 else None for i in rows] == [n for batch in batches for n in batch]


@given(st.lists(st.text(max_size=5), max_size=20), st.randoms(use_true_random=False))
def test_rows_are_ordered_by_text(texts: list[str], chance: random.Random) -> None:
    column = TextColumn()
    column.add(texts)
    rows = [row for row in range(len(texts)) if chance.random() < 0.7]
    ordered = column.finish().order(np.array(rows, np.int64)).tolist()
    assert sorted(ordered) == rows
    assert [texts[row] for row in ordered] == sorted(texts[row] for row in rows)
