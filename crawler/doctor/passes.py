"""The last run of each site: did it end, what failed, and what is due and waits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from crawler.doctor.findings import Finding, ok, warning
from crawler.doctor.wrappers import Site
from crawler.storage import leases
from crawler.storage.client import Database
from crawler.storage.leases import Holder
from crawler.storage.standing import MOST, Fetches, Standing, standing
from crawler.utils.text import count, span

CHECK = "last run"
# From this share of failed pages on something is wrong with the site, or with its definition.
MANY_FAILED = 0.1
# Workers of a run that are named.
MOST_SHOWN = 3


async def check(db: Database, sites: Sequence[Site], now: datetime) -> list[Finding]:
    """One line for each spider."""
    working = await leases.at_work(db, leases.CRAWL)
    names = [site.wrapper.name for site in sites]
    return [
        of_spider(
            name, await standing(db, name, now), working.get(f"{leases.CRAWL}{name}", []), now
        )
        for name in names
    ]


def of_spider(
    name: str, found: Standing | None, working: Sequence[Holder], now: datetime
) -> Finding:
    """What the database says of a spider. working: the processes that run it now."""
    if found is None:
        if working:
            return ok(CHECK, f"the first one is running on {_listed(working)}", of=name)
        return ok(CHECK, f"none so far: scrapy crawl {name}", of=name)
    due = _due(found, now)
    if working:
        return ok(CHECK, f"running on {_listed(working)}; {due}", of=name)
    ago = span((now - found.latest).total_seconds())
    if found.finished is not None:
        return _with_failures(name, f"ended {ago} ago ({found.reason}); {due}", found.fetches, now)
    todo = "nothing: the next run repairs the log; why it ended may stand in its log"
    return warning(CHECK, f"interrupted {ago} ago; {due}", todo, of=name)


def _listed(working: Sequence[Holder]) -> str:
    more = f" and {len(working) - MOST_SHOWN} more" if len(working) > MOST_SHOWN else ""
    return "; ".join(map(str, working[:MOST_SHOWN])) + more


def _with_failures(name: str, said: str, fetches: Fetches | None, now: datetime) -> Finding:
    """How a run ended, and what failed when something was fetched for the last time."""
    if fetches is None or not fetches.failed:
        return ok(CHECK, said, of=name)
    ago = span((now - fetches.at).total_seconds())
    share = fetches.failed / fetches.visits
    which = "all of" if share == 1 else f"{fetches.failed:,} of"
    said += f"; {which} {count(fetches.visits, 'page')} failed {ago} ago"
    if fetches.reason is not None:
        said += f", most often: {fetches.reason} ({fetches.url})"
    if share < MANY_FAILED:
        return ok(CHECK, said, of=name)
    # A site that is down keeps Freshet from nothing else: health checks go by the exit code.
    return warning(CHECK, said, f"scrapy targets {name} --errors lists them", of=name)


def _due(found: Standing, now: datetime) -> str:
    if found.since is None:
        return "nothing is due"
    more = " or more" if found.due == MOST else ""
    waits = span((now - found.since).total_seconds())
    return f"{count(found.due, 'target')}{more} due, the first since {waits}"
