"""The protocol of a frontier: where a run's targets come from, and which processes share them."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from bson import ObjectId
from scrapy import Request

from crawler.items import Target

if TYPE_CHECKING:
    from crawler.frontier.politeness import Turns

Counts = Mapping[str, float]
# Among the counts of a process: its last visits may be stored in part.
IN_DOUBT = "workers in doubt"


@dataclass(frozen=True, slots=True)
class Tally:
    """How a run stands as a process leaves it.

    counts:  of all processes, where this one has summed them; None: the process's own still count
    sums_up: whether this process is the last one
    workers: processes that took part, where this one sums up
    others:  processes that are still running
    visits_of_all: visits of all processes so far
    """

    counts: Counter[str] | None = None
    sums_up: bool = True
    workers: int = 1
    others: int = 0
    visits_of_all: int = 0


class Frontier(Protocol):
    """Hands out due targets, and knows which of them are this process's.

    is_shared: whether other processes take part in the run
    turns:     politeness slots that processes share; None where each process keeps its own
    """

    is_shared: bool
    turns: Turns | None

    async def open(self) -> str:
        """Connect; return the id of what processes of a run share, empty where they share nothing.

        Raises ConfigError or Unreachable.
        """

    async def join(self) -> tuple[bool, ObjectId | None, datetime | None]:
        """Take part in a run.

        Returns whether this process prepares it, its `_id` where it has been begun before, and,
        where another process prepared it, its start.
        """

    async def begin(self, run: ObjectId, started: datetime) -> None:
        """Let all processes work: the run is prepared."""

    def due(self, limit: int | None) -> AsyncIterator[Target | Request]:
        """What this process is to fetch, until the run is over.

        These are targets that are due at the start of the run or found during it, each once, and
        requests that spiders made. limit: how many targets the run hands out at most.
        """

    def take_along(self, target: Target, others: Iterable[Target]) -> None:
        """Note targets that are read from the page of another one."""

    async def may_fetch(self, host: str) -> bool:
        """Count a request to a host; False if the host's cap for the run is used up."""

    def done(self, key: str, counts: Counts) -> None:
        """A target is stored, or is not this process's any more; what is to be counted of it."""

    def give_up(self, host: str) -> None:
        """A host gets no more requests in this run, from any process."""

    async def hold(self, host: str, seconds: float) -> None:
        """No process sends a request to the host for a time."""

    @property
    def is_sure(self) -> bool:
        """Whether no other process can have taken over what this one works on."""

    async def still_holds(self, key: str) -> bool:
        """Whether a target is still this process's; asks, unless it is sure."""

    def stop(self) -> None:
        """Hand out nothing more."""

    def hurry(self) -> None:
        """Wait no longer for a server that is unavailable."""

    async def leave(self) -> Tally:
        """End this process's part in the run, and return how the run stands."""

    async def finish(self) -> None:
        """Keep nothing of the run: it is summed up."""

    async def close(self) -> None:
        """Disconnect."""
