"""Pruning removes old runs from the log, but never the last one."""

from __future__ import annotations

import pytest

from tests.integration.databases import read_cells, sqlite
from tests.integration.harness import Db, Freshet

pytestmark = pytest.mark.mongo


def test_old_passes_go_but_for_the_last(freshet: Freshet, database: Db) -> None:
    url = sqlite(freshet.folder / "a.db", "CREATE TABLE a (b int)")
    text = f'[databases.a]\nurl = "{url}"\n[cells.b]\ndatabase = "a"\nsql = "SELECT 1 AS n"\n'
    for hours in (0, 24, 240):
        read_cells(freshet, text, hours=hours)
    counted = freshet("prune", "--keep-days", 1, "--dry-run", hours=244)
    assert "2 visits and 2 runs" in counted.out
    freshet("prune", "--keep-days", 1, hours=480)
    assert database.runs.count_documents({}) == 1
    assert database.runs.find_one({}, {"_id": 1, "counts": 1}) is not None
