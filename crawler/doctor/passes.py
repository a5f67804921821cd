"""The last pass of each spider: did it end, and what is due and waits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from crawler.doctor.findings import Finding, ok, warning
from crawler.doctor.wrappers import Site
from crawler.storage.client import Database
from crawler.storage.standing import MOST, Standing, standing
from crawler.words import count, span

CHECK = "last pass"


async def check(db: Database, sites: Sequence[Site], now: datetime) -> list[Finding]:
    """One line for each spider."""
    return [
        of_spider(site.wrapper.name, await standing(db, site.wrapper.name, now), now)
        for site in sites
    ]


def of_spider(name: str, found: Standing | None, now: datetime) -> Finding:
    """What the database says of a spider."""
    if found is None:
        return ok(CHECK, f"none so far: scrapy crawl {name}", of=name)
    due = _due(found, now)
    ago = span((now - found.latest).total_seconds())
    if found.finished is not None:
        return ok(CHECK, f"ended {ago} ago ({found.reason}); {due}", of=name)
    if found.may_be_at_work(now):
        return ok(CHECK, f"at work, or cut off {ago} ago; {due}", of=name)
    todo = "nothing: the next one makes the log whole; why it ended may stand in its log"
    return warning(CHECK, f"cut off {ago} ago; {due}", todo, of=name)


def _due(found: Standing, now: datetime) -> str:
    if found.since is None:
        return "nothing is due"
    more = " or more" if found.due == MOST else ""
    waits = span((now - found.since).total_seconds())
    return f"{count(found.due, 'target')}{more} due, the first since {waits}"
