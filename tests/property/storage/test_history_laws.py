"""Invariants of histories: arrays are equivalent, and nothing lies in the future."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from crawler.storage.histories import NameColumn, TextColumn, offsets, until_now
from crawler.storage.targets import history_document, history_of
from schedules.history import CHANGE, MINUTES, Histories, History

LOOKS = st.lists(st.tuples(st.integers(1, 500), st.booleans()), max_size=12)


@st.composite
def pasts(draw: st.DrawFn) -> History:
    history = History.begin(draw(st.integers(1, 10_000)))
    for pause, changed in draw(LOOKS):
        history = history.seen(history.until + pause, changed=changed)
    return history


def as_arrays(many: list[History]) -> Histories:
    changes = np.frombuffer(b"".join(one.changes for one in many), CHANGE)
    counts = np.array([len(one.changes) // CHANGE.itemsize for one in many], np.int64)
    return Histories(
        np.array([one.since for one in many], float) / MINUTES,
        np.array([one.until for one in many], float) / MINUTES,
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
def test_a_history_is_stored_as_it_is(history: History) -> None:
    assert history_of(history_document(history)) == history


@given(st.lists(pasts(), max_size=8), st.integers(0, 16_000))
def test_what_is_cut_is_what_had_not_been_seen_yet(many: list[History], now: int) -> None:
    arrays = as_arrays(many)
    said = np.arange(len(arrays.by), dtype=float)
    cut, kept, ahead = until_now(arrays, said, now / MINUTES)
    assert ahead == sum(one.until > now for one in many)
    expected = [up_to(one, now) for one in many]
    assert np.isnan(cut.since).tolist() == [one is None for one in expected]
    there = as_arrays([one or History(0, 0) for one in expected])
    seen = ~np.isnan(cut.since)
    np.testing.assert_array_equal(cut.since[seen], there.since[seen])
    np.testing.assert_array_equal(cut.until[seen], there.until[seen])
    for name in ("first", "after", "by"):
        np.testing.assert_array_equal(getattr(cut, name), getattr(there, name))
    assert len(kept) == len(cut.by)
    assert np.all(cut.until[seen] <= now / MINUTES)


@given(st.lists(st.lists(st.text(max_size=5), max_size=4), max_size=4))
def test_texts_come_back_as_they_went_in(batches: list[list[str]]) -> None:
    texts = TextColumn()
    for batch in batches:
        texts.add(batch)
    taken = texts.finish()
    expected = [text for batch in batches for text in batch]
    assert list(taken) == expected
    assert [taken[i] for i in range(len(taken))] == expected


@given(st.lists(st.lists(st.none() | st.sampled_from("abc"), max_size=5), max_size=4))
def test_names_come_back_as_they_went_in(batches: list[list[str | None]]) -> None:
    column = NameColumn()
    for batch in batches:
        column.add(batch)
    names, rows = column.finish()
    assert len(set(names)) == len(names)
    assert [names[i] if i >= 0 else None for i in rows] == [n for batch in batches for n in batch]
