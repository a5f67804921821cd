"""One at a time: locks of this machine that a killed process lets go by itself."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from crawler.config import Config
from crawler.errors import FreshetError, ServerError

if TYPE_CHECKING:
    from filelock import FileLock


class Busy(FreshetError):
    """Another process is at the same work; nothing is wrong, and nothing is to be done."""


def only_one(config: Config, name: str, busy: str) -> FileLock:
    """A lock of this name for the database in use, held until it is released or the process ends.

    Raises Busy, which says `busy`, while another process holds it.
    """
    from filelock import FileLock, Timeout

    folder = config.data_dir / "locks"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        database = hashlib.sha256(f"{config.mongo_uri} {config.database}".encode()).hexdigest()
        lock = FileLock(folder / f"{name}-{database[:12]}.lock", timeout=0)
        lock.acquire()
    except Timeout:
        raise Busy(busy) from None
    except OSError as error:
        raise ServerError(f"data folder {config.data_dir}: {error.strerror or error}") from None
    return lock
