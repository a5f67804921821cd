"""Makes backups for the web app, and defines their requests.

`python -m crawler.exchange.backup_jobs` runs in a subprocess: compressing a database takes minutes
of computing, in which the app would answer no requests.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from crawler.config import Config
from crawler.exchange.backup import write
from crawler.storage.client import raising_unreachable
from crawler.storage.store import opened
from crawler.storage.transfer import writers_locked_out
from crawler.utils.process import Say, serve

MODULE = "crawler.exchange.backup_jobs"


class BackupRequest(BaseModel):
    """A request for a backup.

    config:       settings of the app
    file:         path of the new file
    now:          time of the backup
    wait_seconds: time to wait for the end of crawls
    """

    config: dict[str, Any]
    file: Path
    now: datetime
    wait_seconds: float


async def main() -> None:
    """Make the backups that an app requests on standard input."""

    async def run(line: bytes, say: Say) -> Any:
        job = BackupRequest.model_validate_json(line)
        config = Config.load(**job.config)
        with raising_unreachable():
            async with opened(config) as db, writers_locked_out(
                db, config, job.wait_seconds, say
            ):  # fmt: skip
                manifest, size = await write(db, job.file, job.now, say)
        return {"bytes": size, "documents": manifest.documents}

    await serve(run)


if __name__ == "__main__":
    asyncio.run(main())
