"""Outages of a running server: the server is paused, or its disk is full, for a given time.

Each kind is a function that takes a server or a disk, and the duration in seconds.
"""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Self

from tests.faults.servers import Server

FILLER = "filler"
CHUNK = bytes(1024**2)
# A server frees blocks while its disk is full; fill them again at this interval.
REFILL_SECONDS = 0.05


class CannotMount(Exception):
    """The file system cannot be mounted on this machine, or not by this user."""


class SmallDisk:
    """A file system in memory for `folder`, of the given size in MB. Raises CannotMount."""

    def __init__(self, folder: Path, megabytes: int) -> None:
        self.folder, self._megabytes = folder, megabytes

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        mount: list[str | Path] = [
            "mount",
            "-t",
            "tmpfs",
            "-o",
            f"size={self._megabytes}m",
            "tmpfs",
            self.folder,
        ]
        try:
            done = subprocess.run(mount, capture_output=True, text=True, check=False)
        except OSError as error:
            raise CannotMount(str(error)) from None
        if done.returncode:
            raise CannotMount(done.stderr.strip())
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "-l", self.folder], check=True)

    def fill(self, but_megabytes: float = 0.0) -> None:
        """Fill the disk except for this many MB."""
        path = self.folder / FILLER
        with path.open("ab", buffering=0) as filler:
            while (spare := int(self.free - but_megabytes * 1024**2)) > 0:
                try:
                    filler.write(CHUNK[:spare])
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    break

    def clear(self) -> None:
        """Free the space again."""
        (self.folder / FILLER).unlink(missing_ok=True)

    @property
    def free(self) -> int:
        """Return the free bytes."""
        stat = os.statvfs(self.folder)
        return stat.f_bavail * stat.f_frsize

    @contextmanager
    def full(self) -> Iterator[None]:
        """Keep the disk full for the duration of a `with` block, even if the server frees space."""
        self.fill()
        ended = Event()
        filling = Thread(target=self._refill, args=(ended,), daemon=True)
        filling.start()
        try:
            yield
        finally:
            ended.set()
            filling.join()
            self.clear()

    def _refill(self, ended: Event) -> None:
        while not ended.wait(REFILL_SECONDS):
            with suppress(OSError):
                self.fill()


def server_stopped(server: Server, seconds: float) -> None:
    """Pause a server for a time: its process exists but does not answer."""
    with server.stopped():
        time.sleep(seconds)


def disk_full(disk: SmallDisk, seconds: float) -> None:
    """Keep a disk full for a time."""
    with disk.full():
        time.sleep(seconds)
