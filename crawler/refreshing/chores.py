"""Replans and prunes: commands of their own, as they take much memory and time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings

from crawler.config import PROJECT, Config

logger = logging.getLogger(__name__)
# What cron's prune keeps where no setting says it.
KEEP = ("--keep-versions", "20", "--keep-days", "180")
PRUNE_SECONDS = 24 * 3600.0
FIRST_PRUNE_SECONDS = 3600.0
AGAIN_SECONDS = 3600.0
STOP_SECONDS = 10.0
STDERR = 2
CHORES = REPLAN, PRUNE = "replan", "prune"
# Behind the name of a chore in its counts.
FAILED = "failed"


@dataclass(slots=True)
class Chore:
    """A command that is run again and again.

    every:   seconds between two starts
    next_at: of a monotonic clock, in seconds
    """

    name: str
    words: list[str]
    every: float
    next_at: float

    def ran(self, now: float, *, well: bool) -> None:
        """Note that it was run; one that failed is run again within the hour."""
        self.next_at = now + (self.every if well else min(self.every, AGAIN_SECONDS))


def chores(
    config: Config, replan_seconds: float, since_plan: float, now: float, *, prunes: bool = True
) -> list[Chore]:
    """What is to be done beside the passes.

    replan_seconds: between replans; 0: never
    since_plan:     seconds since the last plan, or since the first pass ever
    """
    prune = Chore(PRUNE, prune_words(config), PRUNE_SECONDS, now + FIRST_PRUNE_SECONDS)
    first = now + max(0.0, replan_seconds - since_plan)
    replan = Chore(REPLAN, ["replan"], replan_seconds, first)
    return [replan] * bool(replan_seconds) + [prune] * prunes


def prune_words(config: Config) -> list[str]:
    """The words of a prune; what to keep is left to the settings where they say it."""
    keeps = config.keep_versions or config.keep_visits_days
    return ["prune", *([] if keeps else KEEP)]


def told(settings: BaseSettings) -> list[str]:
    """What `-s` said to this process, to be said to others."""
    given = (name for name in settings if settings.getpriority(name) == COMMAND_LINE)
    ours = sorted(name for name in given if name.startswith(("FRESHET_", "MONGO_", "REDIS_")))
    return [word for name in ours for word in ("-s", f"{name}={settings[name]}")]


COMMAND_LINE = SETTINGS_PRIORITIES["cmdline"]


async def keep_doing(
    todo: list[Chore],
    options: list[str],
    counts: Counter[str],
    waits: Callable[[Chore], Awaitable[float]],
) -> None:
    """Run each chore at its time, one at a time, until this is cancelled; count how they went.

    waits: seconds that a chore has to wait yet, as another machine does it, or has done it
    """
    clock = asyncio.get_running_loop().time
    while todo:
        chore = min(todo, key=lambda one: one.next_at)
        await asyncio.sleep(max(0.0, chore.next_at - clock()))
        if (seconds := await waits(chore)) > 0:
            chore.next_at = clock() + seconds
            continue
        code = await _run([*chore.words, *options])
        chore.ran(clock(), well=not code)
        counts[f"{chore.name} {FAILED}" if code else chore.name] += 1
        if code:
            logger.warning("scrapy %s failed (exit code %d)", chore.name, code)
        else:
            logger.info("scrapy %s is done", chore.name)


async def _run(words: list[str]) -> int:
    """The exit code of a command; what it prints goes to stderr. Ends it when cancelled."""
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "scrapy", *words,
            cwd=PROJECT, stdin=subprocess.DEVNULL, stdout=STDERR, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        logger.error("scrapy %s: %s", words[0], error.strerror or error)
        return 1
    try:
        return await process.wait()
    finally:
        if process.returncode is None:
            await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
