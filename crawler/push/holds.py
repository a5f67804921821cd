"""Which hubs are left alone for now: those that fail, and those that asked for it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from crawler.push import times


@dataclass(slots=True)
class Holds:
    """Holds by host; bounded by the number of hosts that fail."""

    chance: random.Random
    _until: dict[str, datetime] = field(default_factory=dict)
    _failures: Counter[str] = field(default_factory=Counter)

    def are_on(self, host: str, now: datetime) -> bool:
        """Whether a host is left alone."""
        return self._until.get(host, now) > now

    def first_end(self, hosts: Iterable[str]) -> datetime:
        """When the first of these hosts, all on hold, may be asked again."""
        return min(self._until[host] for host in hosts)

    def failed(self, host: str, now: datetime) -> None:
        """Leave a host alone for a while; for longer if it goes on failing."""
        if self.are_on(host, now):  # Several requests failed at once: that is one failure.
            return
        self._failures[host] += 1
        self._until[host] = now + times.hold(self._failures[host], self.chance.random())

    def answered(self, host: str) -> None:
        """A host is well again."""
        self._failures.pop(host, None)

    def wish(self, host: str, until: datetime) -> None:
        """A host named the time until which it wants to be left alone."""
        self._until[host] = max(until, self._until.get(host, until))

    def refresh(self, known: dict[str, datetime], now: datetime) -> None:
        """Forget the holds that are over; add those that the database knows."""
        own = {host: until for host, until in self._until.items() if until > now}
        self._until = known | own
        # A host whose hold ended long ago, or that has no feed any more, is as good as new.
        if len(self._failures) > 2 * len(self._until) + 1000:
            self._failures = Counter({host: self._failures[host] for host in self._until})
