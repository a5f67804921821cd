"""Implement the frontier of a single process, which reads due targets from MongoDB."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from functools import partial

from crawler.frontier.base import IN_DOUBT, Frontier, Tally
from crawler.frontier.run_limits import Admission, chosen
from crawler.items import Target
from crawler.storage import targets


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
        due targets return each target once, except for those in flight, which are left out here.
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
            max_targets, closed = size + len(in_flight), session.closed_hosts()
            due = await read(partial(targets.due, db, session.spider, started, max_targets, closed))
            # Compare with the targets in flight before the query: a target that was visited during
            # the query would look due and not in flight.
            batch = [target for target in due if target.key not in in_flight]
            if not batch and not in_flight:
                return
            if not batch:
                await session.until_released(releases)
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
