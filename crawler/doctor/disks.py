"""The folder of locks and of the embedded server: room, and whether it can be written."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from crawler.config import Config
from crawler.doctor.findings import Finding, failed, ok, warning

CHECK = "data folder"
GB = 1024**3
# The embedded server does not start with less; below the other somebody should look.
LEAST_GB, LITTLE_GB = 0.3, 2.0
WAY_OUT = "set FRESHET_DATA_DIR to a folder that can be written"


def check(config: Config) -> list[Finding]:
    """Nothing is left there; a folder that is not there yet is judged by its parent."""
    folder = config.data_dir.expanduser().absolute()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if problem := _problem(there):
        return [failed(CHECK, f"{folder}: {problem}", WAY_OUT)]
    return [room(CHECK, shutil.disk_usage(there).free, str(folder))]


def room(check: str, free_bytes: float, where: str) -> Finding:
    """Whether a disk has room."""
    free_gb = free_bytes / GB
    found = f"{where}: {free_gb:,.1f} GB free"
    if free_gb < LEAST_GB:
        return failed(check, found, "make room: scrapy prune, or a larger disk")
    if free_gb < LITTLE_GB:
        return warning(check, found, "make room soon: scrapy prune, or a larger disk")
    return ok(check, found)


def _problem(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder} is no folder"
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return os.strerror(error.errno) if error.errno else str(error)
