"""Runs `scrapy` with the arguments behind FILE, and writes to FILE what the process used."""

from __future__ import annotations

import atexit
import json
import resource
import sys
from pathlib import Path

from scrapy.cmdline import execute


def _write(path: Path) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    figures = {"cpu_seconds": used.ru_utime + used.ru_stime, "peak_mb": used.ru_maxrss / 1024}
    path.write_text(json.dumps(figures))


if __name__ == "__main__":
    atexit.register(_write, Path(sys.argv[1]))
    execute(["scrapy", *sys.argv[2:]])
