"""The folder of locks and of the embedded server: room, and whether it can be written."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from crawler.config import Config
from crawler.doctor.findings import Finding, failed, ok, warning
from crawler.storage import sites
from crawler.storage.client import Database
from crawler.utils.text import megabytes

CHECK, VERSIONS = "data folder", "versions"
GB, MB = 1024**3, 1024**2
# Of a database: below it is time to look. A run ends with less than FRESHET_MIN_FREE_MB.
LITTLE_GB = 2.0
# Of locks.
LOCKS_GB = 0.05
WAY_OUT = "set FRESHET_DATA_DIR to a folder that can be written"


def check(config: Config) -> list[Finding]:
    """Nothing is left there; a folder that is not there yet is judged by its parent."""
    folder = config.data_dir.expanduser().absolute()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if problem := _problem(there):
        return [failed(CHECK, f"{folder}: {problem}", WAY_OUT)]
    limits = (LOCKS_GB, LOCKS_GB) if config.mongo_uri else (least_gb(config), LITTLE_GB)
    return [room(CHECK, shutil.disk_usage(there).free, str(folder), *limits)]


async def versions(db: Database, spiders: Sequence[str], config: Config) -> list[Finding]:
    """How many bytes of versions each spider keeps; nothing of those that have none."""
    found = [(name, await sites.kept_bytes(db, name)) for name in spiders]
    return [of_versions(name, kept, config.max_site_mb * MB) for name, kept in found if kept]


def of_versions(name: str, kept_bytes: int, most_bytes: float) -> Finding:
    """Whether a spider's versions are within their bound; most_bytes: 0 if there is none."""
    said = f"{megabytes(kept_bytes)} kept"
    if not most_bytes:
        return ok(VERSIONS, f"{said}, without a bound", of=name)
    said += f", at most {megabytes(most_bytes)}"
    if kept_bytes <= most_bytes:
        return ok(VERSIONS, said, of=name)
    todo = "the next run removes the oldest; raise FRESHET_MAX_SITE_MB to keep more"
    return warning(VERSIONS, said, todo, of=name)


def least_gb(config: Config) -> float:
    """The free space of a database's disk below which a run ends."""
    return config.min_free_mb * MB / GB


def room(
    check: str,
    free_bytes: float,
    where: str,
    least_gb: float,
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
