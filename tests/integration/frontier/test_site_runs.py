"""The runs of the demo: the same as with `scrapy crawl`, at simulated times."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from tests.conftest import SITE_ITEMS
from tests.integration.demo import shop_wrapper
from tests.integration.harness import ROOT, Db, Freshet
from tests.site.running import RunningSite
from tests.site.world import START

pytestmark = pytest.mark.soak

DAY = timedelta(days=1)


def runs_until(freshet: Freshet, site: RunningSite, until: str, wrapper: str) -> list[datetime]:
    words = [str(site.clock), "2026-01-05T12:00", until, "12", "shop", f"wrapper={wrapper}"]
    command = [sys.executable, "-m", "tests.site.runs", *words]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | freshet.env, capture_output=True, text=True, check=True
    )
    return [datetime.fromisoformat(line) for line in done.stdout.splitlines()]


def test_demo_runs_only_when_targets_are_due(
    freshet: Freshet, site: RunningSite, database: Db
) -> None:
    wrapper = shop_wrapper(freshet, site, list_interval_hours=23, item_interval_hours=23)
    site.set_clock(START)
    freshet.crawl(wrapper, hours=(START - datetime.now(UTC)) / timedelta(hours=1))
    starts = runs_until(freshet, site, "2026-01-08T00:00", str(wrapper))
    # Nothing is due at noon of the first day; pages found at night are due by the next night.
    assert starts == [START + day * DAY for day in (1, 2, 3)]
    at = [visit["at"] for visit in database.visits.find({"at": {"$gt": START + DAY / 2}})]
    assert len(at) > 3 * SITE_ITEMS * 0.9
    for visit in at:
        assert any(start <= visit < start + timedelta(minutes=5) for start in starts)
    assert database.visits.count_documents({"outcome": "changed"}) > 0, (
        "the site's clock advances too"
    )
