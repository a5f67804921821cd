"""Install the packages of a lock file with pip, and show the progress.

Usage: python deploy/install.py LOCK, run with the interpreter to install for. Exits with the exit
code of pip.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

# Without a terminal, print a line for each STEP packages.
STEP = 10
# Number of lines of pip's log to print if it fails.
LAST_LINES = 30


def main(lock: str) -> int:
    """Run pip and show the number of packages processed; return pip's exit code."""
    total = len(re.findall(r"^[\w.-]+==", Path(lock).read_text(encoding="utf-8"), re.MULTILINE))
    command = [
        sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-input",
        "--progress-bar", "off", "--require-hashes", "-r", lock,
    ]  # fmt: skip
    began, n = time.monotonic(), 0
    last: deque[str] = deque(maxlen=LAST_LINES)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            last.append(line)
            if line.startswith(("Collecting ", "Requirement already satisfied: ")):
                n += 1
                name = line.split(": ")[-1].removeprefix("Collecting ").split()[0]
                show(f"{n} of {total} packages: {name}", is_step=n % STEP == 0 or n == total)
            elif line.startswith("Installing collected packages"):
                show(f"installing {n} packages", is_step=True)
    if pip.returncode == 0:
        show(f"{n} packages installed in {time.monotonic() - began:.0f} s", is_step=True)
    if sys.stdout.isatty():
        print(flush=True)
    if pip.returncode != 0:
        print("".join(last), end="", file=sys.stderr)
    return pip.returncode


def show(text: str, *, is_step: bool) -> None:
    """Update the line on a terminal; elsewhere, print the text if it is a step."""
    if sys.stdout.isatty():
        print(f"\r\x1b[2K  {text[:76]}", end="", flush=True)
    elif is_step:
        print(f"  {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
