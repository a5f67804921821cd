"""The frontier of a single process: what is due, read from MongoDB as the crawl makes room."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from functools import partial

from crawler.frontier.base import IN_DOUBT, Frontier, Tally
from crawler.frontier.dispatch import Admission, chosen
from crawler.items import Target
from crawler.storage import targets


class LocalFrontier(Frontier):
    """Hands out what is due, never more than the crawl has room for."""

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

    async def leave(self) -> Tally:
        """The counts of the run, repaired where visits may be stored in part."""
        session = self._session
        if session.error is not None or not session.is_open:
            return Tally()
        counts = session.counts | Counter(session.shares())
        if counts.pop(IN_DOUBT, 0):
            await session.patience.read(session.ending.make_whole)
        return Tally(counts, visits_of_all=counts["visits"])
