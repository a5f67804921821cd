"""How each spider stands: its last pass, and what is due and waits; by indexes alone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from pymongo import ASCENDING, DESCENDING

from crawler.storage.client import Database, Document

MOST = 100_000
# A pass that has stored nothing for so long is not at work any more.
SILENT = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Standing:
    """The last pass of a spider, and its targets that are due.

    finished: None: it is at work, or was cut off
    stored:   when its newest visit was made; None: never
    due:      targets whose time has come, MOST at most; since: the first of their times
    """

    started: datetime
    finished: datetime | None
    reason: str | None
    stored: datetime | None
    due: int
    since: datetime | None

    @property
    def latest(self) -> datetime:
        """When the pass is known to have been at work."""
        return self.finished or max(self.started, self.stored or self.started)

    def may_be_at_work(self, now: datetime) -> bool:
        """Whether the pass has not ended, nor fallen silent."""
        return self.finished is None and now - self.latest < SILENT


async def standing(db: Database, spider: str, now: datetime) -> Standing | None:
    """How a spider stands; None before its first pass."""
    run = await db.runs.find_one({"spider": spider}, sort=[("started", DESCENDING)])
    if run is None:
        return None
    visit = await db.visits.find_one({"spider": spider}, {"at": 1}, sort=[("at", DESCENDING)])
    query: Document = {"spider": spider, "next_visit": {"$lte": now}}
    by_time = [("next_visit", ASCENDING)]
    first = await db.targets.find_one(query, {"next_visit": 1}, sort=by_time)
    return Standing(
        started=run["started"],
        finished=run["finished"],
        reason=run.get("reason"),
        stored=visit["at"] if visit else None,
        due=await db.targets.count_documents(query, limit=MOST) if first else 0,
        since=first["next_visit"] if first else None,
    )
