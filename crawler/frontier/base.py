"""Frontiers hand out a run's targets: their interface, and the frontier of a single process.

`shared` has the frontier of several processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from bson import ObjectId
from scrapy import Request

from crawler.frontier.run_limits import Admission, chosen
from crawler.items import Target
from crawler.storage import due

if TYPE_CHECKING:
    from crawler.frontier.rate_limits import Permits
    from crawler.frontier.session import Session

Counts = Mapping[str, float]
# Name of a count: workers whose last visits may be only partly stored.
IN_DOUBT = "workers in doubt"
# Size of a query for due targets, in units of FRESHET_IN_FLIGHT. If fewer are due, list pages are
# first, so this should exceed the number of links of a list page.
READ_AHEAD = 4


@dataclass(frozen=True, slots=True)
class Tally:
    """State of a run when a process leaves it.

    counts:        sums over all processes; None if another process sums up the run
    sums_up:       whether this process sums up the run, as the last one
    workers:       number of processes that took part; 1 if another process sums up the run
    others:        number of processes that are still running
    visits_of_all: number of visits of all processes so far
    """

    counts: Counter[str] | None = None
    sums_up: bool = True
    workers: int = 1
    others: int = 0
    visits_of_all: int = 0


class Frontier:
    """Hands out due targets, and keeps track of those that this process works on.

    Backends implement `due` and `leave`. The other methods default to the behavior of a process
    that does not share its run.

    is_shared: whether other processes can take part in the run
    permits:   rate limits that processes share; None if each process has its own
    """

    is_shared: bool = False
    permits: Permits | None = None

    def __init__(self, session: Session) -> None:
        self._session = session

    def due(self, limit: int | None) -> AsyncIterator[Target | Request]:
        """Yield the targets and requests that this process has to fetch, until the run is over.

        Each target that is due at the start of the run, or discovered during it, is yielded once.
        The requests are those of spiders.

        limit: maximum number of targets of the run; None: no limit
        """
        raise NotImplementedError

    async def leave(self) -> Tally:
        """End this process's part in the run, and return the state of the run."""
        raise NotImplementedError

    async def open(self) -> str:
        """Connect; return the id of the shared queue, or an empty string without one.

        Raises ConfigError or Unreachable.
        """
        return ""

    async def join(self) -> tuple[bool, ObjectId | None, datetime | None]:
        """Join the run, or begin one.

        Returns whether this process has to prepare the run, the run's `_id` if it was begun before,
        and its start if another process has prepared it.
        """
        return True, None, None

    async def begin(self, run: ObjectId, started: datetime) -> None:
        """Announce that the run is prepared, so that all processes start."""

    def take_with(self, target: Target, others: Iterable[Target]) -> None:
        """Note that the page of a target is also read for `others` (shared fetch)."""

    async def may_fetch(self, host: str) -> bool:
        """Count a request to a host; return False if the host's cap for the run is reached."""
        return self._session.limits.spend(host)

    def done(self, key: str, counts: Counts) -> None:
        """Note that a target is stored or was taken over, and add its counts."""

    def give_up(self, host: str) -> None:
        """Stop requests of all processes to a host for the rest of the run."""
        self._session.limits.given_up.add(host)

    def postpone(self, key: str) -> None:
        """Stop handing out a target in this run; it remains due."""
        self._session.postponed.add(key)

    async def hold(self, host: str, seconds: float) -> None:
        """Pause requests of all processes to a host for `seconds`."""

    @property
    def is_sure(self) -> bool:
        """Return whether this process is certain to hold its leases."""
        return True

    async def still_holds(self, key: str) -> bool:
        """Return whether this process still holds a target; renews the leases if unsure."""
        return True

    def stop(self) -> None:
        """Stop handing out targets."""

    def hurry(self) -> None:
        """Stop retrying while a server is unavailable."""

    async def finish(self) -> None:
        """Delete the shared state of a run after it was summed up."""

    async def close(self) -> None:
        """Disconnect."""


class LocalFrontier(Frontier):
    """Hands out due targets, at most FRESHET_IN_FLIGHT at a time."""

    async def due(self, limit: int | None) -> AsyncIterator[Target]:
        """Yield each target that is due at the start of the run or discovered during it, once."""
        session, admission = self._session, Admission(self._session, limit)
        async for target in self._candidates():
            while len(session.in_flight) >= session.config.in_flight and session.error is None:
                await session.until_released(session.releases)
            if target.key in session.shared_fetches:
                continue
            while session.error is None:
                releases = session.releases
                allowed = await admission.admit(1, len(session.in_flight))
                if allowed is None:
                    return
                if allowed:
                    break
                await session.until_released(releases)
            if session.error is not None:
                return
            admission.handed_out += 1
            session.take(target)
            yield target

    async def _candidates(self) -> AsyncIterator[Target]:
        """Yield due targets: first those chosen by dispatch, then the most overdue ones.

        A visit moves a target's next visit to after the start of the run. So repeated queries for
        due targets return each target once, except for those in flight and postponed ones, which
        are left out here.
        """
        session, size = self._session, self._session.config.in_flight
        db, started, read = session.db, session.started, session.patience.read
        if session.allowance.is_open():
            async for keys in chosen(session, size):
                by_key = await read(partial(due.of_keys, db, keys, started, session.closed_hosts()))
                for key in keys:
                    if key in by_key:
                        yield by_key[key]
        while session.error is None:
            findings, in_flight = session.findings, frozenset(session.in_flight)
            # Without the targets in flight before the query: a target that was visited during the
            # query would look due and not in flight.
            without = in_flight | session.postponed
            max_targets, closed = READ_AHEAD * size + len(without), session.closed_hosts()
            query = partial(due.most_overdue, db, session.spider, started, max_targets, closed)
            batch = await read(partial(query, without=without))
            if not batch and not in_flight:
                return
            if not batch:
                await session.until_found(findings)
            for target in batch:
                yield target

    async def leave(self) -> Tally:
        """Return the counts of the run, after a repair if visits may be stored in part."""
        session = self._session
        if session.error is not None or not session.is_open:
            return Tally()
        counts = session.counts | Counter(session.shares())
        if counts.pop(IN_DOUBT, 0):
            await session.patience.read(session.ending.repair)
        return Tally(counts, visits_of_all=counts["visits"])
