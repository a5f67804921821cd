"""Runs `scrapy` with the arguments behind FILE, and writes to FILE what the process used."""

from __future__ import annotations

import atexit
import json
import re
import resource
import sys
from pathlib import Path

from scrapy.cmdline import execute


def _write(path: Path) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    # Of those it has started; a copy of itself has as much as itself to begin with.
    readers_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    figures = {
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "peak_mb": _peak_mb(),
        "readers_mb": readers_mb,
    }
    path.write_text(json.dumps(figures))


def _peak_mb() -> float:
    """The most memory this program had; rusage would count that of who started it as well."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


if __name__ == "__main__":
    atexit.register(_write, Path(sys.argv[1]))
    execute(["scrapy", *sys.argv[2:]])
