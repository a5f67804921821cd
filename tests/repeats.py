"""Repeat the failed tests of a run alone, and judge the run: `python tests/repeats.py`.

The tests use real servers and clocks on a machine that others use, too. A test that fails beside
nine others may pass alone, but then the test or Freshet has a fault. So the repeated tests are
listed at the end of the run, and only tests in `unstable.txt` may need a repeat.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

# With more, the cause is rarely chance.
MAX_REPEATED = 3
# `unstable.txt` only gets shorter: lower this number with it.
MAX_LISTED = 0
LIST = Path(__file__).with_name("unstable.txt")
# Where pytest stores the failed tests, in the folder in which it runs.
FAILED = Path(".pytest_cache/v/cache/lastfailed")
SEPARATOR = " | "


def read_list(text: str) -> dict[str, str]:
    """Return the history of each unstable test: lines `TEST | HISTORY`, and comments with #."""
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return {test.strip(): history.strip() for test, _, history in (x.partition("|") for x in lines)}


def judge(
    failed: Sequence[str], again: Sequence[str] | None, unstable: Mapping[str, str]
) -> tuple[list[str], bool]:
    """Return a line for each failed test, and whether the run passes.

    again:    the tests that failed alone, too; None if they were not repeated
    unstable: histories of the tests that may need a repeat
    """
    lines = []
    for test in failed:
        end = (
            "not repeated" if again is None else "failed again" if test in again else "passed alone"
        )
        history = unstable.get(test, "not in tests/unstable.txt: mend the test, or what it found")
        lines.append(f"{end}: {test}{SEPARATOR}{history}")
    if again is None:
        lines.append(f"{len(failed)} tests failed; at most {MAX_REPEATED} are repeated")
    return lines, bool(failed) and again == [] and all(test in unstable for test in failed)


def read_failed() -> list[str]:
    """Return the tests that failed in the last run of pytest in this folder."""
    return sorted(json.loads(FAILED.read_text(encoding="utf-8"))) if FAILED.exists() else []


def main() -> int:
    """Repeat the failed tests, print what became of each, and return the exit code of the run."""
    failed, again = read_failed(), None
    if not failed:
        print("No failed test is recorded: the run itself has failed.")
        return 1
    if len(failed) <= MAX_REPEATED:
        print("Running the failed tests again, one at a time.", flush=True)
        command = [sys.executable, "-m", "pytest", *failed]
        done = subprocess.run(command, check=False)
        # Any other code than 0 and 1: pytest could not run them.
        again = read_failed() if done.returncode in {0, 1} else failed
    lines, passes = judge(failed, again, read_list(LIST.read_text(encoding="utf-8")))
    print("Repeated tests:", *lines, sep="\n  ")
    return 0 if passes else 1


if __name__ == "__main__":
    sys.exit(main())
