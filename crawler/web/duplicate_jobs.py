"""Comparisons and labels of posts, made in a subprocess that has loaded the compiled code."""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import crawler
from crawler.config import Config
from crawler.errors import ConfigError
from crawler.reports.duplicate_jobs import LENGTH, CompareJob, Job, LabelJob, packed
from crawler.reports.duplicates import Comparison
from crawler.storage.dedup.labels import Label
from crawler.utils.process import end_tasks

ROOT = Path(crawler.__file__).resolve().parents[1]
COMMAND = (sys.executable, "-m", "crawler.reports.duplicate_jobs")
# Starting the subprocess takes a second, and it takes about 185 MB.
IDLE_SECONDS = 600.0
MAX_SECONDS = 60.0
# Time for which an ended app waits for a label that is being stored.
END_SECONDS = 2.0


class DuplicateJobs:
    """Sends jobs to the subprocess, one at a time.

    The subprocess starts with the first job and ends after IDLE_SECONDS without one.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._process: Process | None = None
        self._lock = asyncio.Lock()
        self._idle: asyncio.Task[None] | None = None

    async def compare(self, posts: tuple[str, str]) -> Comparison:
        """Return two posts side by side, by URLs or ids; raises ConfigError."""
        compared: Comparison = await self._run(CompareJob(posts))
        return compared

    async def label(self, posts: tuple[str, str], now: datetime, *, same: bool, by: str) -> Label:
        """Label two posts by their ids; raises ConfigError, and Busy during a rebuild."""
        label: Label = await self._run(LabelJob(posts, same, by, now))
        return label

    async def close(self) -> None:
        """End the subprocess."""
        if self._idle is not None:
            await end_tasks(self._idle)
        async with self._lock:
            await self._end()

    async def _run(self, job: Job) -> Any:
        async with self._lock:
            if self._idle is not None:
                self._idle.cancel()
            if self._process is None or self._process.returncode is not None:
                self._process = await self._start()
            try:
                async with asyncio.timeout(MAX_SECONDS):
                    result, error = await _answer(self._process, job)
            except TimeoutError:
                await self._end()
                raise ConfigError(
                    f"comparing these posts takes more than {MAX_SECONDS:g} s"
                ) from None
            except BaseException:
                # The answer of this job must not become that of the next one.
                await self._end()
                raise
            self._idle = asyncio.create_task(self._end_when_idle())
        if error is not None:
            raise error
        return result

    async def _start(self) -> Process:
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        # In its own session: Ctrl+C at a terminal reaches only the app, which ends the subprocess.
        process = await asyncio.create_subprocess_exec(
            *COMMAND, stdin=PIPE, stdout=PIPE, start_new_session=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        )  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(packed(self._config.model_dump(mode="json")))
        return process

    async def _end_when_idle(self) -> None:
        await asyncio.sleep(IDLE_SECONDS)
        async with self._lock:
            await self._end()

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), END_SECONDS)
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _answer(process: Process, job: Job) -> Any:
    """Send a job, and return its result and its error."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(packed(job))
    try:
        await process.stdin.drain()
        (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
        # Written by a subprocess of this app; nothing else can put data here.
        return pickle.loads(await process.stdout.readexactly(length))
    except (ConnectionError, asyncio.IncompleteReadError):
        raise RuntimeError("the comparison ended unexpectedly; see the log") from None
