"""What the collections of a database say of each other: every document is read."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from crawler.config import Config
from crawler.doctor.findings import Finding, Status, failed, ok, warning
from crawler.preparing import make_whole
from crawler.storage import interrupted, invariants, runs, targets
from crawler.storage.client import Database
from crawler.storage.duplicates.opening import as_stored
from crawler.storage.invariants import Broken, Law

RUNNING, UNCOMPARED = "no run in progress", "posts are compared"
AT_WORK = timedelta(hours=1)
Say = Callable[[str], None]
REPAIR = "scrapy doctor --deep --repair adds them to the log"
VISIT = "scrapy doctor --deep --repair makes their targets due; then run scrapy crawl"
REMOVE = "scrapy doctor --deep --repair removes what was never acknowledged"
REBUILD = "scrapy duplicates rebuild"
ADVICE = {
    Law.LAST_LOGGED: REPAIR,
    Law.NEWEST: VISIT,
    Law.REQUESTED: REPAIR,
    Law.VERSION_LOGGED: REMOVE,
    Law.HAS_VERSION: VISIT,
    Law.POST_TARGET: VISIT,
    Law.POST_LOGGED: VISIT,
}


async def repair(db: Database, config: Config, now: datetime, say: Say) -> list[Finding]:
    """Repair what needs no page to be fetched, make due what does; findings of the time after."""
    if await runs.at_work(db, AT_WORK):
        return [failed(RUNNING, "a run is in progress or was interrupted", "repeat it after that")]
    async with as_stored(db, config) as registry:
        for spider in await targets.spiders(db):
            say(f"repairing the log of {spider}")
            since = await interrupted.logged_since(db, spider)
            await make_whole(db, registry, spider, since, now)
    await invariants.check(db, say, repair_at=now)
    return await examine(db, say)


async def examine(db: Database, say: Say) -> list[Finding]:
    """Return one finding for each invariant."""
    found = []
    if await runs.at_work(db, AT_WORK):
        found.append(
            warning(
                RUNNING, "a run is in progress or was interrupted: its writes are incomplete",
                "repeat the check when it has ended",
            )
        )  # fmt: skip
    report = await invariants.check(db, say)
    found += [_of_law(law, broken) for law, broken in report.broken.items()]
    if report.uncompared:
        said = f"{report.uncompared:,} posts with a text have not been compared"
        found.append(warning(UNCOMPARED, said, f"{REBUILD} compares them"))
    return found


def _of_law(law: Law, broken: Broken) -> Finding:
    if not broken.count:
        return ok(law, "always")
    more = ", …" if broken.count > len(broken.examples) else ""
    said = f"{broken.count:,} times not: {', '.join(broken.examples)}{more}"
    todo = ADVICE.get(law, REBUILD)
    return Finding(
        law, Status.FAILED, said, todo, broken=broken.count, examples=tuple(broken.examples)
    )
