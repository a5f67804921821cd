"""A shop whose lists show prices: three simulated weeks in a closed loop, with real crawls."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.integration.harness import ROOT, Db, Freshet, Row, _clean
from tests.site import truth
from tests.site.running import RunningSite
from tests.site.world import START, World

pytestmark = pytest.mark.soak
NAME = "demo-shop"
NOON = START + timedelta(hours=12)
HOUR, DAY, WEEK = timedelta(hours=1), timedelta(days=1), timedelta(weeks=1)
SOON = timedelta(minutes=10)
# A fifth of the pages a day. With as many requests, but without the lists in the plan, copies are
# current for 0.92 of the time, and changes are found after 32 hours.
BUDGET = 40
DEFINITION = Path(__file__).parents[2] / "site" / "demo_shop.toml"


class Shop:
    """Follow plans of the shop at simulated times."""

    def __init__(self, site: RunningSite, freshet: Freshet, db: Db) -> None:
        self.site, self.freshet, self.db = site, freshet, db
        self.world = World(priced=True)
        self.definition = freshet.folder / "shop.toml"
        text = re.sub(r'"http://127.0.0.1/".*', f'"{site.url}/"]', DEFINITION.read_text())
        self.definition.write_text(text, encoding="utf-8")

    def begin(self) -> None:
        """Crawl the shop for the first time."""
        self.site.set_clock(NOON)
        self.freshet.crawl(self.definition, hours=self._offset(NOON))

    def follow(self, since: datetime, until: datetime, every: timedelta) -> None:
        """Make the runs of a period."""
        words = [
            str(self.site.clock), (since + every).isoformat(), until.isoformat(),
            str(every / HOUR), NAME, f"wrapper={self.definition}",
        ]  # fmt: skip
        command = [sys.executable, "-m", "tests.site.runs", *words]
        subprocess.run(
            command, cwd=ROOT, env=_clean() | self.freshet.env, check=True, capture_output=True
        )

    def replan(self, now: datetime, *options: object) -> Row:
        """Return the report of a replan."""
        self.site.set_clock(now)
        result = self.freshet("replan", "--json", *options, hours=self._offset(now))
        assert result.code == 0, result.err
        (report,) = json.loads(result.out)
        return dict(report)

    def freshness(self, since: datetime, until: datetime) -> tuple[float, float]:
        """Return freshness and delay of changes in hours, of pages that exist all along."""
        there = [
            item for item in self.world.items
            if item.appears < since and (item.ends is None or item.ends > until)
        ]  # fmt: skip
        query: Row = {"spider": NAME, "at": {"$gt": since, "$lte": until}}
        visits = {
            item.path: [
                row["at"]
                for row in self.db.visits.find(query | {"target": self.site.url + item.path})
            ]
            for item in there
        }
        of_pages = truth.totals(self.world, visits, since, until).by_page
        return of_pages.freshness, of_pages.delay_all_h

    @staticmethod
    def _offset(now: datetime) -> float:
        return (now - datetime.now(UTC)) / HOUR


@pytest.fixture
def shop(freshet: Freshet, database: Db) -> Iterator[Shop]:
    with RunningSite("--priced") as site:
        yield Shop(site, freshet, database)


@pytest.mark.usefixtures("warm")
def test_lists_that_show_prices_replace_most_visits_of_items(shop: Shop) -> None:
    shop.begin()
    shop.follow(NOON, NOON + WEEK, DAY)
    reports = []
    for day in range(0, 14, 2):
        begin = NOON + WEEK + day * DAY
        budget = ("--budget", f"{BUDGET}/day") if day == 0 else ()
        reports.append(shop.replan(begin + SOON, *budget))
        shop.follow(begin, begin + 2 * DAY, 3 * HOUR)

    first, last = reports[0], reports[-1]
    shown = [
        row["plan"]["shown"] for row in shop.db.targets.find({"plan.shown": {"$type": "number"}})
    ]
    assert sum(shown) / len(shown) > 0.9, "all changes are shown"
    assert len(shown) > 150
    for report in (first, last):
        assert report["totals"]["lists_per_day"] > 5
        assert report["totals"]["requests_per_day"] == pytest.approx(BUDGET, rel=0.03)
    since, until = NOON + 2 * WEEK, NOON + 3 * WEEK
    visits: Row = {"spider": NAME, "at": {"$gt": since, "$lte": until}}
    assert shop.db.visits.count_documents(visits) / 7 < 1.15 * BUDGET
    assert shop.db.visits.count_documents(visits | {"hint": "list"}) > 20
    freshness, delay_hours = shop.freshness(since, until)
    assert freshness > 0.93
    assert delay_hours < 24
