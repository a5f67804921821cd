"""What a pass needs after its last request: a log made whole, and its sums."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime

from crawler.counting import Counts, recounted, whole
from crawler.preparing import make_whole
from crawler.storage import listings, runs, targets, visits
from crawler.storage.client import Database
from crawler.storage.duplicates.registry import Registry
from crawler.storage.targets import Outlook


@dataclass(frozen=True, slots=True)
class Left:
    """What a run leaves to later ones. held: hosts of due targets, and until when."""

    outlook: Outlook
    held: dict[str, datetime]


@dataclass(frozen=True, slots=True)
class Ending:
    """A pass that ends. Both of what it does may be repeated."""

    db: Database
    registry: Registry | None
    spider: str
    started: datetime
    now: datetime

    async def counted_anew(self, counts: Counts) -> Counts:
        """Make whole what workers that died have left, and count the pass by its log."""
        db, spider = self.db, self.spider
        await self.make_whole()
        since = await runs.unfinished_since(db, spider) or self.started
        outcomes = await visits.by_outcome(db, spider, since)
        return recounted(counts, outcomes, await visits.by_kind(db, spider, since))

    async def make_whole(self) -> None:
        """Repair what workers have left that died, or could not reach the server."""
        await make_whole(self.db, self.registry, self.spider, self.started, self.now)

    async def with_what_is_left(self, counts: Counts) -> tuple[Counter[str], Left]:
        """Counts, with what is off the lists, what is watched and what is still due."""
        found = dict(counts)
        # An item is off the lists only when all lists that are due have been read.
        if not await targets.lists_are_due(self.db, self.spider, self.started):
            found["unlisted"] = await listings.settle(self.db, self.spider, self.now)
        outlook = await targets.outlook(self.db, self.spider, self.started, self.now)
        found["targets"] = outlook.targets
        found["due"] = await targets.count_due(self.db, self.spider, self.started)
        held = await targets.held(self.db, self.spider, self.started, self.now)
        return whole(found), Left(outlook, held)
