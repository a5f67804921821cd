"""Crawl a shop and a blog on this machine for three simulated weeks: `make demo`.

The demo uses the site of the tests. Its clock and Freshet's move together, so a week takes a few
seconds. Everything else is the same as for a user: the same commands and the embedded MongoDB.
In the first week, every page is visited daily; then `scrapy replan` makes plans with half as many
requests. The site knows when its pages really changed, so the demo can measure the freshness.
With --web, the web app then shows the results until Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from crawler.utils.process import report_interrupts

if __name__ == "__main__":
    # Before the slow imports, during which users press Ctrl-C, too.
    report_interrupts("make demo")

import pymongo
from filelock import FileLock, Timeout
from rich.console import Console
from rich.table import Table

from crawler.config import Config
from schedules.evaluation.score import Totals
from tests.site import truth
from tests.site.running import RunningSite
from tests.site.world import START, World

ROOT = Path(__file__).resolve().parents[2]
DATABASE = "freshet_demo"
SHOP, BLOG = "demo-shop", "demo-blog"
NOON = START + timedelta(hours=12)
HOUR, DAY, WEEK = timedelta(hours=1), timedelta(days=1), timedelta(weeks=1)
WEEKS = 3
# Plans spread visits by URL: with a fixed port, the results are the same in every run.
PORT = 8027
# Port of `scrapy web`, unless another program uses it.
WEB_PORT = 8787
BUDGET = 96
# In production, cron starts a crawl every ten minutes.
CRON = timedelta(hours=3)
# Time after which the last run of a week has finished.
SOON = timedelta(minutes=10)
COUNTS = ("visits", "new", "changed", "unchanged", "not_modified", "gone")

console = Console(highlight=False, soft_wrap=True)


def main() -> int:
    """Run the demo; return exit code 1 if a command fails."""
    parser = argparse.ArgumentParser(prog="make demo", description="Run the demo.")
    help_of_web = "serve the results in the web app afterwards, until Ctrl-C"
    parser.add_argument("--web", action="store_true", help=help_of_web)
    options = parser.parse_args()
    _print_text(
        f"[bold]Freshet[/] crawls a shop and a blog on this machine for {WEEKS} simulated weeks. "
        "This takes about a minute."
    )
    began = float(os.environ.get("DEMO_BEGAN") or time.time())
    with (
        RunningSite("--port", str(PORT if is_free(PORT) else 0)) as site,
        tempfile.TemporaryDirectory() as folder,
    ):
        try:
            demo = Demo(site, Path(folder))
            with FileLock(Config.load().data_dir / "demo.lock", timeout=0):
                demo.run()
                console.print(f"\nThis took {time.time() - began:.0f} s, including installation.")
                if options.web:
                    demo.serve()
        except Timeout:
            # Each demo deletes the data of the one before.
            console.print(
                "make demo: another demo is running, or serves its results. Wait for it, or stop "
                "it with Ctrl-C in its terminal",
                style="red",
            )
            return 1
        except subprocess.CalledProcessError as failed:
            console.print(failed.stderr or failed.stdout, style="red", markup=False)
            return 1
    return 0


class Demo:
    """Hold the site, its site definition and Freshet's database."""

    def __init__(self, site: RunningSite, folder: Path) -> None:
        self.site, self.folder = site, folder
        self.wrapper = _wrapper(folder, site.url)
        self.uri = _run("db", "uri").strip()
        client: pymongo.MongoClient[dict[str, Any]] = pymongo.MongoClient(self.uri, tz_aware=True)
        self.db = client.get_default_database()

    def run(self) -> None:
        """Crawl all weeks and print the results."""
        for spider in (SHOP, BLOG):
            if self.db.targets.find_one({"spider": spider}):
                _run("forget", spider, "--yes")
        self._first_week()
        for week in range(1, WEEKS):
            self._planned_week(week)
        _show_passes(list(self.db.runs.find({"spider": {"$in": [SHOP, BLOG]}})))
        self._show_freshness()
        self._show_plan()
        self._show_change()

    def serve(self) -> None:
        """Serve the web app at the end of the last week, until Ctrl-C or SIGTERM."""
        self._set_clock(NOON + WEEKS * WEEK + SOON)
        # Runs that are started in the app visit the site, which is on this machine.
        private = {"FRESHET_PRIVATE_HOSTS": self.site.url.removeprefix("http://")}
        port = str(WEB_PORT if is_free(WEB_PORT) else 0)
        command = [sys.executable, "-m", "scrapy", "web", "--port", port, "--no-service", "--json"]
        with subprocess.Popen(
            command, cwd=ROOT, env=_environment() | private, text=True, stdout=subprocess.PIPE
        ) as process:

            def stop(*_: object) -> None:
                process.terminate()

            # The terminal sends SIGINT to this process, to the app and to the site.
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, stop)
            assert process.stdout is not None
            line = process.stdout.readline()
            if line:
                url = json.loads(line)["url"]
                console.print(f"\nWhat changed in these weeks: [bold]{url}changes[/]")
                console.print("Press Ctrl-C to stop it. The data stays in the database.")
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command, stderr="")

    def _first_week(self) -> None:
        why = "Freshet visits every page daily, whether it changes or not."
        _headline("Week 1: no plan yet.", why)
        self._set_clock(NOON)
        self._crawl(f"wrapper={self.wrapper}")
        self._crawl(
            f"name={BLOG}",
            f"start_urls={self.site.url}/blog/",
            "list_pages=/blog/(page/|tag/(?P<category>[^/]+)/)",
            r"item_pages=/blog/\d{4}/",
        )
        with _compiling():
            self._passes(0, DAY)

    def _planned_week(self, week: int) -> None:
        self._set_clock(NOON + week * WEEK + SOON)
        if week == 1:
            why = "Freshet has learned how often and when each page changes."
            _headline("Week 2: a plan with half the requests.", why)
        else:
            _headline(f"Week {week + 1}: a new plan.", f"The estimates now include week {week}.")
        command = ("replan", "--spider", SHOP, "--budget", f"{BUDGET}/day")
        _show_command(*command)
        with console.status("planning"):
            output = _run(*command)
        shown = output if week == 1 else output[output.index("updated") :]
        console.print(shown, markup=False, end="")
        self._passes(week, CRON)

    def _crawl(self, *arguments: str) -> None:
        """Make the first crawl run, as a user would."""
        options = [word for argument in arguments for word in ("-a", argument)]
        # The demo's own server does not need throttling.
        command = ("crawl", "site", *options, "-s", "AUTOTHROTTLE_ENABLED=0")
        _show_command(*command)
        with console.status("crawling"):
            _run(*command)

    def _passes(self, week: int, every: timedelta) -> None:
        """Make the remaining runs of a week."""
        begin = NOON + week * WEEK
        words = [
            str(self.site.clock), (begin + every).isoformat(), (begin + WEEK).isoformat(),
            str(every / HOUR), SHOP, f"wrapper={self.wrapper}",
        ]  # fmt: skip
        command = [sys.executable, "-m", "tests.site.runs", *words]
        errors = self.folder / "errors.txt"
        with (
            console.status("") as status,
            errors.open("w", encoding="utf-8") as stderr,
            subprocess.Popen(
                command, cwd=ROOT, env=_environment(), text=True, stdout=subprocess.PIPE,
                stderr=stderr,
            ) as process,
        ):  # fmt: skip
            assert process.stdout is not None
            for line in process.stdout:
                now = datetime.fromisoformat(line.strip())
                status.update(f"week {week + 1}: {now:%A %H:%M}, scrapy crawl")
        if process.returncode:
            messages = errors.read_text(encoding="utf-8")
            raise subprocess.CalledProcessError(process.returncode, command, stderr=messages)

    def _set_clock(self, now: datetime) -> None:
        self.site.set_clock(now)
        os.environ["FRESHET_CLOCK_OFFSET_HOURS"] = str((now - datetime.now(UTC)) / HOUR)

    def _show_freshness(self) -> None:
        """Print the cost and the freshness of week 1 and of the later weeks."""
        columns = ("week", "visits", "requests a day", "freshness", "delay of a change")
        title = "\nCost and freshness, compared with the real changes of the site"
        table = Table(*columns, title=title, title_justify="left")
        for column in table.columns[2:]:
            column.justify = "right"
        table.add_row("1", "daily", *_figures(self._measured(0, 1)))
        table.add_row("2, 3", "with a plan", *_figures(self._measured(1, WEEKS - 1)), style="bold")
        table.add_row("2, 3", "daily crawling", *_figures(self._measured(1, WEEKS - 1, daily=True)))
        console.print(table)
        _print_text(
            "For the pages that existed when these weeks began. Freshness is the share of time in "
            "which a copy equals its page. The last row is computed, not measured.\n"
        )

    def _measured(self, week: int, weeks: int, *, daily: bool = False) -> Totals:
        """Return the results of `weeks` weeks, with the real visits or daily ones."""
        begin = NOON + week * WEEK + SOON
        end = begin + weeks * WEEK
        world, visits = World(), {}
        for target in self.db.targets.find({"spider": SHOP, "first_seen": {"$lte": begin}}):
            path = urlsplit(target["url"]).path
            if world.content(path, begin) is not None:
                visits[path] = [] if daily else self._visits(target["url"], begin, end)
        if daily:
            noons = [begin - SOON + DAY * day for day in range(1, 7 * weeks + 1)]
            visits = dict.fromkeys(visits, noons)
        return truth.totals(world, visits, begin, end)

    def _visits(self, url: str, begin: datetime, end: datetime) -> list[datetime]:
        query = {"spider": SHOP, "target": url, "at": {"$gt": begin, "$lte": end}}
        return [row["at"] for row in self.db.visits.find(query, {"at": 1})]

    def _show_plan(self) -> None:
        chart = Config.load().data_dir / "demo-week.png"
        if chart.is_relative_to(ROOT):
            chart = chart.relative_to(ROOT)
        command = ("plan", SHOP, "--calendar", str(chart))
        _show_command(*command)
        with console.status("drawing"):
            output = _run(*command)
        console.print(output, markup=False)

    def _show_change(self) -> None:
        changed = {"spider": SHOP, "outcome": "changed", "diff_size": {"$gt": 0}}
        row = self.db.visits.find_one(changed | {"target": {"$regex": "/item/"}})
        if row is None:
            return
        _show_command("history", row["target"], "--diff")
        console.print(_run("history", row["target"], "--diff"), markup=False)
        console.print("[bold]Next steps:[/]")
        for line in (
            f"export FRESHET_DATABASE={DATABASE}",
            f".venv/bin/scrapy explain {row['target']}",
            f".venv/bin/scrapy changes {SHOP} --limit 10",
            "make demo WEB=1           # repeats the demo, then serves the web app",
            ".venv/bin/scrapy db stop  # stops the database",
        ):
            console.print(f"  {line}", markup=False)


def _figures(totals: Totals) -> list[str]:
    """Round to the digits that do not depend on the speed of the machine."""
    of_pages = totals.by_page
    return [
        f"{totals.load.per_day:.0f}", f"{of_pages.freshness:.2f}",
        f"{of_pages.delay_all_h:.0f} h",
    ]  # fmt: skip


def _show_passes(runs: list[dict[str, Any]]) -> None:
    """Print the results of the runs, by week and site."""
    columns = ("week", "site", "runs", "fetched", "new", "changed", "same", "304", "gone")
    table = Table(*columns, title="\nResults of the runs", title_justify="left")
    for column in table.columns[2:]:
        column.justify = "right"
    for week in range(WEEKS):
        for spider in (SHOP, BLOG):
            own = [run for run in runs if run["spider"] == spider and _week_of(run) == week]
            sums = (sum(run["counts"].get(name, 0) for run in own) for name in COUNTS)
            if own:
                name = spider.removeprefix("demo-")
                table.add_row(str(week + 1), name, str(len(own)), *map(str, sums))
    console.print(table)


def _week_of(run: dict[str, Any]) -> int:
    """Return the week of a run; the run at the end of a week belongs to that week."""
    after: timedelta = run["started"] - NOON - SOON
    return max(0, after // WEEK)


@contextmanager
def _compiling() -> Iterator[None]:
    """Compile the planner's inner loops to machine code during the first week; done once."""
    command = [sys.executable, "-m", "scrapy", "replan", "--spider", SHOP, "--dry-run"]
    with subprocess.Popen(
        command, cwd=ROOT, env=_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as planning:
        yield
        with console.status("compiling the planner (done once)"):
            planning.wait()


def _wrapper(folder: Path, url: str) -> Path:
    text = (Path(__file__).parent / "demo_shop.toml").read_text(encoding="utf-8")
    path = folder / "shop.toml"
    path.write_text(re.sub(r'"http://127.0.0.1/".*', f'"{url}/"]', text), encoding="utf-8")
    return path


def _run(*arguments: str) -> str:
    command = [sys.executable, "-m", "scrapy", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=_environment(), capture_output=True, text=True, check=True
    ).stdout


def _environment() -> dict[str, str]:
    hidden = ("MONGO_URI", "FRESHET_MONGO_URI")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    columns = console.width if console.is_terminal else 100
    return environment | {"FRESHET_DATABASE": DATABASE, "COLUMNS": str(columns)}


def is_free(port: int) -> bool:
    """Return whether no program listens at a port of this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _headline(title: str, why: str) -> None:
    _print_text(f"\n[bold]{title}[/] {why}")


def _print_text(text: str) -> None:
    """Wrap a text by words on a terminal. Commands stay whole lines, which can be copied."""
    console.print(text, soft_wrap=not console.is_terminal)


def _show_command(*words: str) -> None:
    console.print(f"$ scrapy {shlex.join(words)}", style="dim", markup=False)


if __name__ == "__main__":
    sys.exit(main())
