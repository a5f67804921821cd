"""Processes whose wall clock is wrong, or is set while they run: a fault like a kill or an outage.

The clock of a whole process is moved, below Python: a small library is compiled with the machine's
C compiler and preloaded. Who has no compiler for it cannot move clocks.
"""

from __future__ import annotations

import random
import shutil
import struct
import subprocess
import sys
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
# As far as a worker's clock was off in the field: ten minutes either way.
STEP_SECONDS = 600.0


def can_move() -> bool:
    """Return whether clocks of processes can be moved on this machine."""
    return sys.platform == "linux" and shutil.which("cc") is not None


class WrongClock:
    """A wall clock that is off by so many seconds; `env` gives it to a process that starts."""

    def __init__(self, folder: Path, name: str, seconds: float = 0.0) -> None:
        self._folder, self._file = folder, folder / f"{name}.clock"
        self.set(seconds)

    def set(self, seconds: float) -> None:
        """Set the clock so far off, for processes that run as well."""
        # In place: they have it mapped.
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("d", seconds))

    @property
    def env(self) -> dict[str, str]:
        """The variables of a process that goes by this clock."""
        return {"LD_PRELOAD": str(_library(self._folder)), "CLOCK_SHIFT_FILE": str(self._file)}


def step(clocks: list[WrongClock], chance: random.Random) -> None:
    """Set one of the clocks anew while its process runs, as NTP does: the fault `clock`."""
    chance.choice(clocks).set(chance.choice((-STEP_SECONDS, 0.0, STEP_SECONDS)))


@cache
def _library(folder: Path) -> Path:
    made = folder / "clocks.so"
    words = ["cc", "-shared", "-fPIC", "-O1", "-o", made, SOURCE, "-ldl", "-lm"]
    subprocess.run(words, check=True)
    return made
