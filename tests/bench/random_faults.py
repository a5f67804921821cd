"""`make bench ARGS="--random-faults 200"`: random faults in runs of one and three workers.

After each run the invariants of `scrapy doctor --deep` are checked; where one is broken, what the
workers said is kept, and the database.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from pathlib import Path

from tests.faults.ending import orderly
from tests.faults.faults import FAULTS, Faults, prepared

ITEMS = 400
FAULTS_A_RUN = 8
WORKERS = (1, 3)
KEPT = Path(".benchmarks/faults")


def run(faults: int, seed: int) -> int:
    """Inject so many faults; 1 if an invariant is broken."""
    chance, injected, broken, known = random.Random(seed), Counter[str](), 0, set[str]()
    print(f"seed {seed}", flush=True)
    with orderly():
        while injected.total() < faults:
            for workers in WORKERS:
                done, said = _one(workers, chance.randrange(10**6))
                known.update(done.kinds)
                injected, broken = injected + done.found, broken + bool(said)
                total = injected.total()
                print(f"{total} faults, {workers} workers: {said or 'all hold'}", flush=True)
    for kind in FAULTS:
        print(f"{injected[kind]:5} {kind}{'' if kind in known else ': cannot be injected here'}")
    print(f"Invariants are broken after {broken} runs." if broken else "All invariants hold.")
    return int(broken > 0)


def _one(workers: int, seed: int) -> tuple[Faults, list[str]]:
    with tempfile.TemporaryDirectory(prefix="ff-") as name:
        with prepared(Path(name), ITEMS, workers, seed) as faults:
            kinds = faults.chance.choices(faults.kinds, k=FAULTS_A_RUN)
            if said := faults.run(kinds, workers):
                _keep(Path(name), faults, seed)
        return faults, said


def _keep(folder: Path, faults: Faults, seed: int) -> None:
    """Keep the logs of workers, and the database."""
    faults.servers["MongoDB"].stop()
    kept = KEPT / str(seed)
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(folder, kept, ignore=shutil.ignore_patterns("*.sock", "redis", "data-*"))
    print(f"kept in {kept}", flush=True)
