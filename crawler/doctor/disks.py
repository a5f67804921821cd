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
# Of a database: the embedded server does not start with less; below the other it is time to look.
LEAST_GB, LITTLE_GB = 0.3, 2.0
# Of locks.
LOCKS_GB = 0.05
WAY_OUT = "set FRESHET_DATA_DIR to a folder that can be written"


def check(config: Config) -> list[Finding]:
    """Nothing is left there; a folder that is not there yet is judged by its parent."""
    folder = config.data_dir.expanduser().absolute()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if problem := _problem(there):
        return [failed(CHECK, f"{folder}: {problem}", WAY_OUT)]
    limits = (LEAST_GB, LITTLE_GB) if config.mongo_uri is None else (LOCKS_GB, LOCKS_GB)
    return [room(CHECK, shutil.disk_usage(there).free, str(folder), *limits)]


def room(
    check: str,
    free_bytes: float,
    where: str,
    least_gb: float = LEAST_GB,
    little_gb: float = LITTLE_GB,
) -> Finding:
    """Whether a disk has room: not enough with less than `least_gb`, hardly below `little_gb`."""
    free_gb = free_bytes / GB
    found = f"{where}: {free_gb:,.1f} GB free"
    if free_gb < least_gb:
        return failed(check, found, "make room: scrapy prune, or a larger disk")
    if free_gb < little_gb:
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
