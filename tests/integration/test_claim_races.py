"""Whoever claims at the same moment, and whoever dies meanwhile: one original in every group."""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict

import pytest

from tests.integration import claimers
from tests.integration.claimers import Claimers
from tests.integration.claiming import Posts
from tests.integration.harness import Db, Row

# As often as somebody who doubts it wants.
TURNS = int(os.environ.get("CLAIM_TURNS", "2"))


def groups_of(db: Db) -> dict[str, list[Row]]:
    """The stored posts of each group."""
    groups = defaultdict(list)
    for row in db.signatures.find():
        groups[row["post"].rpartition(":")[0]].append(row)
    return groups


def originals_of(db: Db, groups: dict[str, list[Row]]) -> dict[str, list[str]]:
    """The posts of each group that a search would show."""
    shown = {row["_id"]: row["original"] for row in db.clusters.find()}
    return {
        name: [
            row["post"] for row in group if shown.get(row.get("cluster"), row["_id"]) == row["_id"]
        ]
        for name, group in groups.items()
    }


def wrong_ones(db: Db, groups: dict[str, list[Row]]) -> dict[str, list[str]]:
    """Groups without an original, or with several."""
    return {name: found for name, found in originals_of(db, groups).items() if len(found) != 1}


@pytest.fixture(params=["mongodb", "redis"])
def keeper(request: pytest.FixtureRequest) -> str | None:
    """URL of the Redis that claims are made in; None: MongoDB."""
    return request.getfixturevalue("redis") if request.param == "redis" else None


@pytest.mark.slow
def test_four_processes_find_one_original_in_every_group(
    stored: tuple[Db, str], keeper: str | None
) -> None:
    db, uri = stored
    Posts(uri, keeper).clusters()
    assert Claimers(uri, TURNS, keeper).codes() == [0] * claimers.PROCESSES
    groups = groups_of(db)
    assert len(groups) == TURNS * claimers.GROUPS
    assert {len(group) for group in groups.values()} == {claimers.PROCESSES}
    assert wrong_ones(db, groups) == {}
    earliest = {
        name: [min(group, key=lambda row: row["created"])["post"]] for name, group in groups.items()
    }
    assert originals_of(db, groups) == earliest


@pytest.mark.slow
def test_a_process_that_is_killed_leaves_one_original_in_every_group(
    stored: tuple[Db, str], keeper: str | None
) -> None:
    db, uri = stored
    Posts(uri, keeper).clusters()
    started = Claimers(uri, 1, keeper)
    while started.running and db.signatures.estimated_document_count() < claimers.GROUPS // 2:
        time.sleep(0.002)
    started.kill(0)
    assert started.codes() == [-signal.SIGKILL, 0, 0, 0]
    groups = groups_of(db)
    assert len(groups) == claimers.GROUPS
    assert wrong_ones(db, groups) == {}
