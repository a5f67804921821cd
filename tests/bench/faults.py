"""Kill, pause and disconnect workers and servers during runs: `make bench ARGS=--faults`.

After each run, the database is compared with the site's own log. The same faults are injected into
scrapy-redis, for comparison.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench.faulty_runs import MONGO, REDIS, STOPPED, FaultyRuns, Line, Options, Scenario
from tests.faults.ending import orderly
from tests.faults.fault_injector import WORKER
from tests.faults.servers import Mongo
from tests.site.running import RunningQuick

PAGES, DELAY_MS = 4000, 150
KILLED = (WORKER, REDIS, MONGO)
# Kinds of outages: the server is paused, or its proxy refuses connections or drops all data.
WAYS = (STOPPED, "refusing", "swallowing")


def run(options: Options) -> int:
    """Make all runs; return 1 if an invariant is violated."""
    with (
        orderly(),
        tempfile.TemporaryDirectory(prefix="fk-") as name,
        RunningQuick(options.pages, "--delay-ms", str(DELAY_MS)) as site,
        Mongo(Path(name) / "m") as mongo,
    ):
        print(f"seed {options.seed}; {options.pages:,} items, {DELAY_MS} ms/answer; data in {name}")
        runs = FaultyRuns(options, Path(name), site, mongo)
        todo = [(one, False) for one in scenarios(options, redis=options.redis)]
        todo += [(one, True) for one in scenarios(options, redis=True) if one.kills]
        lines = []
        for scenario, plain in todo:
            lines.append(runs.line(scenario, plain=plain))
            print(lines[-1], flush=True)
    _show(lines)
    broken = [f"{one.scenario}: {message}" for one in lines for message in one.broken]
    print("\n".join(broken) or "No invariant is violated.")
    return 1 if broken else 0


def scenarios(options: Options, *, redis: bool) -> list[Scenario]:
    """Return the runs to make. redis: whether workers use Redis."""
    kills = {name: n for name, n in options.kills.items() if n and (redis or name != REDIS)}
    faulty = [Scenario(f"{n} kills, {name}", {name: n}) for name, n in kills.items()]
    if len(kills) > 1:
        faulty.append(Scenario("all of these", kills))
    if options.outage_seconds:
        seconds = f"{options.outage_seconds:g} s"
        servers = (MONGO, REDIS) if redis else (MONGO,)
        faulty += [
            Scenario(f"{name} {way}, {seconds}", away=name, way=way)
            for way in WAYS
            for name in servers
        ]
    return faulty


def _show(lines: list[Line]) -> None:
    table = Table(
        "", "run", "faults", "seconds", "answers", "interrupted", "again: in flight", "outage",
        "other", "longest s", "stored", "lost", "per fault", "duplicates", "violations",
    )  # fmt: skip
    for one in lines:
        counts = one.found
        table.add_row(
            one.side, one.scenario, str(one.faults), f"{one.seconds:.0f}",
            *map(str, (counts.answered, counts.cut, counts.in_flight, counts.while_away)),
            str(len(counts.unexplained)), f"{counts.longest_seconds:.2f}", str(one.stored),
            str(one.lost), f"{one.lost / one.faults:.1f}" if one.faults else "-", str(one.doubled),
            str(len(one.broken)),
        )  # fmt: skip
    Console(width=170).print(table)
