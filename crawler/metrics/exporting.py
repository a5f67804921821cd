"""Measures this process, and keeps a file of what was measured."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from crawler.metrics.measuring import Measuring
from crawler.metrics.process import Process
from crawler.metrics.textfile import TextFile

WRITE_SECONDS = 10.0


class Export:
    """Measures from `begin` to `end`; raises ConfigError where the file cannot be had.

    folder: where the file `freshet-NAME.prom` goes; None: no file
    """

    def __init__(self, folder: Path | None, name: str) -> None:
        self.measuring = Measuring()
        self._file = None if folder is None else TextFile(folder, name, self.measuring.registry)
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        """The passes of this process are measured from now on."""
        Process.measuring = self.measuring
        self._do(self.measuring.watch_lag())
        if self._file is not None:
            self._do(_keep_writing(self._file))

    def end(self) -> None:
        """All is over; the file is written for the last time."""
        Process.measuring = None
        for task in self._tasks:
            task.cancel()
        if self._file is not None:
            self._file.close()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))


async def _keep_writing(file: TextFile) -> None:
    while True:
        file.write()
        await asyncio.sleep(WRITE_SECONDS)
