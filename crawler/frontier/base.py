"""What a frontier does: hand out a run's targets, and keep apart the processes that share them."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from bson import ObjectId
from scrapy import Request

from crawler.items import Target

if TYPE_CHECKING:
    from crawler.frontier.politeness import Turns
    from crawler.frontier.session import Session

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


class Frontier:
    """Hands out due targets, and knows which of them are this process's.

    Backends have `due` and `leave`; the rest is what a process needs that shares its run with no
    other: next to nothing.

    is_shared: whether other processes take part in the run
    turns:     politeness slots that processes share; None where each process keeps its own
    """

    is_shared: bool = False
    turns: Turns | None = None

    def __init__(self, session: Session) -> None:
        self._session = session

    def due(self, limit: int | None) -> AsyncIterator[Target | Request]:
        """What this process is to fetch, until the run is over.

        These are targets that are due at the start of the run or found during it, each once, and
        requests that spiders made. limit: how many targets the run hands out at most.
        """
        raise NotImplementedError

    async def leave(self) -> Tally:
        """End this process's part in the run, and return how the run stands."""
        raise NotImplementedError

    async def open(self) -> str:
        """Connect; return the id of what processes of a run share, empty where they share nothing.

        Raises ConfigError or Unreachable.
        """
        return ""

    async def join(self) -> tuple[bool, ObjectId | None, datetime | None]:
        """Take part in a run.

        Returns whether this process prepares it, its `_id` where it has been begun before, and,
        where another process prepared it, its start.
        """
        return True, None, None

    async def begin(self, run: ObjectId, started: datetime) -> None:
        """Let all processes work: the run is prepared."""

    def take_along(self, target: Target, others: Iterable[Target]) -> None:
        """Note targets that are read from the page of another one."""

    async def may_fetch(self, host: str) -> bool:
        """Count a request to a host; False if the host's cap for the run is used up."""
        return self._session.limits.spend(host)

    def done(self, key: str, counts: Counts) -> None:
        """A target is stored, or is not this process's any more; what is to be counted of it."""

    def give_up(self, host: str) -> None:
        """Send a host no more requests in this run, from any process."""
        self._session.limits.given_up.add(host)

    async def hold(self, host: str, seconds: float) -> None:
        """Let no process send a request to the host for a time."""

    @property
    def is_sure(self) -> bool:
        """Whether no other process can have taken over what this one works on."""
        return True

    async def still_holds(self, key: str) -> bool:
        """Whether a target is still this process's; asks, unless it is sure."""
        return True

    def stop(self) -> None:
        """Hand out nothing more."""

    def hurry(self) -> None:
        """Wait no longer for a server that is unavailable."""

    async def finish(self) -> None:
        """Keep nothing of the run: it is summed up."""

    async def close(self) -> None:
        """Disconnect."""
