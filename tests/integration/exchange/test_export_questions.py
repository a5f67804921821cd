"""The queries of the export guide, as users run them, on an exported crawl with known answers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.exchange.guide_queries import VIEWS, queries
from tests.integration.exchange.small_crawl import BROKEN, FEED, ITEM, OTHER, ago, fill
from tests.integration.harness import Db, Freshet
from tests.integration.inside import run

Answer = list[tuple[Any, ...]]
ANSWERS: dict[str, Callable[[], Answer]] = {
    "Which pages changed most in the last week?": lambda: [
        ("shop", ITEM, 2), ("feeds", FEED, 1), ("shop", OTHER, 1),
    ],
    "How late were changes found?": lambda: [("shop", 3, 24.0, 96.0)],
    "How many requests and bytes does each site need per day?": lambda: [
        (ago(6).date(), "shop", "error", 1, 0),
        (ago(6).date(), "shop", "new", 2, 2000),
        (ago(5).date(), "shop", "unchanged", 1, 1000),
        (ago(4).date(), "shop", "changed", 1, 1000),
        (ago(3).date(), "feeds", "changed", 1, 1000),
        (ago(3).date(), "shop", "changed", 1, 1000),
        (ago(3).date(), "shop", "not_modified", 1, 0),
        (ago(2).date(), "shop", "changed", 1, 1000),
    ],
    "At which hours do requests fail?": lambda: [
        (8, 4, 0.0), (9, 2, 0.0), (10, 2, 0.5), (11, 2, 0.0),
    ],
    "Which pages are slowest?": lambda: [
        (OTHER, 2, 2000.0, 2000), (FEED, 1, 100.0, 100), (ITEM, 4, 100.0, 100),
        (BROKEN, 2, 100.0, 100),
    ],
    "How did the price of an item change over time?": lambda: [
        (ago(6), "10"), (ago(4), "12.5"), (ago(3), "10"),
    ],
    "How many new items appear in each category?": lambda: [
        (ago(5).date(), "garden", 1), (ago(5).date(), "toys", 2),
    ],
    "How many posts are near-duplicates?": lambda: [("feeds", 2, 0.0), ("shop", 2, 0.5)],
    "Which feeds had missed posts?": lambda: [(FEED, "Blog", 2.5, 1)],
    "When do sites publish?": lambda: [(1, 6, 1)],
}  # fmt: skip


def test_duckdb_answers_the_questions_of_the_guide(
    freshet: Freshet, database: Db, tmp_path: Path
) -> None:
    # Not in every test process: it loads slowly.
    import duckdb

    fill(database)
    folder = tmp_path / "freshet-export"
    done = run(freshet, "export", "all", folder)
    assert (done.code, done.err) == (0, "")
    blocks = queries(folder)
    with duckdb.connect() as connection:
        connection.execute(blocks.pop(VIEWS))
        assert blocks.keys() == ANSWERS.keys()
        for question, query in blocks.items():
            answer = connection.execute(query).fetchall()
            assert answer == ANSWERS[question](), question


# The same delays, computed from the visits of all pages, which is slower.
DELAYS_OF_ALL_PAGES = """
WITH seen AS (
    SELECT spider, changed, epoch(visited_at - lag(visited_at) OVER (
        PARTITION BY spider, target ORDER BY visited_at)) / 3600 AS hours
    FROM visits
    WHERE day >= current_date - 7 AND outcome IN ('new', 'changed', 'unchanged', 'not_modified')
)
SELECT spider, count(*) AS changes, median(hours) AS median_hours, max(hours) AS max_hours
FROM seen
WHERE changed AND hours IS NOT NULL
GROUP BY spider
ORDER BY spider
"""


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_delay_query_equals_slower_query_of_all_pages(tmp_path: Path, seed: int) -> None:
    import duckdb

    rng = np.random.default_rng(seed)
    outcomes = ("changed", "unchanged", "not_modified", "error", "gone")
    rows = []
    for minutes in rng.permutation(10 * 24 * 60)[:2000].tolist():
        # Both sites have the same pages, and most pages do not change.
        site, page, outcome = int(rng.integers(2)), int(rng.integers(100)), rng.choice(outcomes)
        at = ago(10) + timedelta(minutes=minutes)
        is_changed = bool(outcome == "changed" and page < 20)
        rows.append((f"site{site}", f"https://shop.example/{page}", at, str(outcome), is_changed))
    with duckdb.connect() as connection:
        connection.execute(
            "CREATE TABLE rows (spider TEXT, target TEXT, visited_at TIMESTAMPTZ, outcome TEXT, "
            "changed BOOLEAN)"
        )
        connection.executemany("INSERT INTO rows VALUES (?, ?, ?, ?, ?)", rows)
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("CREATE VIEW visits AS SELECT *, visited_at::DATE AS day FROM rows")
        expected = connection.execute(DELAYS_OF_ALL_PAGES).fetchall()
        question = queries(tmp_path)["How late were changes found?"]
        assert connection.execute(question).fetchall() == expected
    assert [spider for spider, *_ in expected] == ["site0", "site1"]
