"""`make demo`: crawls a shop and a blog on this machine, lets days pass, crawls again.

The site is the one of the tests; its clock and Freshet's move together, so that a week of a site's
life passes in half a minute. Everything else is what a user runs: the same commands, the embedded
MongoDB.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pymongo
from rich.console import Console
from rich.table import Table

from tests.site.running import RunningSite
from tests.site.world import START, World

ROOT = Path(__file__).resolve().parents[2]
DATABASE = "freshet_demo"
# The last pass is fourteen minutes after the one before: cron may run as often as it likes.
SHOP_DAYS = (0, 1, 2, 3, 5, 7, 7.01)
BLOG_DAYS = (0, 7)
SHOP, BLOG = "demo-shop", "demo-blog"

console = Console(highlight=False, soft_wrap=True)


def main() -> int:
    """Run the demonstration; exit code 1 if a command fails."""
    console.print(
        "[bold]Freshet[/] crawls a shop and a blog on this machine for a simulated week.\n"
    )
    with RunningSite() as site, tempfile.TemporaryDirectory() as folder:
        try:
            _forget()
            wrapper = _wrapper(Path(folder), site.url)
            rows = [row for day in SHOP_DAYS for row in _day(site, wrapper, day)]
            _show_passes(rows)
            _show_truth(site, rows)
            _show_change(_run("db", "uri").strip())
        except subprocess.CalledProcessError as failed:
            console.print(failed.stderr or failed.stdout, style="red", markup=False)
            return 1
    return 0


def _day(site: RunningSite, wrapper: Path, day: float) -> list[dict[str, Any]]:
    now = START + timedelta(days=day, hours=12)
    site.set_clock(now)
    rows = [_crawl(SHOP, day, now, "-a", f"wrapper={wrapper}")]
    if day in BLOG_DAYS:
        rows.append(
            _crawl(
                BLOG, day, now,
                "-a", f"name={BLOG}",
                "-a", f"start_urls={site.url}/blog/",
                "-a", "list_pages=/blog/(page/|tag/(?P<category>[^/]+)/)",
                "-a", r"item_pages=/blog/\d{4}/",
                "-s", "AUTOTHROTTLE_ENABLED=0",
            )
        )  # fmt: skip
    return rows


def _crawl(spider: str, day: float, now: datetime, *arguments: str) -> dict[str, Any]:
    if day == 0:
        console.print("$ scrapy crawl site " + " ".join(map(_quoted, arguments)), style="dim")
    offset_hours = (now - datetime.now(UTC)).total_seconds() / 3600
    os.environ["FRESHET_CLOCK_OFFSET_HOURS"] = str(offset_hours)
    _run("crawl", "site", *arguments)
    counts = _database(_uri()).runs.find_one({"spider": spider}, sort=[("started", -1)])
    assert counts is not None
    return {"spider": spider, "day": day, "visits": 0, **counts["counts"]}


def _show_passes(rows: list[dict[str, Any]]) -> None:
    columns = (
        "site",
        "day",
        "targets",
        "fetched",
        "new",
        "changed",
        "same",
        "304",
        "gone",
        "saved",
    )
    table = Table(*columns, title="\nWhat each pass found", title_justify="left")
    names = ("targets", "visits", "new", "changed", "unchanged", "not_modified", "gone")
    for row in rows:
        counts = [row.get(name, 0) for name in names]
        saved = max(0, row["targets"] - row["visits"])
        table.add_row(
            row["spider"].removeprefix("demo-"), f"{row['day']:g}", *map(str, counts), str(saved)
        )
    console.print(table)


def _show_truth(site: RunningSite, rows: list[dict[str, Any]]) -> None:
    first, last = (START + timedelta(days=day, hours=12) for day in (SHOP_DAYS[0], SHOP_DAYS[-1]))
    world = World()
    truth = sum(len(world.changes(item.path, first, last)) for item in world.items)
    passes = [row for row in rows if row["spider"] == SHOP]
    seen = sum(row.get("changed", 0) for row in passes)
    fetched, bodies = (
        sum(row.get(name, 0) for row in passes) for name in ("visits", "not_modified")
    )
    console.print(
        f"\nThe shop changed {truth} times in the week; the log holds {seen} changed visits "
        f"(changes between two visits are one).\n{bodies} of {fetched} requests were answered "
        "with 304 and cost no body; what was not due cost nothing.\n"
    )


def _show_change(uri: str) -> None:
    changed = {"spider": SHOP, "outcome": "changed", "diff_size": {"$gt": 0}}
    row = _database(uri).visits.find_one(changed | {"target": {"$regex": "/item/"}})
    if row is None:
        return
    for arguments in (("targets", SHOP), ("history", row["target"], "--diff")):
        console.print(f"$ scrapy {' '.join(arguments)} -s FRESHET_DATABASE={DATABASE}", style="dim")
        console.print(_run(*arguments), markup=False)
    query = {"spider": SHOP, "outcome": "changed"}
    console.print("Ask MongoDB yourself:", style="bold")
    console.print(f'  mongosh "$(.venv/bin/scrapy db uri -s FRESHET_DATABASE={DATABASE})"')
    console.print(f"  db.visits.find({json.dumps(query)}).sort({{at: -1}})")
    console.print(f"  → {_database(uri).visits.count_documents(query)} changed visits\n")
    console.print("Stop the database with .venv/bin/scrapy db stop", style="dim")


def _wrapper(folder: Path, url: str) -> Path:
    text = (Path(__file__).parent / "demo_shop.toml").read_text(encoding="utf-8")
    path = folder / "shop.toml"
    path.write_text(re.sub(r'"http://127.0.0.1/".*', f'"{url}/"]', text), encoding="utf-8")
    return path


def _forget() -> None:
    for spider in (SHOP, BLOG):
        if _database(_uri()).targets.find_one({"spider": spider}):
            _run("forget", spider, "--yes")


def _uri() -> str:
    return _run("db", "uri").strip()


def _database(uri: str) -> Any:
    client: pymongo.MongoClient[dict[str, Any]] = pymongo.MongoClient(uri, tz_aware=True)
    return client.get_default_database()


def _run(*arguments: str) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "MONGO_URI"}
    environment |= {"FRESHET_DATABASE": DATABASE, "COLUMNS": "100"}
    command = [sys.executable, "-m", "scrapy", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    ).stdout


def _quoted(argument: str) -> str:
    plain: Sequence[str] = re.findall(r"[\w@%+=:,./-]+", argument)
    return argument if plain == [argument] else f"'{argument}'"


if __name__ == "__main__":
    sys.exit(main())
