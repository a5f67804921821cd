"""Targets that are planned in parts, possibly by several processes or machines.

A shard has the targets whose keys are in one range. A step is a function of a shard's columns; it
may add columns, and returns little: sums, or a limited number of rows. Shards are in the order of
their keys, so whatever follows the order of all keys goes through them one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from schedules.history import Ints

R = TypeVar("R")
# The columns of a shard by name, such as `population`.
Columns = MutableMapping[str, Any]
Own = Sequence[tuple[Any, ...]]


class Shards(Protocol):
    """Run steps on shards."""

    def __len__(self) -> int: ...

    def each(self, step: Callable[..., R], *common: Any, own: Own | None = None) -> list[R]:
        """Run a step on all shards, in any order, and return its results in their order.

        common: arguments after the columns
        own:    further arguments of each shard
        """

    def one(self, number: int, step: Callable[..., R], *args: Any) -> R:
        """Run a step on one shard."""


class InMemory:
    """Hold shards in memory, and run steps one after the other."""

    def __init__(self, columns: Sequence[Columns]) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns)

    def each(self, step: Callable[..., R], *common: Any, own: Own | None = None) -> list[R]:
        """Run a step on all shards."""
        more = [()] * len(self) if own is None else own
        return [
            step(columns, *common, *args) for columns, args in zip(self.columns, more, strict=True)
        ]

    def one(self, number: int, step: Callable[..., R], *args: Any) -> R:
        """Run a step on one shard."""
        return step(self.columns[number], *args)


def shard_of(key: NDArray[np.uint64], count: int) -> Ints:
    """Return the (n,) shard of each target: `count` ranges of keys, equally long."""
    half = np.uint64(32)
    number: Ints = ((key >> half) * np.uint64(count) >> half).astype(np.int64)
    return number
