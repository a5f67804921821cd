"""Read batches of documents as columns, with PyMongoArrow: values become no Python objects.

Slow to import: only a replan needs this module.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from bson import DEFAULT_CODEC_OPTIONS, InvalidBSON
from pymongoarrow.context import PyMongoArrowContext
from pymongoarrow.schema import Schema
from pymongoarrow.types import BinaryType, ObjectIdType

from crawler.errors import StorageError
from crawler.storage.columns import BETWEEN, Names, Texts
from schedules.history import Floats, Ints

# The usual pool keeps freed memory: 15 MB more at the peak of a replan of 200,000 targets.
pa.set_memory_pool(pa.system_memory_pool())
TIME, BINARY, TEXTS = pa.timestamp("ms"), BinaryType(0), pa.list_(pa.string())
TARGETS = Schema(
    {
        "_id": pa.string(),
        "spider": pa.string(),
        "kind": pa.string(),
        "categories": TEXTS,
        "next_visit": TIME,
        "visited_at": TIME,
        "refreshed": pa.float64(),
        "feed_size": pa.float64(),
        "stated_interval_hours": pa.float64(),
        "limits": pa.struct({"min_hours": pa.float64(), "max_hours": pa.float64()}),
        "history": pa.struct(
            {"since": TIME, "until": TIME, "changes": BINARY, "false_dates": pa.float64()}
        ),
        "field_history": pa.struct(
            {"digest": pa.string(), "since": TIME, "names": TEXTS, "changes": BINARY}
        ),
        "selector_digest": pa.string(),
        "plan": pa.struct(
            {
                "id": ObjectIdType(),
                "weeks": pa.float64(),
                "slots": pa.list_(pa.int32()),
                "every_hours": pa.float64(),
                "phase_hours": pa.float64(),
            }
        ),
        "lastmod": TIME,
    }
)
# Which list page shows which item (`_id`s of targets), whether with a digest of its entry, and when
# it has shown another content.
EDGES = Schema(
    {
        "list": pa.string(), "item": pa.string(), "has_digest": pa.bool_(),
        "since": TIME, "showed": pa.list_(TIME),
    }
)  # fmt: skip
# Visits of list pages.
LOOKS = Schema({"target": pa.string(), "at": TIME})


def columns_of(data: bytes, schema: Schema = TARGETS) -> Columns:
    """Return the columns of a batch of documents, not empty, that the server sent.

    Raises StorageError if it is damaged.
    """
    # A value of another type than that of the schema is missing, as it is for the crawl.
    context = PyMongoArrowContext(schema, codec_options=DEFAULT_CODEC_OPTIONS, allow_invalid=True)
    try:
        context.process_bson_stream(data)
    except InvalidBSON:
        raise StorageError("the server sent a damaged document") from None
    (batch,) = context.finish().to_batches()
    return Columns(batch)


class Columns:
    """Hold n documents. A path such as `plan.slots` names a column.

    rows: (n,) their places in the batch
    """

    def __init__(self, batch: pa.RecordBatch, rows: Ints | None = None) -> None:
        self._batch = batch
        self.rows = np.arange(len(batch)) if rows is None else rows

    def __len__(self) -> int:
        return len(self._batch)

    def with_equal(self, path: str, other: str) -> Columns:
        """Return the documents in which two columns have the same text."""
        equal = pc.equal(self._column(path), self._column(other)).fill_null(False)
        return Columns(self._batch.filter(equal), np.flatnonzero(equal))

    def numbers(self, path: str) -> Floats:
        """Return (n,) numbers; times in milliseconds since 1970; NaN where there is none."""
        column = self._column(path)
        if column.type == TIME:
            column = column.cast(pa.int64())
        numbers: Floats = column.to_numpy(zero_copy_only=False).astype(np.float64)
        return numbers

    def texts(self, path: str) -> Texts:
        """Return (n,) texts; empty where there is none."""
        return _texts_of(self._column(path))

    def binaries(self, path: str) -> Texts:
        """Return (n,) binary values; empty where there is none."""
        return _texts_of(self._column(path).storage)

    def lists(self, path: str) -> tuple[Ints, Ints]:
        """Return the (n,) lengths of lists of numbers, and their elements; times as `numbers`."""
        column = self._column(path)
        lengths = pc.list_value_length(column).fill_null(0).to_numpy()
        elements = column.flatten()
        elements = elements.cast(pa.int64()) if elements.type == TIME else elements
        return lengths.astype(np.int64), elements.to_numpy().astype(np.int64)

    def names(self, path: str) -> Names:
        """Return (n,) names: texts, the first of each list of texts, or ids in hexadecimal."""
        column = self._column(path)
        if pa.types.is_list(column.type):
            column = pc.list_element(pc.list_slice(column, 0, 1, return_fixed_size_list=True), 0)
        return _names_of(column)

    def joined_names(self, path: str) -> Names:
        """Return (n,) names: the texts of each list, joined by BETWEEN."""
        return _names_of(pc.binary_join(self._column(path), BETWEEN))

    def _column(self, path: str) -> pa.Array:
        name, *inner = path.split(".")
        column = self._batch[name]
        for part in inner:
            column = pc.struct_field(column, part)
        return column


def _texts_of(column: pa.Array) -> Texts:
    _, offsets, data = column.buffers()
    first = np.frombuffer(offsets, np.int32)[column.offset :][: len(column) + 1].astype(np.int64)
    block = b"" if data is None else data[first[0] : first[-1]].to_pybytes()
    return Texts(block, first - first[0])


def _names_of(column: pa.Array) -> Names:
    encoded = (column.storage if column.type == ObjectIdType() else column).dictionary_encode()
    table = encoded.dictionary.to_pylist()
    names = [value.hex() if isinstance(value, bytes) else value for value in table]
    return Names(names, encoded.indices.fill_null(-1).to_numpy().astype(np.int64))
