"""Run `scrapy` with the arguments after FILE, and write its resource usage to FILE."""

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
    # Peak of the child processes; a forked child starts with its parent's memory.
    readers_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    figures = {
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "peak_mb": _peak_mb(),
        "readers_mb": readers_mb,
    }
    path.write_text(json.dumps(figures))


def _peak_mb() -> float:
    """Return the peak memory of this program; rusage would include that of its parent."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1]) / 1024


if __name__ == "__main__":
    atexit.register(_write, Path(sys.argv[1]))
    execute(["scrapy", *sys.argv[2:]])
