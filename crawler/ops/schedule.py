"""What the service runs when: crawl runs by what is due, replans and prunes by the clock."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings

from crawler.config import PROJECT, Config
from crawler.storage.embedded import EmbeddedServer

logger = logging.getLogger(__name__)
# Between two reads of what is due, as imports and replans may bring visits forward.
DUE_SECONDS = 5.0
# Pauses after a run, by how it ended; those after idle and failed ones double to the longest.
MIN_PAUSE_SECONDS = 0.2
IDLE_SECONDS = 30.0
FAILED_SECONDS = 5.0
BUSY_SECONDS = 5.0
MAX_PAUSE_SECONDS = 300.0
CHORES = REPLAN, PRUNE = "replan", "prune"
# Behind the name of a chore in its counts.
FAILED = "failed"
# What cron's prune keeps where no setting says it.
KEEP = ("--keep-versions", "20", "--keep-days", "180")
PRUNE_SECONDS = 24 * 3600.0
FIRST_PRUNE_SECONDS = 3600.0
# After a chore that failed.
RETRY_SECONDS = 3600.0
# For a command to end after SIGTERM.
STOP_SECONDS = 10.0
STDERR = 2


class RunEnd(StrEnum):
    """How a run ended. IDLE: it could visit nothing, though something is due."""

    GOOD = "good"
    IDLE = "idle"
    FAILED = "failed"
    BUSY = "busy"


@dataclass(slots=True)
class SpiderState:
    """The state of one spider in the service; times are those of one monotonic clock.

    due:        when its next target is due; None: it has none
    not_before: end of its pause
    read_at:    when `due` was read; None: it has to be read; infinite at first and after a failure,
                as the next run does not depend on it
    repeated:   how often in a row its runs ended as the last one did
    """

    due: float | None = 0.0
    not_before: float = 0.0
    read_at: float | None = math.inf
    is_running: bool = False
    last_end: RunEnd = RunEnd.GOOD
    repeated: int = 0

    @property
    def ready(self) -> float | None:
        """When a run may begin; None: not as things are."""
        return None if self.is_running or self.due is None else max(self.due, self.not_before)

    @property
    def is_blind(self) -> bool:
        """Whether its run begins, or began, without a read: it need not find anything to do."""
        return self.read_at == math.inf

    def needs_read(self, now: float) -> bool:
        """Whether `due` is to be read before the next decision."""
        if self.is_running or now < self.not_before:
            return False
        return self.read_at is None or now >= self.read_at + DUE_SECONDS

    def ended(self, end: RunEnd, now: float) -> float:
        """Note the end of a run; return the seconds of the pause after it."""
        self.repeated = self.repeated + 1 if end is self.last_end else 1
        self.is_running, self.last_end = False, end
        seconds = pause_seconds(end, self.repeated)
        self.not_before = now + seconds
        # Of a spider that could not begin the database may have nothing yet.
        is_stored = end in (RunEnd.GOOD, RunEnd.IDLE)
        self.due, self.read_at = (None, None) if is_stored else (self.not_before, math.inf)
        return seconds


def decide(now: float, states: Mapping[str, SpiderState], room: int) -> tuple[list[str], float]:
    """Return the spiders whose runs begin, and the seconds to sleep unless a run ends.

    Those that have waited longest begin.

    room: runs that may be in progress at a time
    """
    room -= sum(state.is_running for state in states.values())
    times = {name: ready for name, state in states.items() if (ready := state.ready) is not None}
    waiting = sorted((name for name, ready in times.items() if ready <= now), key=times.__getitem__)
    # Those that find no room wait for the end of a run, which ends the sleep.
    later = [ready - now for ready in times.values() if ready > now]
    pauses = [state.not_before - now for state in states.values() if state.not_before > now]
    return waiting[: max(0, room)], min([DUE_SECONDS, *later, *pauses])


def pause_seconds(end: RunEnd, repeated: int) -> float:
    """Return how long a spider pauses after a run. repeated: runs in a row that ended so."""
    if end is RunEnd.GOOD:
        return MIN_PAUSE_SECONDS
    if end is RunEnd.BUSY:
        return BUSY_SECONDS
    first = IDLE_SECONDS if end is RunEnd.IDLE else FAILED_SECONDS
    return min(MAX_PAUSE_SECONDS, first * 2.0 ** min(repeated - 1, 10))


@dataclass(slots=True)
class Chore:
    """A command that is run periodically.

    every:   seconds between two starts
    next_at: of a monotonic clock, in seconds
    """

    name: str
    words: list[str]
    every: float
    next_at: float

    def ran(self, now: float, *, well: bool) -> None:
        """Note that it was run; one that failed is run again within the hour."""
        self.next_at = now + (self.every if well else min(self.every, RETRY_SECONDS))


def chores(
    config: Config, replan_seconds: float, since_plan: float, now: float, *, prunes: bool = True
) -> list[Chore]:
    """Return the chores of a service.

    replan_seconds: between replans; 0: never
    since_plan:     seconds since the last plan, or since the first run ever
    """
    prune = Chore(PRUNE, prune_words(config), PRUNE_SECONDS, now + FIRST_PRUNE_SECONDS)
    first = now + max(0.0, replan_seconds - since_plan)
    replan = Chore(REPLAN, ["replan"], replan_seconds, first)
    return [replan] * bool(replan_seconds) + [prune] * prunes


def prune_words(config: Config) -> list[str]:
    """Return the words of a prune; what to keep is left to the settings if they say it."""
    keeps = config.keep_versions or config.keep_visits_days
    return ["prune", *([] if keeps else KEEP)]


def command_line_settings(settings: BaseSettings) -> list[str]:
    """Return the options `-s` of this process that other commands need too."""
    priority = SETTINGS_PRIORITIES["cmdline"]
    given = (name for name in settings if settings.getpriority(name) == priority)
    ours = sorted(name for name in given if name.startswith(("FRESHET_", "MONGO_", "REDIS_")))
    return [word for name in ours for word in ("-s", f"{name}={settings[name]}")]


async def run_chores(
    todo: list[Chore],
    options: list[str],
    counts: Counter[str],
    waits: Callable[[Chore], Awaitable[float]],
) -> None:
    """Run each chore at its time, one after the other, until this is cancelled; count them.

    waits: seconds that a chore has to wait yet, as another machine runs it, or has run it
    """
    clock = asyncio.get_running_loop().time
    while todo:
        chore = min(todo, key=lambda chore: chore.next_at)
        await asyncio.sleep(max(0.0, chore.next_at - clock()))
        if (seconds := await waits(chore)) > 0:
            chore.next_at = clock() + seconds
            continue
        code = await _run_command([*chore.words, *options])
        chore.ran(clock(), well=not code)
        counts[f"{chore.name} {FAILED}" if code else chore.name] += 1
        if code:
            logger.warning("scrapy %s failed (exit code %d)", chore.name, code)
        else:
            logger.info("scrapy %s finished", chore.name)


async def _run_command(words: list[str]) -> int:
    """Return the exit code of a command; what it prints goes to stderr. Ends it when cancelled."""
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
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    await process.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()


SERVICE, WORKER = "freshet.service", "freshet@.service"


def unit(config: Config, names: Sequence[str], template: str = SERVICE) -> str:
    """The text of a unit.

    names:    of spiders, files and folders; empty for all spiders
    template: SERVICE, or WORKER for one that neither replans nor prunes
    """
    # A unit runs in the project folder.
    words = [
        f"{Path(name).resolve()}{os.sep if name.endswith(os.sep) else ''}"
        if name.endswith((os.sep, ".toml"))
        else name
        for name in names
    ]
    is_embedded, needs_tmp = config.mongo_uri is None, False
    if is_embedded:
        # Where the path of its data is long, the server's socket is in /tmp.
        server = EmbeddedServer.of(config)
        needs_tmp = server.socket.parent != server.folder
    # systemd ignores those that are missing.
    folders = [PROJECT, config.data_dir.expanduser().absolute()]
    if config.metrics_dir is not None:
        folders.append(config.metrics_dir.expanduser().absolute())
    writable = dict.fromkeys(_quoted(f"-{folder}") for folder in folders)
    filled = {
        "PROJECT": _plain(str(PROJECT)),
        "PYTHON": _quoted(sys.executable),
        "NAMES": "".join(f" {_quoted(word)}" for word in words),
        "KILL_MODE": "process" if is_embedded else "mixed",
        "PRIVATE_TMP": "false" if needs_tmp else "true",
        "WRITABLE": " ".join([*writable, "-%C/freshet"]),
    }
    written = (PROJECT / "deploy" / template).read_text(encoding="utf-8")
    lines = [line for line in written.splitlines() if line[:1] != "#"]
    text = "\n".join(lines).strip() + "\n"
    for name, value in filled.items():
        text = text.replace(f"@{name}@", value)
    return text


def _plain(text: str) -> str:
    """Text in which systemd finds no specifiers."""
    return text.replace("%", "%%")


def _quoted(word: str) -> str:
    """A word of a command line, which systemd unquotes and expands."""
    word = _plain(word).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{word}"' if set(word) & set(" '\"\\;\t") else word
