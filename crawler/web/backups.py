"""Backups that the web app makes in a subprocess, one at a time, and the files that it has made."""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, Field

from crawler.config import Config
from crawler.errors import Busy, FreshetError
from crawler.exchange.backup import remove_abandoned_drafts
from crawler.exchange.backup_jobs import MODULE, BackupRequest
from crawler.utils.files import file_errors
from crawler.utils.process import JobCrashed, JobProcess, end_tasks

logger = logging.getLogger(__name__)
FOLDER = "backups"
NAME = re.compile(r"freshet-(\d{4}-\d{2}-\d{2}-\d{6})\.zip")
TIME = "%Y-%m-%d-%H%M%S"
# Several times as long as the longest run of a service. Meanwhile, no other crawl starts.
WAIT_SECONDS = 600.0
MAX_SECONDS = 12 * 3600.0
CRASHED = "The backup ended unexpectedly. The log of scrapy web has the details"


class StoredBackup(BaseModel):
    """A backup that the app has made. It was read again and checked."""

    name: str = Field(description="name of the file")
    at: datetime = Field(description="time of the backup")
    bytes: int = Field(description="size of the file")


@dataclass(slots=True)
class BackupJob:
    """The current or last backup.

    by:       name of the user
    progress: what it does now
    error:    why it failed, one line; empty: it did not
    """

    name: str
    by: str
    started: datetime
    progress: str = "starting"
    error: str = ""
    is_running: bool = True


class Backups:
    """Makes, lists and deletes the backups of an app.

    job: the current or last one since the start of the app
    """

    def __init__(self, config: Config) -> None:
        self.folder = config.data_dir.expanduser().absolute() / FOLDER
        self.job: BackupJob | None = None
        self._config = config
        self._jobs = JobProcess(MODULE, grace_seconds=0.0)
        self._task: asyncio.Task[None] | None = None

    def start(self, by: str, now: datetime) -> BackupJob:
        """Start a backup; raises Busy while another one is being made."""
        if self.job is not None and self.job.is_running:
            raise Busy(f"{self.job.by} has already started a backup. Wait until it is made")
        self.job = job = BackupJob(f"freshet-{now.astimezone(UTC):{TIME}}.zip", by, now)
        self._task = asyncio.create_task(self._run(job))
        return job

    async def stored(self) -> list[StoredBackup]:
        """Return the backups that the app has made, the newest first; raises ConfigError."""
        return await asyncio.to_thread(_stored, self.folder)

    async def remove(self, name: str) -> bool:
        """Delete a backup; return False if there is none of this name. Raises ConfigError."""
        if not NAME.fullmatch(name):
            return False
        return await asyncio.to_thread(_remove, self.folder / name)

    async def close(self) -> None:
        """End the backup that is being made, which leaves no file."""
        if self._task is not None:
            await end_tasks(self._task)

    async def _run(self, job: BackupJob) -> None:
        def report(text: str) -> None:
            job.progress = text

        request = BackupRequest(
            config=self._config.model_dump(mode="json"), file=self.folder / job.name,
            now=job.started, wait_seconds=WAIT_SECONDS,
        )  # fmt: skip
        try:
            await asyncio.to_thread(_prepare, self.folder)
            await self._jobs.run(request.model_dump_json(), MAX_SECONDS, report)
        except TimeoutError:
            job.error = f"The backup took more than {MAX_SECONDS / 3600:.0f} hours"
        except FreshetError as error:
            job.error = str(error)
        except JobCrashed:
            job.error = CRASHED
        except (OSError, ValueError) as error:
            logger.exception("Backup failed")
            job.error = f"The backup could not be made: {error}"
        finally:
            job.is_running, job.progress = False, ""


def _prepare(folder: Path) -> None:
    """Create the folder, which only its owner may read, without files of killed backups."""
    with file_errors(str(folder)):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_abandoned_drafts(folder)


def _stored(folder: Path) -> list[StoredBackup]:
    found = []
    with file_errors(str(folder)):
        for path in folder.glob("*.zip") if folder.is_dir() else ():
            if (match := NAME.fullmatch(path.name)) and path.is_file():
                at = datetime.strptime(match[1], TIME).replace(tzinfo=UTC)
                found.append(StoredBackup(name=path.name, at=at, bytes=path.stat().st_size))
    return sorted(found, key=lambda each: each.name, reverse=True)


def _remove(path: Path) -> bool:
    with file_errors(str(path)):
        try:
            path.unlink()
        except FileNotFoundError:
            return False
    return True
