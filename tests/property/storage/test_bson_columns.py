"""Invariants of BSON columns, compared with the driver's decoder and encoder."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import bson
import numpy as np
import pytest
from bson import Binary, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from hypothesis import given
from hypothesis import strategies as st

from crawler.errors import StorageError
from crawler.storage import bson_columns
from crawler.storage.bson_columns import Batch
from crawler.storage.columns import Arrays, Choices, Column, TextColumn
from crawler.utils.time import EPOCH

PATHS = ("a", "b", "b.a", "b.c", "b.c.a", "d")
MILLISECOND = timedelta(milliseconds=1)
WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=9)
NUMBERS = st.one_of(
    st.floats(allow_nan=False), st.integers(-(2**31), 2**31 - 1), st.integers(-(2**52), 2**52)
)
TIMES = st.integers(-(10**13), 10**13).map(lambda at: EPOCH + at * MILLISECOND)
OTHERS = st.sampled_from(
    [
        None, True, ObjectId(), Regex("a.*", "im"), Decimal128("1.5"), MinKey(), MaxKey(),
        Timestamp(7, 1), Binary(b"0", 4), bson.Code("f()"), bson.Code("f()", {"x": 1}),
        bson.DBRef("a", 1),
    ]
)  # fmt: skip


def documents(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from("abcd") | WORDS, values, max_size=5)


VALUES = st.recursive(
    st.one_of(NUMBERS, TIMES, WORDS, st.binary(max_size=9), OTHERS),
    lambda inner: st.lists(inner, max_size=4) | documents(inner),
    max_leaves=8,
)


def at(document: Any, path: str) -> Any:
    """Return the value at a path, or None if it is missing."""
    for name in path.split("."):
        document = document.get(name) if type(document) is dict else None
    return document


def number(value: Any) -> float:
    if isinstance(value, datetime):
        return float((value.replace(tzinfo=UTC) - EPOCH) // MILLISECOND)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else math.nan


def text(value: Any) -> str:
    is_text = type(value) in {str, ObjectId}
    return str(value) if is_text else ""


@given(st.lists(documents(VALUES), max_size=6))
def test_decoded_columns_match_the_driver(rows: list[dict[str, Any]]) -> None:
    data = b"".join(map(bson.encode, rows))
    decoded = bson.decode_all(data)
    batch = Batch(data, PATHS)
    assert len(batch) == len(rows)
    for path in PATHS:
        values = [at(row, path) for row in decoded]
        np.testing.assert_array_equal(batch.numbers(path), [number(value) for value in values])
        assert list(batch.texts(path)) == [text(value) for value in values]
        firsts = [value[0] if type(value) is list and value else None for value in values]
        assert list(batch.first_texts(path)) == [text(value) for value in firsts]
        blocks, expected = batch.binaries(path), [
            bytes(value) if isinstance(value, bytes) else b"" for value in values
        ]  # fmt: skip
        assert blocks.data == b"".join(expected)
        assert np.diff(blocks.first).tolist() == [len(value) for value in expected]


@given(st.lists(st.lists(NUMBERS, max_size=14), max_size=6))
def test_arrays_of_numbers_are_read(rows: list[list[float]]) -> None:
    counts, values = Batch(b"".join(bson.encode({"a": row}) for row in rows), PATHS).number_arrays(
        "a"
    )
    assert counts.tolist() == [len(row) for row in rows]
    assert values.tolist() == [float(value) for row in rows for value in row]


@given(st.lists(documents(VALUES), min_size=1, max_size=3), st.data())
def test_truncated_batch_is_rejected(rows: list[dict[str, Any]], data: st.DataObject) -> None:
    whole = [bson.encode(row) for row in rows]
    cut = data.draw(st.integers(1, len(whole[-1]) - 1))
    with pytest.raises(StorageError, match="damaged"):
        Batch(b"".join(whole)[:-cut], PATHS)


@given(documents(VALUES), st.binary(max_size=60))
def test_damaged_values_are_rejected_or_stay_in_bounds(row: dict[str, Any], end: bytes) -> None:
    """Replace the end of a document; no value may start outside of the document."""
    whole = bytearray(bson.encode(row))
    whole[4 : 4 + len(end)] = end[: len(whole) - 4]
    try:
        batch = Batch(bytes(whole), PATHS)
    except StorageError:
        return
    for path in PATHS:
        batch.numbers(path)
        assert len(batch.texts(path).data) <= len(whole) * 2
        assert len(batch.first_texts(path).data) <= len(whole) * 2
        assert len(batch.binaries(path).data) <= len(whole)
        assert len(batch.number_arrays(path)[1]) <= len(whole)


ROWS = st.lists(
    st.tuples(
        WORDS,
        st.floats(),
        st.integers(-(2**31), 2**31 - 1),
        st.sampled_from(["x", "ü", ""]),
        st.lists(st.integers(0, 2**16 - 1), max_size=12),
        st.lists(st.sampled_from(["Mon", "daily", ""]), max_size=3),
    ),
    max_size=5,
)  # fmt: skip


@given(ROWS)
def test_encoded_columns_match_the_driver(rows: list[tuple[Any, ...]]) -> None:
    n, texts = len(rows), TextColumn()
    texts.add(row[0] for row in rows)
    slots, words = [row[4] for row in rows], [row[5] for row in rows]
    table = ["daily", "Mon", ""]
    chosen = [table.index(word) for own in words for word in own]
    columns: dict[str, Column] = {
        "policy": "optimal",
        "number": np.array([row[1] for row in rows], np.float64),
        "whole": np.array([row[2] for row in rows], np.int64),
        "choice": Choices(
            ["x", "ü", ""], np.array(["xü".find(row[3]) if row[3] else 2 for row in rows], np.int64)
        ),
        "slots": Arrays(
            firsts(slots), np.array([slot for own in slots for slot in own], np.uint16)
        ),
        "words": Arrays(firsts(words), Choices(table, np.array(chosen, np.int64))),
    }
    fields = [part for item in columns.items() for part in bson_columns.element(*item)]
    inner = bson_columns.subdocument("inner", fields, n)
    elements = [*bson_columns.strings("_id", texts.finish()), *inner]
    result = bson_columns.joined(bson_columns.document(elements, n), n)
    expected = [
        {
            "_id": name,
            "inner": {
                "policy": "optimal", "number": value if math.isfinite(value) else None,
                "whole": whole, "choice": choice, "slots": slots, "words": words,
            },
        }
        for name, value, whole, choice, slots, words in rows
    ]  # fmt: skip
    assert bson.decode_all(result.data) == expected
    assert result.data == b"".join(map(bson.encode, expected))


def firsts(rows: list[list[Any]]) -> Any:
    return np.cumsum([0, *map(len, rows)])


def test_integers_of_64_bits_are_read() -> None:
    batch = Batch(bson.encode({"a": Int64(2**52), "b": {"c": Int64(-1)}}), PATHS)
    assert (batch.numbers("a").tolist(), batch.numbers("b.c").tolist()) == ([2.0**52], [-1.0])
