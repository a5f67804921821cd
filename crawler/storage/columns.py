"""Columns that grow batch by batch: a million texts or numbers without an object for each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from schedules.history import Ints

Number = TypeVar("Number", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Texts:
    """n texts in one piece of memory; a text is made when it is asked for.

    data:  all texts, UTF-8, one behind the other
    first: (n + 1,) text i is data[first[i]:first[i + 1]]
    """

    data: bytes
    first: Ints

    def __len__(self) -> int:
        return len(self.first) - 1

    def __getitem__(self, i: int) -> str:
        return self.data[self.first[i] : self.first[i + 1]].decode()

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))


class Grown(Generic[Number]):
    """A column of numbers."""

    def __init__(self, dtype: type[Number] | np.dtype[Number]) -> None:
        self._dtype = dtype
        self._parts: list[NDArray[Number]] = []

    def add(self, values: Sequence[Any] | NDArray[Any]) -> None:
        """Append values."""
        self._parts.append(np.asarray(values, self._dtype))

    def taken(self) -> NDArray[Number]:
        """The whole column; the parts are let go."""
        parts, self._parts = self._parts, []
        return np.concatenate(parts) if parts else np.empty(0, self._dtype)


class GrownTexts:
    """A column of texts."""

    def __init__(self) -> None:
        self._data: list[bytes] = []
        self._lengths = Grown(np.int64)

    def add(self, texts: Iterable[str]) -> None:
        """Append texts."""
        encoded = [text.encode() for text in texts]
        self._data.append(b"".join(encoded))
        self._lengths.add([len(text) for text in encoded])

    def taken(self) -> Texts:
        """The whole column; the parts are let go."""
        data, self._data = b"".join(self._data), []
        return Texts(data, offsets(self._lengths.taken()))


class Names:
    """A column of few distinct names: a number for each row, and the names."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._rows = Grown(np.int32)

    def add(self, names: Iterable[str | None]) -> None:
        """Append names; None becomes -1."""
        numbers = self._numbers
        self._rows.add(
            [-1 if name is None else numbers.setdefault(name, len(numbers)) for name in names]
        )

    def taken(self) -> tuple[tuple[str, ...], NDArray[np.int32]]:
        """The names, and for each row the number of its own, -1 for none."""
        return tuple(self._numbers), self._rows.taken()

    def taken_apart(
        self, between: str, count: int
    ) -> list[tuple[tuple[str, ...], NDArray[np.int32]]]:
        """As `taken`, of each of the `count` names that every name is made of; -1 for empty ones.

        Without any name there is nothing to take apart, and each has none.
        """
        texts, row = self.taken()
        parts = zip(*(text.split(between, count - 1) for text in texts), strict=True)
        columns = []
        for part in list(parts) or [()] * count:
            names = {name: number for number, name in enumerate(dict.fromkeys(filter(None, part)))}
            numbers = np.array([names.get(name, -1) for name in part], np.int32)
            columns.append((tuple(names), numbers[row]))
        return columns


def offsets(lengths: Ints) -> Ints:
    """(n,) lengths as (n + 1,) places where each begins and the last ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
