"""Repeats of failed tests: what fails a run, and what is printed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests import repeats
from tests.repeats import MAX_LISTED, judge, read_list
from tests.site.running import PYTHON, ROOT

A, B = "tests/test_a.py::test_a", "tests/test_b.py::test_b[60]"
HISTORY = {A: "once at load 20"}
# Each fails if no file with its name exists, and creates it.
TESTS = """
from pathlib import Path
import pytest


@pytest.mark.parametrize("name", {names})
def test_once(name):
    assert Path(name).exists() or Path(name).touch()


def test_always():
    assert {passes}
"""


@pytest.mark.parametrize(
    ("failed", "again", "passes", "printed"),
    [
        ([A], [], True, f"passed alone: {A} | once at load 20"),
        ([A], [A], False, f"failed again: {A} | once at load 20"),
        ([B], [], False, f"passed alone: {B} | not in tests/unstable.txt"),
        ([A, B], [], False, f"passed alone: {B} | not in"),
        ([A, B], [B], False, f"passed alone: {A} | once"),
        ([A, *map(str, range(3))], None, False, "4 tests failed; at most 3 are repeated"),
    ],
)
def test_run_passes_if_only_listed_tests_needed_a_repeat(
    failed: list[str], again: list[str] | None, passes: bool, printed: str
) -> None:
    lines, judged = judge(failed, again, HISTORY)
    assert judged is passes
    assert any(line.startswith(printed) for line in lines), lines


def test_list_has_a_test_and_its_history_on_each_line() -> None:
    assert read_list(f"# a comment\n\n{A} | once at load 20\n") == HISTORY


def test_list_of_unstable_tests_only_gets_shorter() -> None:
    listed = read_list(repeats.LIST.read_text(encoding="utf-8"))
    assert len(listed) <= MAX_LISTED
    assert all(listed.values()), "each has a history"
    for test in listed:
        path, _, name = test.partition("::")
        function = name.partition("[")[0].rpartition("::")[2]
        assert f"def {function}(" in (ROOT / path).read_text(encoding="utf-8"), test


@pytest.mark.parametrize(
    ("names", "passes", "listed", "code", "printed"),
    [
        (["a"], True, ["a"], 0, ["passed alone: tests/test_x.py::test_once[a] | seen before"]),
        (
            ["b c"],
            False,
            [],
            1,
            ["passed alone: tests/test_x.py::test_once[b c] | not", "failed again"],
        ),
        (["a", "b", "c", "d"], True, ["a", "b", "c", "d"], 1, ["not repeated", "4 tests failed"]),
        ([], True, [], 1, ["the run itself has failed"]),
    ],
)
def test_failed_tests_of_pytest_are_repeated_alone(
    tmp_path: Path, names: list[str], passes: bool, listed: list[str], code: int,
    printed: list[str],
) -> None:  # fmt: skip
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "test_x.py").write_text(TESTS.format(names=names, passes=passes), encoding="utf-8")
    (folder / "repeats.py").write_bytes(Path(repeats.__file__).read_bytes())
    rows = (f"tests/test_x.py::test_once[{name}] | seen before\n" for name in listed)
    (folder / "unstable.txt").write_text("".join(rows), encoding="utf-8")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        # Loading the plugins would take longer than the tests.
        env = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        return subprocess.run(
            [PYTHON, *words], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )

    first = run("-m", "pytest")
    assert first.returncode == bool(names), first.stdout
    done = run("tests/repeats.py")
    assert done.returncode == code, done.stdout
    for text in printed:
        assert text in done.stdout
