"""Field histories: bounded, complete since `since`, and equal to lists of changes per field."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from schedules.history import (
    FIELD_CHANGE,
    MAX_FIELD_CHANGES,
    MAX_FIELDS,
    MINUTES,
    FieldHistories,
    FieldHistory,
    Histories,
    field_pasts,
    offsets,
)

NAMES = [f"field{number}" for number in range(MAX_FIELDS + 8)]
CHANGES = st.lists(
    st.tuples(st.integers(1, 50), st.sets(st.sampled_from(NAMES), min_size=1, max_size=6)),
    max_size=2 * MAX_FIELD_CHANGES,
)
FEW = st.lists(
    st.tuples(st.integers(1, 50), st.sets(st.sampled_from(NAMES[:4]), min_size=1)), max_size=12
)


def times_of(changes: list[tuple[int, set[str]]]) -> list[tuple[int, set[str]]]:
    """Return changes with times instead of gaps."""
    times = np.cumsum([gap for gap, _ in changes]).tolist()
    return [(1000 + at, names) for at, (_, names) in zip(times, changes, strict=True)]


@given(CHANGES)
def test_the_newest_changes_are_stored(changes: list[tuple[int, set[str]]]) -> None:
    history = FieldHistory("d", 1000)
    for at, names in times_of(changes):
        history = history.changed(at, sorted(names))
    records = np.frombuffer(history.changes, FIELD_CHANGE)
    expected = [(at, names) for at, names in times_of(changes) if at > history.since]
    assert len(records) == min(len(changes), MAX_FIELD_CHANGES) == len(expected)
    assert len(history.names) <= MAX_FIELDS
    for (by, mask), (at, names) in zip(records.tolist(), expected, strict=True):
        assert by == at
        field_names = {name for bit, name in enumerate(history.names) if mask >> bit & 1}
        assert field_names == names & set(history.names)


@given(st.lists(st.tuples(FEW, st.booleans()), min_size=1, max_size=6), st.integers(1, 4))
def test_each_field_has_its_own_changes(
    pages: list[tuple[list[tuple[int, set[str]]], bool]], least: int
) -> None:
    page_changes = [times_of(changes) for changes, _ in pages]
    first = offsets(np.array([len(changes) for changes in page_changes], np.int64))
    by = np.array([at for changes in page_changes for at, _ in changes], float) / MINUTES
    n = len(pages)
    all_pages = Histories(np.full(n, 10.0), np.full(n, 99.0), first, by - 0.01, by)
    rows, numbers, stored = [], [], []
    for i, (changes, (_, has_fields)) in enumerate(zip(page_changes, pages, strict=True)):
        if has_fields:
            history = FieldHistory("d", 0)
            for at, names in changes:
                history = history.changed(at, sorted(names))
            rows.append(i)
            numbers.append(history.names)
            stored.append(np.frombuffer(history.changes, FIELD_CHANGE))
    every = np.concatenate([np.empty(0, FIELD_CHANGE), *stored])
    fields = FieldHistories(
        np.array(rows, np.int64), tuple(numbers), np.arange(len(rows)), np.zeros(len(rows)),
        offsets(np.array([len(records) for records in stored], np.int64)),
        every["by"], every["fields"],
    )  # fmt: skip
    own = all_pages.of(fields.row)
    past = field_pasts(fields, own, own, least)
    expected: defaultdict[tuple[int, str], list[float]] = defaultdict(list)
    for i in rows:
        for at, names in page_changes[i]:
            for name in names:
                expected[i, name].append(at / MINUTES)
    result = {}
    for k in range(len(past.row)):
        name = fields.names[past.name[k]][past.bit[k]]
        span = slice(past.histories.first[k], past.histories.first[k + 1])
        result[int(past.row[k]), name] = past.histories.by[span].tolist()
    assert result == {key: times for key, times in expected.items() if len(times) >= least}
    assert (past.histories.since == 10.0).all()


def test_field_changes_missing_from_page_history_are_skipped() -> None:
    page = Histories(
        np.array([0.0]), np.array([99.0]), offsets(np.array([1])), np.array([1.0]), np.array([2.0])
    )
    fields = FieldHistories(
        np.array([0]), (("price",),), np.array([0]), np.array([0.0]), offsets(np.array([2])),
        np.array([120, 240], np.uint32), np.array([1, 1], np.uint32),
    )  # fmt: skip
    past = field_pasts(fields, page, page, 1)
    assert past.histories.by.tolist() == [2.0]
