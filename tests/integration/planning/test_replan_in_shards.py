"""`scrapy replan --engine`: shards, processes and Dask give the same plan as one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from crawler.items import Kind
from tests.integration.harness import Db, Freshet, Row
from tests.integration.inside import in_json, run
from tests.integration.known_pages import HOUR, NOW, clock, never_seen, page, put, spread
from tests.integration.planning.test_silence import SHOP, regular, shop, shop_of_fields

Stored = tuple[Db, str]
pytestmark = [pytest.mark.usefixtures("warm"), pytest.mark.soak]
PROCESSES = ("--engine", "processes")
BUDGET = ("--budget", "60/day")
MAX_SECONDS = 300
# Steps of 40 shards take more tasks than preparing the workers does.
MANY_TASKS = 20


def pages() -> list[Row]:
    """Return pages of two sites in several categories, including unvisited ones."""
    rows = []
    for i in range(90):
        spider = ("shop", "news")[i % 2]
        url = f"https://{spider}.example/item/{i}"
        kind = Kind.LIST if i % 10 == 0 else Kind.ITEM
        changes = spread(i % 7, 8 + i % 9)[: i % 13]
        rows.append(page(url, changes, spider=spider, kind=kind, categories=[f"c{i % 3}"]))
    return [*rows, *(never_seen(f"https://shop.example/new/{i}") for i in range(7))]


def planned(freshet: Freshet, *args: object) -> Row:
    """Run a replan at NOW, and return its report."""
    (report,) = list[Row](in_json(freshet, "replan", *args, hours=clock()))
    return report


def schedules(db: Db) -> dict[str, Any]:
    """Return the plan of each target without the plan id."""
    return {
        row["_id"]: {name: value for name, value in row["plan"].items() if name != "id"}
        for row in db.targets.find()
    }


def comparable(report: Row) -> Row:
    """Return a report without its times."""
    times = ("at", "seconds", "planning_seconds", "warnings")
    return {name: value for name, value in report.items() if name not in times}


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        (("--budget", "60/day"), (1, 7)),
        (("--budget", "90/day", "--daily-cap", "95/day", "--hourly-cap", "5/hour"), (3,)),
        (("--freshness", "0.5"), (7,)),
    ],
    ids=["budget", "caps", "goal"],
)
def test_processes_give_the_same_plan_as_one_process(
    stored: Stored, freshet: Freshet, options: tuple[str, ...], numbers: tuple[int, ...]
) -> None:
    db, uri = stored
    put(db, uri, pages())
    expected = planned(freshet, *options)
    plan = schedules(db)
    for shards in numbers:
        db.plans.delete_many({})
        db.targets.update_many({}, {"$unset": {"plan": ""}})
        made = planned(freshet, *options, *PROCESSES, "--shards", shards)
        assert comparable(made) == comparable(expected)
        assert schedules(db) == plan
    # A replan of an unchanged history changes nothing.
    again = planned(freshet, *PROCESSES)
    assert (again["updated"], again["budget_kept"]) == (0, True)
    assert schedules(db) == plan


def test_processes_raise_the_same_alarms_as_one_process(stored: Stored, freshet: Freshet) -> None:
    db, uri = stored
    # A few silent pages and many silent fields of one site, and many silent pages of the other.
    rows = shop_of_fields(stopped=20)
    rows[30:32] = shop(stopped=32)[30:32]
    news = [page(f"https://news.example/{i}", regular(8 if i < 20 else 21), spider="news",
                 visited_at=NOW - HOUR) for i in range(60)]  # fmt: skip
    put(db, uri, [*rows, *news])

    def raised(*engine: object) -> list[Row]:
        db.alarms.delete_many({})
        report = planned(freshet, "--budget", "200/day", *engine)
        assert not [text for text in report["warnings"] if "silent" in text]
        alarms = list(db.alarms.find({"ended_at": None}, {"at": 0}).sort("_id"))
        return [row | {"chance": round(row["chance"], 6)} for row in alarms]

    expected = raised()
    found = sorted((row["spider"], row["target"], row.get("field", "")) for row in expected)
    assert found == [
        ("news", "", ""), ("shop", "", "stock"), ("shop", f"{SHOP}/30", ""),
        ("shop", f"{SHOP}/31", ""),
    ]  # fmt: skip
    for shards in (1, 5):
        assert raised(*PROCESSES, "--shards", shards) == expected
    raised(*PROCESSES, "--dry-run")
    assert db.alarms.count_documents({}) == 0
    # Alarms end if their cause is gone.
    put_again = shop_of_fields(stopped=0)
    db.targets.delete_many({"spider": "shop"})
    db.targets.insert_many(put_again)
    assert [row["spider"] for row in raised(*PROCESSES, "--shards", 3)] == ["news"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Yield a Dask cluster with two workers on this machine, which starts lost ones again."""
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=":0"
    ) as cluster:
        yield cluster


def engine_of(cluster: Any) -> tuple[str, str]:
    """Return the options for a cluster."""
    return "--engine", str(cluster.scheduler_address).replace("tcp://", "dask://")


def test_dask_gives_the_same_plan_as_one_process(
    stored: Stored, freshet: Freshet, cluster: Any
) -> None:
    db, uri = stored
    put(db, uri, pages())
    capped = (*BUDGET, "--hourly-cap", "4/hour")
    expected = planned(freshet, *capped)
    plan = schedules(db)
    db.plans.delete_many({})
    db.targets.update_many({}, {"$unset": {"plan": ""}})
    made = planned(freshet, *capped, *engine_of(cluster), "--shards", 5)
    assert comparable(made) == comparable(expected)
    assert schedules(db) == plan


def test_killed_dask_worker_keeps_the_old_plan(
    stored: Stored, freshet: Freshet, cluster: Any
) -> None:
    def worker(_: int) -> int | None:
        """Return a worker once the cluster has run some steps."""
        is_running = len(cluster.scheduler.tasks) > MANY_TASKS
        return int(cluster.workers[1].process.pid) if is_running else None

    message = outcome_of_kill(stored, freshet, engine_of(cluster), worker)
    assert "was lost: the old plan stays in effect" in message


def test_killed_process_keeps_the_old_plan(stored: Stored, freshet: Freshet) -> None:
    def worker(command: int) -> int | None:
        """Return a process that runs steps: a child of the server that forks them."""
        for child in psutil.Process(command).children():
            if workers := child.children():
                return int(workers[0].pid)
        return None

    message = outcome_of_kill(stored, freshet, PROCESSES, worker)
    assert "a process of the replan was killed" in message
    assert "the old plan stays in effect" in message


def outcome_of_kill(
    stored: Stored,
    freshet: Freshet,
    engine: tuple[str, ...],
    victim: Callable[[int], int | None],
) -> str:
    """Kill a process during a replan, check that nothing changed, and return the message.

    victim: returns the id of the process to kill, or None if it has not started yet
    """
    db, uri = stored
    put(db, uri, pages())
    planned(freshet, *BUDGET)
    before, plans = list(db.targets.find()), list(db.plans.find())
    command = freshet.start("replan", "--budget", "80/day", *engine, "--shards", 40, hours=clock())
    deadline = time.monotonic() + MAX_SECONDS
    while (pid := victim(command.pid)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    psutil.Process(pid).kill()
    out, err = command.communicate(timeout=MAX_SECONDS)
    assert (command.returncode, out) == (1, ""), err
    (line,) = err.splitlines()
    assert list(db.targets.find()) == before
    assert list(db.plans.find({"state": {"$ne": "discarded"}})) == plans
    assert not [name for name in db.list_collection_names() if name.startswith("staged_")]
    return str(line)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--engine", "cloud"), "engine not found: 'cloud'. Available: local, processes, dask://"),
        (("--engine", "dask://127.0.0.1:9"), "no response within 10 s. Start it with dask"),
        (("--shards", "3"), "--shards needs a number from 1, and --engine processes or dask://"),
        ((*PROCESSES, "--policy", "groups"), "policy 'groups' cannot be planned in shards"),
        ((*PROCESSES, "--shared-budget"), "--shared-budget needs all targets in one process"),
        ((*PROCESSES, "--budget", "1/day"), "budget 1/day is too small"),
    ],
)
def test_invalid_options_are_one_line_errors(
    stored: Stored, freshet: Freshet, args: tuple[str, ...], message: str
) -> None:
    db, uri = stored
    put(db, uri, pages()[:40])
    done = run(freshet, "replan", *args, hours=clock())
    assert (done.code, done.out) == (1, "")
    assert message in done.complaint
    assert db.plans.count_documents({}) == 0


def test_dask_is_optional(stored: Stored, freshet: Freshet, tmp_path: Path) -> None:
    (tmp_path / "distributed.py").write_text("raise ImportError('not installed')")
    address = "dask://127.0.0.1:8786"
    done = freshet("replan", "--engine", address, hours=clock(), PYTHONPATH=tmp_path)
    assert done.code == 1
    assert "needs the package distributed. Install it with pip" in done.complaint
