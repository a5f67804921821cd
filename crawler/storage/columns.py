"""Columns of numbers, texts, names and arrays, without a Python object for each value.

Some grow batch by batch, as a replan reads targets; others hold what it writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from schedules.history import Ints, offsets

Number = TypeVar("Number", bound=np.generic)
Keys = NDArray[np.uint64]
KEY_BYTES = 8


@dataclass(frozen=True, slots=True)
class Texts:
    """n texts in one block of memory; a text is decoded when it is read.

    data:  all texts, UTF-8, one after the other
    first: (n + 1,) text i is data[first[i]:first[i + 1]]
    """

    data: bytes
    first: Ints

    def __len__(self) -> int:
        return len(self.first) - 1

    def __getitem__(self, i: int) -> str:
        return self.data[self.first[i] : self.first[i + 1]].decode()

    def __iter__(self) -> Iterator[str]:
        return (self.data[begin:end].decode() for begin, end in pairwise(self.first.tolist()))

    def of(self, rows: Ints) -> Texts:
        """Return some of the texts."""
        begins, ends = self.first[rows], self.first[rows + 1]
        bounds = zip(begins.tolist(), ends.tolist(), strict=True)
        data = b"".join([self.data[begin:end] for begin, end in bounds])
        return Texts(data, offsets(ends - begins))

    def order(self, rows: Ints) -> Ints:
        """Return rows in the order of their texts, by code points."""
        data, first = self.data, self.first
        bounds = zip(rows.tolist(), first[rows].tolist(), first[rows + 1].tolist(), strict=True)
        return np.array([row for _, row in sorted((data[a:b], row) for row, a, b in bounds)], int)


def keys_of(texts: Texts) -> Keys:
    """Return an (n,) pseudorandom number for each text that is the same in every run."""
    data, bounds = texts.data, texts.first.tolist()
    return _digests(data[begin:end] for begin, end in pairwise(bounds))


def keys_of_texts(texts: Iterable[str]) -> Keys:
    """Return the same numbers as `keys_of`, for texts that are not in a column."""
    return _digests(text.encode() for text in texts)


def _digests(texts: Iterable[bytes]) -> Keys:
    digests = b"".join([blake2b(text, digest_size=KEY_BYTES).digest() for text in texts])
    return np.frombuffer(digests, "<u8").astype(np.uint64)


class Names(NamedTuple):
    """Hold n names with few distinct values. rows: (n,) place of each in the table, -1: none."""

    table: Sequence[str]
    rows: Ints


# Joins names into one; no name contains it.
BETWEEN = "\0"
# Factor by which a full column grows.
GROWTH = 1.5


class NumberColumn(Generic[Number]):
    """A growing column of numbers."""

    def __init__(self, dtype: type[Number] | np.dtype[Number]) -> None:
        self._values = np.empty(0, dtype)
        self._length = 0

    def add(self, values: Sequence[Any] | NDArray[Any]) -> None:
        """Append values."""
        begin, self._length = self._length, self._length + len(values)
        if self._length > len(self._values):
            # In place, so that there is no second copy; no other object has a view of the values.
            capacity = max(self._length, int(len(self._values) * GROWTH))
            self._values.resize(capacity, refcheck=False)
        self._values[begin : self._length] = values

    def finish(self) -> NDArray[Number]:
        """Return the whole column and empty this object."""
        values, self._values = self._values, np.empty(0, self._values.dtype)
        values.resize(self._length, refcheck=False)
        self._length = 0
        return values


class TextColumn:
    """A growing column of texts."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._lengths = NumberColumn(np.int64)

    def add(self, texts: Iterable[str]) -> None:
        """Append texts."""
        encoded = [text.encode() for text in texts]
        self._data += b"".join(encoded)
        self._lengths.add([len(text) for text in encoded])

    def extend(self, texts: Texts) -> None:
        """Append the texts of a column."""
        self._data += texts.data
        self._lengths.add(np.diff(texts.first))

    def finish(self) -> Texts:
        """Return the whole column and empty this object."""
        data, self._data = bytes(self._data), bytearray()
        return Texts(data, offsets(self._lengths.finish()))


class NameColumn:
    """A growing column with few distinct names: a number for each row, and the names."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._rows = NumberColumn(np.int32)

    def add(self, names: Iterable[str | None]) -> None:
        """Append names; None becomes -1."""
        self._rows.add([self._number(name) for name in names])

    def extend(self, names: Names) -> None:
        """Append names; those without a text become -1."""
        numbers = [self._number(name or None) for name in names.table]
        self._rows.add(np.array([*numbers, -1], np.int32)[names.rows])

    def _number(self, name: str | None) -> int:
        return -1 if name is None else self._numbers.setdefault(name, len(self._numbers))

    def finish(self) -> tuple[tuple[str, ...], NDArray[np.int32]]:
        """Return the names, and for each row the number of its name, -1 for none."""
        return tuple(self._numbers), self._rows.finish()
