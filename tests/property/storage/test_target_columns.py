"""Columns of targets hold the values that the driver decodes; other types are missing."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import bson
import numpy as np
import pytest
from bson import Binary, Decimal128, MinKey, ObjectId, Regex
from hypothesis import given
from hypothesis import strategies as st

from crawler.errors import StorageError
from crawler.storage.arrow import columns_of
from crawler.storage.columns import BETWEEN
from crawler.utils.time import EPOCH

MILLISECOND = timedelta(milliseconds=1)
WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=9)
NUMBERS = st.one_of(
    st.floats(allow_nan=False), st.integers(-(2**31), 2**31 - 1), st.integers(-(2**52), 2**52)
)
TIMES = st.integers(-(10**13), 10**13).map(lambda at: EPOCH + at * MILLISECOND)
SLOTS = st.lists(st.integers(0, 2**16 - 1), max_size=9)
IDS = st.binary(min_size=12, max_size=12).map(ObjectId)
OTHERS = st.sampled_from(
    [None, Regex("a.*", "im"), Decimal128("1.5"), MinKey(), Binary(b"0", 4), {"x": {"y": 1}}]
)


def documents(**values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return documents in which each field may be missing or have another type."""
    return st.fixed_dictionaries({}, optional={name: of | OTHERS for name, of in values.items()})


TARGETS = documents(
    spider=WORDS,
    categories=st.lists(WORDS, max_size=3),
    next_visit=TIMES,
    refreshed=NUMBERS,
    selector_digest=st.sampled_from(["one", "two"]),
    history=documents(since=TIMES, changes=st.binary(max_size=30)),
    field_history=documents(
        digest=st.sampled_from(["one", "two"]), names=st.lists(WORDS, min_size=1, max_size=3)
    ),
    plan=documents(id=IDS, weeks=NUMBERS, slots=SLOTS),
    ignored=WORDS,
)
ROWS = st.lists(TARGETS, min_size=1, max_size=6)


def at(document: Any, path: str, kind: type) -> Any:
    """Return the value at a path; None if it is missing or of another type."""
    for name in path.split("."):
        document = document.get(name) if type(document) is dict else None
    return document if type(document) is kind else None


def encoded(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(bson.encode({"_id": f"shop {i}"} | row) for i, row in enumerate(rows))


def millis(moment: datetime | None) -> float:
    return math.nan if moment is None else float((moment.replace(tzinfo=UTC) - EPOCH) / MILLISECOND)


@given(ROWS)
def test_columns_hold_the_values_of_the_driver(rows: list[dict[str, Any]]) -> None:
    data = encoded(rows)
    decoded, batch = bson.decode_all(data), columns_of(data)
    assert list(batch.texts("_id")) == [row["_id"] for row in decoded]
    for path in ("next_visit", "history.since"):
        times = [millis(at(row, path, datetime)) for row in decoded]
        np.testing.assert_array_equal(batch.numbers(path), times)
    for path in ("refreshed", "plan.weeks"):
        values = [at(row, path, float) or at(row, path, int) for row in decoded]
        numbers = [at(row, path, bson.Int64) if value is None else value
                   for row, value in zip(decoded, values, strict=True)]  # fmt: skip
        shown = [math.nan if number is None else float(number) for number in numbers]
        np.testing.assert_array_equal(np.nan_to_num(batch.numbers(path)), np.nan_to_num(shown))
    changes = batch.binaries("history.changes")
    blocks = [at(row, "history.changes", bytes) or b"" for row in decoded]
    assert changes.data == b"".join(blocks)
    assert np.diff(changes.first).tolist() == list(map(len, blocks))
    lengths, slots = batch.lists("plan.slots")
    listed = [at(row, "plan.slots", list) or [] for row in decoded]
    assert lengths.tolist() == list(map(len, listed))
    assert slots.tolist() == [slot for own in listed for slot in own]


@given(ROWS)
def test_names_are_numbered(rows: list[dict[str, Any]]) -> None:
    batch = columns_of(encoded(rows))

    def names_of(path: str) -> list[str | None]:
        table, places = batch.names(path)
        return [table[place] if place >= 0 else None for place in places]

    assert names_of("spider") == [at(row, "spider", str) for row in rows]
    ids = [at(row, "plan.id", ObjectId) for row in rows]
    assert names_of("plan.id") == [None if each is None else str(each) for each in ids]
    lists = [at(row, "categories", list) or [None] for row in rows]
    assert names_of("categories") == [names[0] for names in lists]


@given(ROWS)
def test_rows_with_equal_texts_are_selected(rows: list[dict[str, Any]]) -> None:
    own = columns_of(encoded(rows)).with_equal("field_history.digest", "selector_digest")
    digests = [(at(row, "field_history.digest", str), row.get("selector_digest")) for row in rows]
    equal = [i for i, (old, new) in enumerate(digests) if old is not None and old == new]
    assert own.rows.tolist() == equal
    table, places = own.joined_names("field_history.names")
    names = [at(rows[i], "field_history.names", list) for i in equal]
    # A list of another type is empty, as is a name that is missing.
    expected = ["" if each is None else BETWEEN.join(each) for each in names]
    assert [table[place] if place >= 0 else "" for place in places] == expected


@given(ROWS, st.data())
def test_truncated_batch_is_rejected(rows: list[dict[str, Any]], data: st.DataObject) -> None:
    whole = encoded(rows)
    last = len(bson.encode({"_id": f"shop {len(rows) - 1}"} | rows[-1]))
    cut = data.draw(st.integers(1, last - 1))
    with pytest.raises(StorageError, match="damaged"):
        columns_of(whole[:-cut])
