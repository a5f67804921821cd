"""The targets that this process works on, from the frontier until their visits are stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class InFlight:
    """Keeps the targets in flight, and wakes those who wait for their visits.

    keys:     of targets that are handed out but not stored yet
    shared:   keys of cells that are read from the page of another cell
    waiting:  number of targets whose visits wait to be stored
    releases: number of targets released so far
    findings: number of released targets whose visits may have made other targets due
    has_ended: whether the run failed, so that no target is handed out any more
    """

    def __init__(self) -> None:
        self.keys: set[str] = set()
        self.shared: set[str] = set()
        self.waiting = self.releases = self.findings = 0
        self.has_ended = False
        self._released = asyncio.Event()
        self._watchers: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return len(self.keys)

    def __contains__(self, key: str) -> bool:
        return key in self.keys

    @property
    def coming(self) -> int:
        """Number of targets whose visits do not wait yet."""
        return len(self.keys) - self.waiting

    def watch(self, check: Callable[[], None]) -> None:
        """Call a function after each change of `coming`."""
        self._watchers.append(check)

    def note_waiting(self, n: int) -> None:
        """Set the number of targets whose visits wait to be stored."""
        self.waiting = n
        self._check()

    def take(self, key: str) -> None:
        """Note that a target is handed to the spider."""
        self.keys.add(key)

    def share(self, keys: list[str]) -> None:
        """Note that cells are read from the page of another cell, without a request."""
        self.shared.update(keys)
        self.keys.update(keys)

    def release(self, key: str, *, finds: bool = True) -> None:
        """Note that a target is not worked on any more.

        finds: its visit may have made other targets due
        """
        self.keys.discard(key)
        self.findings += finds
        self._wake()

    def end(self) -> None:
        """End all waits."""
        self.has_ended = True
        self._wake()

    def _wake(self) -> None:
        self.releases += 1
        self._released.set()
        self._check()

    def _check(self) -> None:
        for check in self._watchers:
            check()

    async def until_released(self, releases: int) -> None:
        """Wait until more than `releases` targets were released since the start of the run."""
        while self.releases <= releases:
            self._released.clear()
            await self._released.wait()

    async def until_found(self, findings: int) -> None:
        """Wait until more than `findings` visits may have made targets due, or all are stored."""
        while self.keys and self.findings <= findings and not self.has_ended:
            await self.until_released(self.releases)
