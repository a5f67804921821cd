"""`scrapy simulate overload`: output, charts and rejected input."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schedules.dispatch import POLICIES
from tests.integration.harness import Freshet
from tests.integration.inside import run

MIX = """
hours = 6
seed = 3

[[cells]]
group = "news"
count = 2
period = 300
cost = 4

[[cells]]
group = "films"
period = 3600
cost = 600
changes_every = 86400
"""


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Freshet]:
    """Return commands without a server: cells in a file need no database."""
    with Freshet(tmp_path, MONGO_URI="mongodb://127.0.0.1:1", FRESHET_DATA_DIR=tmp_path) as runner:
        yield runner


@pytest.fixture
def mix(tmp_path: Path) -> Path:
    path = tmp_path / "mix.toml"
    path.write_text(MIX)
    return path


def simulated(freshet: Freshet, *args: object) -> dict[str, Any]:
    done = run(freshet, "simulate", "overload", "--json", *args)
    assert (done.code, done.err) == (0, "")
    results: dict[str, Any] = json.loads(done.out)
    return results


def test_default_is_the_mix_of_the_paper_at_load_two(bare: Freshet) -> None:
    simulation = simulated(bare)
    assert (simulation["load"], simulation["hours"], simulation["cells"]) == (2.0, 24.0, 100)
    assert list(simulation["policies"]) == list(POLICIES)
    for policy in simulation["policies"].values():
        groups = policy["groups"]
        assert {name: group["cells"] for name, group in groups.items()} == {
            "dynamic": 17, "semi-dynamic": 33, "static": 50,
        }  # fmt: skip
        assert {len(group["by_hour"]) for group in groups.values()} == {24}
        assert policy["worst_ratio"] == min(group["worst_ratio"] for group in groups.values())
        freshness = sum(group["cells"] * group["freshness"] for group in groups.values()) / 100
        assert policy["freshness"] == pytest.approx(freshness)
    value, paper = simulation["policies"]["value"], simulation["policies"]["expected-ratio"]
    assert value["worst_ratio"] >= simulation["min_ratio"] - 0.05
    assert value["freshness"] > paper["freshness"] + 0.1


def test_load_and_equal_costs_options(bare: Freshet) -> None:
    simulation = simulated(bare, "--load", "1.05", "--equal-costs")
    assert simulation["load"] == pytest.approx(1.05)
    groups = simulation["policies"]["expected-ratio"]["groups"]
    assert {round(group["expected"], 6) for group in groups.values()} == {round(1 / 1.05, 6)}
    starved = simulation["policies"]["starved-first"]["groups"]
    assert starved["static"]["ratio"] < 0.8
    assert starved["dynamic"]["ratio"] > 0.95


def test_mix_is_read_from_a_file(bare: Freshet, mix: Path) -> None:
    simulation = simulated(bare, mix, "--policy", "value")
    assert simulation["load"] == pytest.approx(2 * 4 / 300 + 600 / 3600)
    assert (simulation["hours"], simulation["seed"], list(simulation["policies"])) == (
        6,
        3,
        ["value"],
    )
    groups = simulation["policies"]["value"]["groups"]
    assert {name: len(group["by_hour"]) for name, group in groups.items()} == {
        "news": 6,
        "films": 6,
    }
    assert groups["news"]["requested"] == 2 * 6 * 12
    assert simulated(bare, mix, "--load", "3")["load"] == pytest.approx(3)
    assert simulated(bare, mix, "--equal-costs")["load"] == simulation["load"]
    assert simulated(bare, mix, "--policy", "value") == simulation


def test_prints_tables_and_writes_a_plot(bare: Freshet, mix: Path, tmp_path: Path) -> None:
    chart = tmp_path / "new" / "overload.svg"
    done = run(bare, "simulate", "overload", mix, "--load", "2", "--plot", chart)
    assert (done.code, done.err) == (0, "")
    assert "3 cells for 6 hours at load 2 (seed 3); minimum ratio of `value`: 0.400" in done.out
    for text in ("worst", "Jain", "expected", "starved-first: refresh ratio by hour"):
        assert text in done.out
    assert max(map(len, done.out.splitlines())) <= 80
    drawn = chart.read_text()
    assert all(policy in drawn for policy in POLICIES)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("cells = 1", "cells: not a list: 1"),
        ("cells = []", "cells: needs at least 1, has 0"),
        ("", "cells: is missing"),
        ("[[cells]]\ncost = 1", "cells.0.period: is missing"),
        ("[[cells]]\nperiod = 0", "cells.0.period: must be greater than 0, not 0"),
        ("[[cells]]\nperiod = 1\ncolour = 2", "cells.0.colour: unknown key"),
        ("[[cells]]\nperiod = 1\ncount = 10001", "cells.0.count: must be at most 10000, not 10001"),
        ("hours = 'x'\n[[cells]]\nperiod = 1", "hours: not a number: 'x'"),
        ("[[cells]", "not valid TOML"),
        ("[[cells]]\nperiod = 0.01", "too many requests: 8,640,000 (maximum 2,000,000)"),
        ("[[cells]]\nperiod = 9\nchanges_every = 0.01", "too many changes: 8,640,000"),
    ],
)
def test_invalid_file_is_a_one_line_error(
    bare: Freshet, tmp_path: Path, text: str, cause: str
) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    done = run(bare, "simulate", "overload", path)
    assert (done.code, done.out) == (1, "")
    assert done.complaint.startswith(f"scrapy simulate: {path}: {cause}")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("overload", "--load", "0"), "--load: invalid load '0'. Use seconds of work per"),
        (("overload", "--load", "x"), "--load: invalid load 'x'. Use seconds of work per"),
        (
            ("overload", "--policy", "optimal"),
            "--policy: policy not found: 'optimal'. Available: val",
        ),
        (("overload", "none.toml"), "none.toml: No such file or directory"),
    ],
)
def test_invalid_option_is_a_one_line_error(
    bare: Freshet, words: tuple[str, ...], complaint: str
) -> None:
    done = run(bare, "simulate", *words)
    assert (done.code, done.out) == (1, "")
    assert complaint in done.complaint


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("overload", "--budget", "3"), "--budget is for simulate pages, not for overload"),
        (("overload", "--from", "x"), "--from is for simulate pages and feeds, not for overload"),
        (("pages", "--load", "3"), "--load is for simulate overload, not for pages"),
        (("feeds", "mix.toml"), "unexpected argument 'mix.toml'"),
    ],
)
def test_options_of_other_simulations_are_rejected(
    bare: Freshet, words: tuple[str, ...], complaint: str
) -> None:
    done = run(bare, "simulate", *words)
    assert done.code == 2
    assert complaint in done.out + done.err
