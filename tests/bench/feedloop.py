"""Feeds that replay a trace, crawled and planned as with cron: `make bench ARGS=--feeds`.

A server replays the publication times of real posts; its clock and Freshet's advance together. The
feeds are imported, visited once and planned; then runs follow at regular intervals, with a daily
replan. The collected posts are compared with the trace, with the posts that visits exactly at the
planned times would have collected, and with the prediction of `scrapy simulate feeds`.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pymongo
from rich.console import Console
from rich.table import Table

from crawler.config import Config
from crawler.storage.embedded import EmbeddedServer
from crawler.storage.targets import planned_of
from schedules.calendar import next_visit
from schedules.evaluation.score import CollectedTotals, collected
from schedules.history import Times
from tests.site import feeds as site
from tests.site.running import RunningFeeds

ROOT = Path(__file__).resolve().parents[2]
HOUR, DAY, SOON = timedelta(hours=1), timedelta(days=1), timedelta(minutes=2)
LEARNED = timedelta(days=21)
SPLIT = datetime(2024, 1, 22, tzinfo=UTC)
FEEDS, FETCHES_A_DAY = 1000, 0.5
CLOCK = ZoneInfo("UTC")
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Loop:
    """The measured loop. every: interval between runs; per_day: total fetches of all feeds."""

    posts: Path
    feeds: Path
    days: int
    every: timedelta
    per_day: int

    @property
    def stop(self) -> datetime:
        """Return the end of the loop."""
        return SPLIT + self.days * DAY


def run(days: int = 1, every_minutes: int = 30, trace: Path | None = None) -> int:
    """Run the loop and print the results. trace: a folder with posts.csv.gz and feeds.csv."""
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as name:
        folder = Path(name)
        if trace is None:
            trace = folder
            write_trace(folder, np.random.default_rng(7))
        posts, feeds = trace / "posts.csv.gz", trace / "feeds.csv"
        count = sum(1 for _ in site.rows(feeds))
        every, per_day = timedelta(minutes=every_minutes), round(count * FETCHES_A_DAY)
        loop = Loop(posts, feeds, days, every, per_day)
        server = EmbeddedServer.of(Config.load(data_dir=folder / "data", mongo_uri=None))
        try:
            with RunningFeeds(posts, feeds, SPLIT) as running:
                played = Played(loop, running, folder, server.start())
                _show(played.played(), played.simulated())
        finally:
            server.stop()
    return 0


class Played:
    """The loop, with its own site and database."""

    def __init__(self, loop: Loop, running: RunningFeeds, folder: Path, uri: str) -> None:
        self.loop, self.running, self.folder = loop, running, folder
        client: pymongo.MongoClient[Row] = pymongo.MongoClient(uri, tz_aware=True)
        self.db = client.get_default_database()
        self.env = os.environ | {
            "MONGO_URI": uri, "FRESHET_DATA_DIR": str(folder / "data"),
            "FRESHET_THROTTLE_START_SECONDS": "0", "FRESHET_PROGRESS": "0",
        }  # fmt: skip
        self.planned: list[tuple[datetime, list[Row]]] = []

    def played(self) -> dict[str, CollectedTotals]:
        """Run the loop; return the results by name."""
        self._begin()
        moment = SPLIT
        while moment < self.loop.stop:
            if (moment - SPLIT) % DAY == timedelta(0):
                self._replan(moment)
            moment += self.loop.every
            self.running.set_clock(moment)
            self._scrapy(moment, "crawl", "feeds", *QUICK)
        stored = self.db.posts.count_documents({"first_seen": {"$gt": SPLIT + SOON}})
        figures = {
            "crawl": self._scored(self._visits()),
            "planned times": self._scored(self._foretold()),
        }
        if stored != figures["crawl"].got:
            raise RuntimeError(f"{stored} posts stored, but {figures['crawl'].got} visited")
        return figures

    def _begin(self) -> None:
        count = sum(1 for _ in site.rows(self.loop.feeds))
        listed = self.folder / "feeds.txt"
        listed.write_text("".join(f"{self.running.url}/feed/{k}.xml\n" for k in range(count)))
        self._scrapy(SPLIT, "feeds", "import", str(listed))
        self._scrapy(SPLIT, "crawl", "feeds", *QUICK)

    def _replan(self, moment: datetime) -> None:
        budget = f"--budget={self.loop.per_day}/day"
        # The previous run's clock is some seconds ahead.
        moment += SOON
        self._scrapy(moment, "replan", budget, "--daily-cap=0")
        fields = {"url": 1, "plan": 1, "next_visit": 1}
        self.planned.append((moment, list(self.db.targets.find({"kind": "feed"}, fields))))

    def _scrapy(self, moment: datetime, *words: str) -> None:
        hours = (moment - datetime.now(UTC)) / HOUR
        env = self.env | {"FRESHET_CLOCK_OFFSET_HOURS": str(hours)}
        command = [sys.executable, "-m", "scrapy", *words]
        subprocess.run(command, cwd=ROOT, env=env, check=True, capture_output=True)

    def _visits(self) -> dict[int, list[datetime]]:
        """Return the times at which each feed was visited after the first run."""
        visits: dict[int, list[datetime]] = {}
        for visit in self.db.visits.find({"at": {"$gt": SPLIT + SOON}}):
            # A run takes some seconds, but the site's clock stands still during a run.
            passed = (visit["at"] - SPLIT) // self.loop.every
            visits.setdefault(_number(visit["target"]), []).append(SPLIT + passed * self.loop.every)
        return visits

    def _foretold(self) -> dict[int, list[datetime]]:
        """Return the planned visits; each plan is valid until the next one."""
        visits: dict[int, list[datetime]] = {}
        ends = [moment for moment, _ in self.planned[1:]] + [self.loop.stop]
        for (begin, targets), end in zip(self.planned, ends, strict=True):
            for target in targets:
                if (plan := planned_of(target.get("plan"))) is None:
                    continue
                at = next_visit(plan.schedule, CLOCK, begin)
                while at <= end:
                    visits.setdefault(_number(target["url"]), []).append(at)
                    at = next_visit(plan.schedule, CLOCK, at)
        return visits

    def simulated(self) -> Row:
        """Return the results of `scrapy simulate feeds` for the same days and number of fetches."""
        loop = self.loop
        words = ("--posts", loop.posts, "--feeds", loop.feeds, "--split", f"{SPLIT:%Y-%m-%d}")
        span = ("--from", f"{SPLIT - LEARNED:%Y-%m-%d}", "--to", f"{loop.stop:%Y-%m-%d}")
        visits = ("--visits", loop.per_day * loop.days, "--closed-loop", "--json")
        command = [sys.executable, "-m", "scrapy", "simulate", "feeds", *words, *span, *visits]
        done = subprocess.run(
            list(map(str, command)), cwd=ROOT, env=self.env, check=True, capture_output=True
        )
        result: Row = json.loads(done.stdout)["results"][0]
        return result

    def _scored(self, visits: dict[int, list[datetime]]) -> CollectedTotals:
        posts, windows = site.read(self.loop.posts, self.loop.feeds)
        times = dict(enumerate(posts))
        n = len(posts)
        window = np.array(windows)
        return collected(
            _times(times, n), _times(visits, n), window, _hours(SPLIT), _hours(self.loop.stop)
        ).totals()


QUICK = ("-s", "AUTOTHROTTLE_ENABLED=0", "-s", "CONCURRENT_REQUESTS_PER_DOMAIN=16")


def _number(url: str) -> int:
    return int(url.rpartition("/")[2].removesuffix(".xml"))


def _hours(moment: datetime) -> float:
    return moment.timestamp() / 3600


def _times(of: dict[int, list[datetime]], n: int) -> Times:
    rows = [sorted(map(_hours, of.get(k, ()))) for k in range(n)]
    first = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    return Times(first, np.array([at for row in rows for at in row]))


def _show(figures: dict[str, CollectedTotals], simulated: Row) -> None:
    table = Table("", "visits", "collected", "missed %", "uncollected %", "lost %", "delay h")
    for name, one in figures.items():
        table.add_row(
            name, f"{one.visits:,}", f"{one.got:,} of {one.posts:,}", f"{one.missed_pct:.1f}",
            f"{one.uncollected_pct:.1f}", f"{one.lost_pct:.1f}", f"{one.delay_h:.1f}",
        )  # fmt: skip
    percent = (f"{simulated[f'{name}_pct']:.1f}" for name in ("missed", "uncollected", "lost"))
    table.add_row(
        "simulation", f"{simulated['spent']:,}",
        f"{simulated['collected']:,} of {simulated['posts']:,}", *percent,
        f"{simulated['delay_hours']:.1f}",
    )  # fmt: skip
    Console(width=110).print(table)


def write_trace(folder: Path, rng: np.random.Generator) -> None:
    """Write a synthetic trace: feeds post in bursts, more by day than by night."""
    begin, hours = SPLIT - LEARNED, 42 * 24
    with (
        (folder / "feeds.csv").open("w", newline="") as feeds,
        gzip.open(folder / "posts.csv.gz", "wt", newline="") as posts,
    ):
        feed_rows, post_rows = csv.writer(feeds), csv.writer(posts)
        feed_rows.writerow(["feed_id", "window_size_S"])
        post_rows.writerow(["feed_id", "posted_at_utc"])
        for k in range(FEEDS):
            feed_rows.writerow([k, int(rng.choice([10, 15, 20]))])
            for at in posts_of(rng, hours):
                post_rows.writerow([k, (begin + at * HOUR).isoformat()])


def posts_of(rng: np.random.Generator, hours: int) -> list[float]:
    """Return the hours at which a feed posts."""
    per_hour = rng.lognormal(-0.8, 1.2) / 24
    bursts = rng.poisson(per_hour * hours / 2)
    days = rng.integers(0, hours // 24, bursts) * 24.0
    at = days + rng.normal(rng.uniform(8, 20), 3, bursts) % 24
    times = [a + rng.exponential(0.5) * j for a in at for j in range(1 + rng.geometric(0.5))]
    return sorted(a for a in times if a < hours)
