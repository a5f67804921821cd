"""BSON documents as columns: read values of many documents, write many documents from values.

A replan reads and writes a million documents. Python objects for all their values would take most
of its time, so compiled loops find the values and copy the bytes.

This module loads the compiler of the kernels: import it where it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import bson
import numpy as np
from numpy.typing import NDArray

from crawler.errors import StorageError
from crawler.storage.columns import Arrays, Choices, Column, Texts
from schedules.compiled import compiled
from schedules.history import Flags, Floats, Ints, offsets

Bytes = NDArray[np.uint8]
# Types of BSON elements (https://bsonspec.org/spec.html).
DOUBLE, STRING, DOCUMENT, ARRAY, BINARY, UNDEFINED, OBJECT_ID = 1, 2, 3, 4, 5, 6, 7
BOOLEAN, DATE, NULL, REGEX, POINTER, CODE, SYMBOL, SCOPED_CODE = 8, 9, 10, 11, 12, 13, 14, 15
INT32, TIMESTAMP, INT64, DECIMAL = 16, 17, 18, 19
MIN_KEY, MAX_KEY = 255, 127
# The type of a missing value. It also ends a document.
MISSING = 0
# Bytes of a value of each type; LENGTH_FIRST: the value begins with its length.
LENGTH_FIRST, UNKNOWN = -1, -2
SIZES = np.full(256, UNKNOWN, np.int64)
SIZES[[UNDEFINED, NULL, MIN_KEY, MAX_KEY]] = 0
SIZES[[DOUBLE, DATE, TIMESTAMP, INT64]] = 8
SIZES[[OBJECT_ID, BOOLEAN, INT32, DECIMAL]] = 12, 1, 4, 16
# Bytes that the length of a value does not count: the length itself, the subtype of a binary, and
# the ObjectId of a pointer.
EXTRA_BYTES = np.zeros(256, np.int64)
EXTRA_BYTES[[STRING, CODE, SYMBOL, BINARY, POINTER]] = 4, 4, 4, 5, 16
SIZES[[STRING, DOCUMENT, ARRAY, BINARY, POINTER, CODE, SYMBOL, SCOPED_CODE]] = LENGTH_FIRST
# Bytes of an empty document, and of an ObjectId as text.
SMALLEST, HEX_BYTES = 5, 24


class Fields(NamedTuple):
    """Hold the fields to read. Build it with `fields_of`.

    names:  all names one after the other; field f has the name names[first[f]:first[f + 1]]
    parent: (f,) the field whose document holds each field; -1: none
    inner:  (f,) whether a field is the parent of others
    """

    names: Bytes
    first: Ints
    parent: Ints
    inner: Flags


def fields_of(paths: Sequence[str]) -> Fields:
    """Return the fields of these paths, such as `plan` and `plan.slots`.

    The path of an embedded document must be given in addition to the paths of its fields.
    """
    split = [path.rpartition(".") for path in paths]
    names = [name.encode() for _, _, name in split]
    parent = np.array([paths.index(path) if path else -1 for path, _, _ in split], np.int64)
    first = offsets(np.array([len(name) for name in names], np.int64))
    inner = np.isin(np.arange(len(paths)), parent)
    return Fields(_bytes(b"".join(names)), first, parent, inner)


class Batch:
    """The documents of a batch as the server sent them. Raises StorageError if they are damaged."""

    def __init__(self, data: bytes, paths: Sequence[str]) -> None:
        self._data, self._paths = _bytes(data), paths
        begins, sizes = _begins(self._data), (SIZES, EXTRA_BYTES)
        self._types, self._places, complete = _located(self._data, begins, fields_of(paths), sizes)
        if not complete or begins[-1] != len(data):
            raise StorageError("the server sent a damaged document")

    def __len__(self) -> int:
        return len(self._types[0])

    def numbers(self, path: str) -> Floats:
        """Return (n,) numbers; times in milliseconds since 1970; NaN where there is none."""
        return _numbers(self._data, *self._values_of(path))

    def texts(self, path: str) -> Texts:
        """Return (n,) texts; hexadecimal for an ObjectId, empty for other types."""
        return _as_texts(_texts(self._data, *self._values_of(path)))

    def first_texts(self, path: str) -> Texts:
        """Return the first element of each array; empty if it is not a text."""
        elements = _first_elements(self._data, *self._values_of(path), (SIZES, EXTRA_BYTES))
        return _as_texts(_texts(self._data, *elements))

    def rows_of_same_texts(self, path: str, other: str) -> Ints:
        """Return the rows in which two fields have the same non-empty text."""
        texts = (_texts(self._data, *self._values_of(each)) for each in (path, other))
        return np.flatnonzero(_same(*texts))

    def binaries(self, path: str) -> Texts:
        """Return (n,) binary values; empty for other types."""
        return _as_texts(_blocks(self._data, *self._values_of(path), BINARY, 5))

    def arrays(self, path: str) -> Texts:
        """Return (n,) arrays as BSON; empty for other types."""
        return _as_texts(_blocks(self._data, *self._values_of(path), ARRAY, 0))

    def number_arrays(self, path: str) -> tuple[Ints, Floats]:
        """Return the (n,) lengths of arrays of numbers, and their elements."""
        return _number_arrays(self._data, *self._values_of(path))

    def _values_of(self, path: str) -> tuple[Bytes, Ints]:
        field = self._paths.index(path)
        return self._types[field], self._places[field]


class Pieces(NamedTuple):
    """Hold one piece of data for each of n documents: data[begin[i]:end[i]]."""

    data: bytes
    begin: Ints
    end: Ints

    @property
    def lengths(self) -> Ints:
        """Return the (n,) lengths in bytes."""
        return self.end - self.begin


Part = bytes | Texts | Pieces


def joined(parts: Sequence[Part], n: int) -> Texts:
    """Join parts row by row. A part is constant (bytes), or has one piece for each row."""
    pieces = []
    for is_constant, group in groupby(parts, lambda part: isinstance(part, bytes)):
        if is_constant:
            data = b"".join(part for part in group if isinstance(part, bytes))
            pieces.append(Pieces(data, np.zeros(n, np.int64), np.full(n, len(data))))
        else:
            pieces += [_pieces(part) for part in group if not isinstance(part, bytes)]
    base = offsets(np.array([len(piece.data) for piece in pieces], np.int64))
    begin = np.array([piece.begin for piece in pieces]) + base[:-1, None]
    end = np.array([piece.end for piece in pieces]) + base[:-1, None]
    first = offsets((end - begin).sum(0))
    source = _bytes(b"".join(piece.data for piece in pieces))
    return Texts(_joined(source, begin.T.copy(), end.T.copy(), first).tobytes(), first)


def _pieces(part: Texts | Pieces) -> Pieces:
    return part if isinstance(part, Pieces) else Pieces(part.data, part.first[:-1], part.first[1:])


def document(elements: Sequence[Part], n: int) -> list[Part]:
    """Return the parts of n documents with these elements."""
    length = np.full(n, SMALLEST)
    for part in elements:
        length += len(part) if isinstance(part, bytes) else _pieces(part).lengths
    return [_fixed(length, "<i4"), *elements, b"\0"]


def subdocument(name: str, elements: Sequence[Part], n: int) -> list[Part]:
    """Return the parts of an element that is a document with these elements."""
    return [_head(DOCUMENT, name), *document(elements, n)]


def constant(name: str, value: object) -> bytes:
    """Return an element that has the same value in all documents."""
    return bson.encode({name: value})[4:-1]


def dates(name: str, milliseconds: Ints) -> list[Part]:
    """Return the parts of an element that is a time. milliseconds: since 1970 (UTC)."""
    return [_head(DATE, name), _fixed(milliseconds, "<i8")]


def strings(name: str, texts: Texts) -> list[Part]:
    """Return the parts of an element that is a text."""
    return [_head(STRING, name), *_string(_pieces(texts))]


def element(name: str, column: Column) -> list[Part]:
    """Return the parts of an element; null for NaN and inf, integers with 32 bits."""
    if isinstance(column, str):
        return [constant(name, column)]
    if isinstance(column, Choices):
        return [_head(STRING, name), *_string(_chosen(column))]
    if isinstance(column, Arrays):
        return _arrays(name, column)
    if column.dtype.kind in "iu":
        return [_head(INT32, name), _fixed(column, "<i4")]
    is_finite = np.isfinite(column)
    if is_finite.all():
        return [_head(DOUBLE, name), _fixed(column, "<f8")]
    first = np.arange(len(column)) * 8
    numbers = Pieces(column.astype("<f8").tobytes(), first, first + 8 * is_finite)
    return [_fixed(np.where(is_finite, DOUBLE, NULL), "u1"), _head(DOUBLE, name)[1:], numbers]


def _arrays(name: str, column: Arrays) -> list[Part]:
    first, values = column
    count = int(first[-1])
    place = np.arange(count) - np.repeat(first[:-1], np.diff(first))
    # An array is a document whose names are 0, 1, 2, ...
    table = [f"{k}\0" for k in range(int(np.diff(first).max(initial=0)))]
    names = _chosen(Choices(table, place))
    if isinstance(values, Choices):
        kind, parts = STRING, _string(_chosen(values))
    else:
        kind, parts = INT32, [_fixed(values, "<i4")]
    elements = joined([bytes([kind]), names, *parts], count)
    of_rows = Texts(elements.data, elements.first[first])
    return [_head(ARRAY, name), *document([of_rows], len(first) - 1)]


def _chosen(choices: Choices) -> Pieces:
    encoded = [text.encode() for text in choices.table]
    first = offsets(np.array([len(text) for text in encoded], np.int64))
    return Pieces(b"".join(encoded), first[:-1][choices.rows], first[1:][choices.rows])


def _string(texts: Pieces) -> list[Part]:
    return [_fixed(texts.lengths + 1, "<i4"), texts, b"\0"]


def _head(kind: int, name: str) -> bytes:
    return bytes([kind]) + name.encode() + b"\0"


def _fixed(values: NDArray[np.generic], dtype: str) -> Texts:
    """Return numbers as bytes."""
    width = np.dtype(dtype).itemsize
    return Texts(values.astype(dtype).tobytes(), np.arange(len(values) + 1) * width)


def _bytes(data: bytes) -> Bytes:
    return np.frombuffer(data, np.uint8)


def _as_texts(column: tuple[Bytes, Ints]) -> Texts:
    return Texts(column[0].tobytes(), column[1])


@compiled
def _int32(data: Bytes, at: int) -> int:
    value = 0
    for k in range(4):
        value |= int(data[at + k]) << (8 * k)
    return value - ((value & 0x80000000) << 1)


@compiled
def _int64(data: Bytes, at: int) -> np.int64:
    value = np.int64(0)
    for k in range(8):
        value |= np.int64(data[at + k]) << np.int64(8 * k)
    return value


@compiled
def _begins(data: Bytes) -> Ints:
    """Return the offset of each document and the end of the last one that is complete."""
    begins = np.empty(len(data) // SMALLEST + 1, np.int64)
    count, at = 0, 0
    begins[0] = 0
    while at + SMALLEST <= len(data):
        length = _int32(data, at)
        if length < SMALLEST or at + length > len(data):
            break
        at += length
        count += 1
        begins[count] = at
    return begins[: count + 1].copy()


@compiled
def _located(
    data: Bytes, begins: Ints, fields: Fields, sizes: tuple[Ints, Ints]
) -> tuple[Bytes, Ints, bool]:
    """Return the (f, n) types and offsets of the values of all fields, and whether all are valid.

    The type is MISSING where a document has no such field.
    """
    n, count = len(begins) - 1, len(fields.parent)
    types, places = np.zeros((count, n), np.uint8), np.zeros((count, n), np.int64)
    outer = np.empty(count + 1, np.int64)
    for i in range(n):
        at, end, depth, level, likely = begins[i] + 4, begins[i + 1], 0, -1, 0
        while data[at] != MISSING or depth > 0:
            kind, at = data[at], at + 1
            if kind == MISSING:
                depth -= 1
                level = outer[depth]
                continue
            begin, at = at, _after_text(data, at, end)
            size = _size(data, kind, at, end, sizes)
            # Every document ends with a byte after its last value.
            if size < 0 or at + size >= end:
                return types, places, False
            field = _field(data, begin, at - 1, fields, level, likely)
            if field >= 0:
                types[field, i], places[field, i], likely = kind, at, field + 1
                if kind == DOCUMENT and fields.inner[field]:
                    outer[depth] = level
                    depth, level, size = depth + 1, field, 4
            at += size
    return types, places, True


@compiled
def _after_text(data: Bytes, at: int, end: int) -> int:
    """Return the offset after a text that ends with a zero."""
    while at < end and data[at] != 0:
        at += 1
    return at + 1


@compiled
def _size(data: Bytes, kind: int, at: int, end: int, sizes: tuple[Ints, Ints]) -> int:
    """Return the size of a value in bytes; negative if its type is unknown or it is truncated."""
    if kind == REGEX:
        return _after_text(data, _after_text(data, at, end), end) - at
    size: int = sizes[0][kind]
    if size == LENGTH_FIRST and at + 4 <= end:
        length = _int32(data, at)
        min_length = SMALLEST if kind in (DOCUMENT, ARRAY) else 0
        return length + sizes[1][kind] if length >= min_length else UNKNOWN
    return size


@compiled
def _field(data: Bytes, begin: int, end: int, fields: Fields, level: int, likely: int) -> int:
    """Return the field of the document `level` with the name data[begin:end]; -1: none.

    likely: field with which the search begins, because documents usually have the same order
    """
    count = len(fields.parent)
    for k in range(count):
        field = likely + k if likely + k < count else likely + k - count
        first = fields.first[field]
        if fields.parent[field] != level or fields.first[field + 1] - first != end - begin:
            continue
        j = 0
        while j < end - begin and fields.names[first + j] == data[begin + j]:
            j += 1
        if j == end - begin:
            return field
    return -1


@compiled
def _number(data: Bytes, kind: int, at: int) -> float:
    if kind == DOUBLE:
        return float(np.int64(_int64(data, at)).view(np.float64))
    if kind == INT32:
        return float(_int32(data, at))
    if kind in (INT64, DATE):
        return float(_int64(data, at))
    return np.nan


@compiled
def _numbers(data: Bytes, types: Bytes, places: Ints) -> Floats:
    values = np.empty(len(types))
    for i in range(len(types)):
        values[i] = _number(data, types[i], places[i])
    return values


@compiled
def _texts(data: Bytes, types: Bytes, places: Ints) -> tuple[Bytes, Ints]:
    first = np.zeros(len(types) + 1, np.int64)
    for i in range(len(types)):
        length = 0
        if types[i] == STRING:
            length = max(_int32(data, places[i]) - 1, 0)
        elif types[i] == OBJECT_ID:
            length = HEX_BYTES
        first[i + 1] = first[i] + length
    texts = np.empty(first[-1], np.uint8)
    for i in range(len(types)):
        begin, length = places[i] + 4, first[i + 1] - first[i]
        if types[i] == STRING:
            for k in range(length):
                texts[first[i] + k] = data[begin + k]
        elif types[i] == OBJECT_ID:
            for k in range(length):
                digit = data[places[i] + k // 2] >> (0 if k % 2 else 4) & 15
                texts[first[i] + k] = digit + (48 if digit < 10 else 87)
    return texts, first


@compiled
def _same(texts: tuple[Bytes, Ints], others: tuple[Bytes, Ints]) -> Flags:
    """Return (n,) whether two texts are the same and not empty."""
    data, first = texts
    other, begin = others
    same = np.zeros(len(first) - 1, np.bool_)
    for i in range(len(same)):
        length = first[i + 1] - first[i]
        if length == 0 or begin[i + 1] - begin[i] != length:
            continue
        k = 0
        while k < length and data[first[i] + k] == other[begin[i] + k]:
            k += 1
        same[i] = k == length
    return same


@compiled
def _blocks(data: Bytes, types: Bytes, places: Ints, kind: int, head: int) -> tuple[Bytes, Ints]:
    """Return values of a type that begin with their length, without the first `head` bytes."""
    first = np.zeros(len(types) + 1, np.int64)
    for i in range(len(types)):
        first[i + 1] = first[i] + (_int32(data, places[i]) if types[i] == kind else 0)
    values = np.empty(first[-1], np.uint8)
    for i in range(len(types)):
        begin, length = places[i] + head, first[i + 1] - first[i]
        for k in range(length):
            values[first[i] + k] = data[begin + k]
    return values, first


@compiled
def _first_elements(
    data: Bytes, types: Bytes, places: Ints, sizes: tuple[Ints, Ints]
) -> tuple[Bytes, Ints]:
    """Return types and offsets of the first elements of arrays."""
    kinds, at = np.zeros(len(types), np.uint8), np.zeros(len(types), np.int64)
    for i in range(len(types)):
        if types[i] == ARRAY:
            kind, end = data[places[i] + 4], places[i] + _int32(data, places[i])
            # The name of the first element is "0".
            size = _size(data, kind, places[i] + 7, end, sizes)
            if size >= 0 and places[i] + 7 + size < end:
                kinds[i], at[i] = kind, places[i] + 7
    return kinds, at


@compiled
def _number_arrays(data: Bytes, types: Bytes, places: Ints) -> tuple[Ints, Floats]:
    counts = np.zeros(len(types), np.int64)
    # An element takes at least seven bytes.
    values, used = np.empty(len(data) // 7 + 1), 0
    for i in range(len(types)):
        if types[i] != ARRAY:
            continue
        at, end = places[i] + 4, places[i] + _int32(data, places[i])
        while data[at] in (DOUBLE, INT32, INT64):
            kind, at = data[at], _after_text(data, at + 1, end)
            size = 4 if kind == INT32 else 8
            if at + size >= end:
                break
            values[used] = _number(data, kind, at)
            used, counts[i], at = used + 1, counts[i] + 1, at + size
    return counts, values[:used].copy()


@compiled
def _joined(source: Bytes, begin: Ints, end: Ints, first: Ints) -> Bytes:
    """Copy the pieces of all rows, one after the other. begin, end: (n, p) offsets."""
    result = np.empty(first[-1], np.uint8)
    at = 0
    for i in range(len(begin)):
        for p in range(begin.shape[1]):
            for k in range(begin[i, p], end[i, p]):
                result[at] = source[k]
                at += 1
    return result
