"""What a worker of a shared pass holds: entries, the targets they stand for, what came of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crawler.redis.queue import Lease

Counts = Mapping[str, float]


class Holdings:
    """The leases of one worker.

    held:  targets that are not stored yet, by entry; none: it is not known yet, or a request
    done:  entries that Redis has not been told of, with what is to be counted of them
    loose: counts of what was never leased (deliveries of hubs)
    """

    def __init__(self) -> None:
        self.held: dict[str, set[str]] = {}
        self.done: list[tuple[str, Counts]] = []
        self.loose: Counter[str] = Counter()
        self._entries: dict[str, str] = {}
        self._counted: dict[str, Counter[str]] = {}
        self._lost: set[str] = set()

    def take(self, leases: Iterable[Lease]) -> None:
        """Entries that were just leased."""
        self.held |= {lease.entry: set() for lease in leases}

    def stand(self, entry: str, keys: Iterable[str]) -> None:
        """The targets that an entry stands for: it is done when all of them are."""
        if entry in self.held:
            keys = set(keys)
            self.held[entry] |= keys
            self._entries |= dict.fromkeys(keys, entry)
            self._lost -= keys

    def store(self, key: str, counts: Counts) -> None:
        """A target is stored; what is to be counted of it."""
        self._lost.discard(key)
        entry = self._entries.pop(key, None)
        so_far = self.loose if entry is None else self._counted.setdefault(entry, Counter())
        for name, value in counts.items():
            so_far[name] += value  # type: ignore[assignment]
        if entry is not None:
            self.held[entry].discard(key)
            if not self.held[entry]:
                self.drop(entry, so_far)

    def drop(self, entry: str, counts: Counts) -> None:
        """An entry is done with, whatever it stood for."""
        if self.held.pop(entry, None) is not None:
            self._counted.pop(entry, None)
            self.done.append((entry, counts))

    def lose(self, entries: Iterable[str]) -> None:
        """Others have taken over these entries."""
        for entry in entries:
            keys = self.held.pop(entry, set())
            self._counted.pop(entry, None)
            self._lost |= keys
            for key in keys:
                self._entries.pop(key, None)

    def is_lost(self, key: str) -> bool:
        """Whether others have taken over a target."""
        return key in self._lost

    def entries(self) -> list[str]:
        """All that Redis takes for this worker's."""
        return [*self.held, *(entry for entry, _ in self.done)]
