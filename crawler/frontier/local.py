"""The frontier of a single process: what is due, read from MongoDB as the crawl makes room."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from bson import ObjectId

from crawler.frontier.base import IN_DOUBT, Counts, Tally
from crawler.frontier.dispatch import Admission, chosen
from crawler.items import Target
from crawler.storage import targets

if TYPE_CHECKING:
    from crawler.frontier.politeness import Turns
    from crawler.frontier.session import Session


class LocalFrontier:
    """Hands out what is due, never more than the crawl has room for."""

    is_shared = False
    turns: Turns | None = None
    # The lease on the spider's runs keeps all other processes away.
    is_sure = True

    def __init__(self, session: Session) -> None:
        self._session = session

    async def open(self) -> str:
        """Nothing is shared."""
        return ""

    async def join(self) -> tuple[bool, ObjectId | None, datetime | None]:
        """Prepare the run: no other process does."""
        return True, None, None

    async def begin(self, run: ObjectId, started: datetime) -> None:
        """No other process waits for it."""

    async def due(self, limit: int | None) -> AsyncIterator[Target]:
        """Targets that are due at the start of the run or discovered during it, each once."""
        session, admission = self._session, Admission(self._session, limit)
        async for target in self._candidates():
            while len(session.in_flight) >= session.config.in_flight and session.error is None:
                await session.until_released(session.releases)
            if target.key in session.along:
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
        """What is due: first what the dispatcher chose, if not all of it has room.

        Then the most overdue first. A visited target's next visit lies after the start of the run,
        so asking for what is due again and again gives each target once; only those in flight have
        to be left out.
        """
        session, size = self._session, self._session.config.in_flight
        db, started, read = session.db, session.started, session.patience.read
        if session.allowance.is_open():
            async for keys in chosen(session, size):
                by_key = await read(
                    partial(targets.due_of, db, keys, started, session.closed_hosts())
                )
                for key in keys:
                    if key in by_key:
                        yield by_key[key]
        while session.error is None:
            releases, in_flight = session.releases, frozenset(session.in_flight)
            most, closed = size + len(in_flight), session.closed_hosts()
            due = await read(partial(targets.due, db, session.spider, started, most, closed))
            # The answer is older than this moment: a target that was visited and released while it
            # was on its way would look due and free.
            batch = [target for target in due if target.key not in in_flight]
            if not batch and not in_flight:
                return
            if not batch:
                await session.until_released(releases)
            for target in batch:
                yield target

    def take_along(self, target: Target, others: Iterable[Target]) -> None:
        """No other process could hand them out."""

    async def may_fetch(self, host: str) -> bool:
        """Count a request to a host; False if the host's cap for the run is used up."""
        return self._session.limits.spend(host)

    def done(self, key: str, counts: Counts) -> None:
        """The session counts."""

    def give_up(self, host: str) -> None:
        """A host gets no more requests in this run."""
        self._session.limits.given_up.add(host)

    async def hold(self, host: str, seconds: float) -> None:
        """The session's limits hold it."""

    async def still_holds(self, key: str) -> bool:
        """No other process takes over targets."""
        return True

    def stop(self) -> None:
        """`due` ends by the session's error."""

    def hurry(self) -> None:
        """There is no server besides MongoDB."""

    async def leave(self) -> Tally:
        """The counts of the run, repaired where visits may be stored in part."""
        session = self._session
        if session.error is not None or not session.is_open:
            return Tally()
        counts = session.counts | Counter(session.shares())
        if counts.pop(IN_DOUBT, 0):
            await session.patience.read(session.ending.make_whole)
        return Tally(counts, visits_of_all=counts["visits"])

    async def finish(self) -> None:
        """Nothing is kept."""

    async def close(self) -> None:
        """Nothing was opened."""
