"""Processes with a wrong wall clock, or one that is changed while they run, as a fault.

The clock is changed for a whole process, below Python, by a small preloaded library, which is
compiled with the machine's C compiler. Without a compiler, clocks cannot be changed.
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
# The largest clock error of a worker in practice: ten minutes in either direction.
STEP_SECONDS = 600.0
# The variable of the file with the error of a process's clock.
SHIFT = "CLOCK_SHIFT_FILE"


def can_move() -> bool:
    """Return whether the clocks of processes can be changed on this machine."""
    return sys.platform == "linux" and shutil.which("cc") is not None


class WrongClock:
    """A wall clock that is off by some seconds; a process that starts with `env` uses it."""

    def __init__(self, folder: Path, name: str, seconds: float = 0.0) -> None:
        self._folder, self._file = folder, folder / f"{name}.clock"
        self.set(seconds)

    def set(self, seconds: float) -> None:
        """Set the error of the clock, for running processes too."""
        # Write in place: the processes have the file mapped into memory.
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("d", seconds))

    @property
    def env(self) -> dict[str, str]:
        """Return the variables of a process that uses this clock."""
        return {"LD_PRELOAD": str(library(self._folder)), SHIFT: str(self._file)}


def step(clocks: list[WrongClock], chance: random.Random) -> None:
    """Inject the fault `clock`: set one of the clocks while its process runs, as NTP does."""
    chance.choice(clocks).set(chance.choice((-STEP_SECONDS, 0.0, STEP_SECONDS)))


@cache
def library(folder: Path) -> Path:
    """Compile the library into a folder and return its path."""
    made = folder / "clocks.so"
    words = ["cc", "-shared", "-fPIC", "-O1", "-o", made, SOURCE, "-ldl", "-lm"]
    subprocess.run(words, check=True)
    return made
