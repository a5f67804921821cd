"""Random faults in runs of one and three workers: `make bench ARGS="--random-faults 200"`.

Checks the invariants of `scrapy doctor --deep` after each run; on a violation, keeps the workers'
logs and the database.
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
    """Inject this number of faults; return 1 if an invariant is violated."""
    chance, injected, broken, kinds = random.Random(seed), Counter[str](), 0, set[str]()
    print(f"seed {seed}", flush=True)
    with orderly():
        while injected.total() < faults:
            for workers in WORKERS:
                done, messages = _one(workers, chance.randrange(10**6))
                kinds.update(done.kinds)
                injected, broken = injected + done.found, broken + bool(messages)
                total = injected.total()
                result = messages or "no violations"
                print(f"{total} faults, {workers} workers: {result}", flush=True)
    for kind in FAULTS:
        print(f"{injected[kind]:5} {kind}{'' if kind in kinds else ': not possible here'}")
    print(f"Invariants were violated in {broken} runs." if broken else "No invariant is violated.")
    return int(broken > 0)


def _one(workers: int, seed: int) -> tuple[Faults, list[str]]:
    with tempfile.TemporaryDirectory(prefix="ff-") as name:
        with prepared(Path(name), ITEMS, workers, seed) as faults:
            kinds = faults.chance.choices(faults.kinds, k=FAULTS_A_RUN)
            if messages := faults.run(kinds, workers):
                _keep(Path(name), faults, seed)
        return faults, messages


def _keep(folder: Path, faults: Faults, seed: int) -> None:
    """Keep the logs of workers, and the database."""
    faults.servers["MongoDB"].stop()
    kept = KEPT / str(seed)
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(folder, kept, ignore=shutil.ignore_patterns("*.sock", "redis", "data-*"))
    print(f"saved in {kept}", flush=True)
