"""Values of options: durations in seconds, negative numbers."""

from __future__ import annotations

import pytest

from tests.integration.harness import Db, Freshet
from tests.integration.inside import run


def test_since_takes_seconds(freshet: Freshet, database: Db) -> None:
    assert "no site has targets yet" in run(freshet, "changes", "--since", "10s").complaint
    done = run(freshet, "changes", "--since", "10y")
    assert done.code == 2
    assert "'10y' is not a time such as 2026-01-31, 2026-01-31T08:00Z, 7d or 30s" in done.err


@pytest.mark.parametrize("words", [("--budget", "-5/day"), ("--budget=-5/day",)])
def test_negative_budget_is_explained(freshet: Freshet, words: tuple[str, ...]) -> None:
    done = run(freshet, "replan", *words)
    assert done.code == 1
    assert "--budget: invalid request rate: '-5/day'. Use requests a day" in done.complaint
