"""The service's schedule: crawl runs when targets are due, replans and other jobs at intervals.

Also the options of the service, and its systemd units.
"""

from __future__ import annotations

import argparse
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
from crawler.errors import ConfigError
from crawler.storage.embedded import EmbeddedServer
from crawler.utils import time as units
from crawler.utils.files import file_errors, rotate
from crawler.web.options import Address, address_of

logger = logging.getLogger(__name__)
# Interval between reads of due targets: imports and replans may make targets due earlier.
DUE_SECONDS = 5.0
# Pause after a run, by its result. Pauses after idle and failed runs double up to the maximum.
MIN_PAUSE_SECONDS = 0.2
IDLE_SECONDS = 30.0
FAILED_SECONDS = 5.0
BUSY_SECONDS = 5.0
MAX_PAUSE_SECONDS = 300.0
JOB_NAMES = REPLAN, PRUNE, NOTIFY = "replan", "prune", "notify"
# Suffix of a job's name in the counts of failures.
FAILED = "failed"
# Log of cron's commands in the data folder.
CRON_LOG = "cron.log"
PRUNE_SECONDS = 24 * 3600.0
FIRST_PRUNE_SECONDS = 3600.0
# Interval between deliveries of notifications, if there are any.
NOTIFY_SECONDS = 60.0
# Pause after a failed job.
RETRY_SECONDS = 3600.0
# Time between SIGTERM and SIGKILL for a job's command.
STOP_SECONDS = 10.0
STDERR = 2


class RunEnd(StrEnum):
    """The result of a run. IDLE: it made no visits, although targets are due."""

    SUCCESS = "success"
    IDLE = "idle"
    FAILED = "failed"
    BUSY = "busy"


@dataclass(slots=True)
class SpiderState:
    """The state of one spider in the service; all times are of one monotonic clock, in seconds.

    due:        when the next target is due; None: no target is
    not_before: end of the pause after the last run
    read_at:    when `due` was read; None: not since the last run; infinite: at the start and after
                a failed run, the next run begins without reading `due`
    repeated:   number of consecutive runs with the same result as the last one
    """

    due: float | None = 0.0
    not_before: float = 0.0
    read_at: float | None = math.inf
    is_running: bool = False
    last_end: RunEnd = RunEnd.SUCCESS
    repeated: int = 0

    @property
    def ready(self) -> float | None:
        """Return when a run may begin; None if one is in progress or no target is due."""
        return None if self.is_running or self.due is None else max(self.due, self.not_before)

    @property
    def skips_read(self) -> bool:
        """Return whether the run begins without a read of `due`, so that it may find none due."""
        return self.read_at == math.inf

    def needs_read(self, now: float) -> bool:
        """Return whether `due` has to be read before the next decision."""
        if self.is_running or now < self.not_before:
            return False
        return self.read_at is None or now >= self.read_at + DUE_SECONDS

    def ended(self, end: RunEnd, now: float) -> float:
        """Record the end of a run; return the pause after it in seconds."""
        self.repeated = self.repeated + 1 if end is self.last_end else 1
        self.is_running, self.last_end = False, end
        seconds = pause_seconds(end, self.repeated)
        self.not_before = now + seconds
        # After a run that could not start, the database may have no targets of the spider yet.
        is_stored = end in (RunEnd.SUCCESS, RunEnd.IDLE)
        self.due, self.read_at = (None, None) if is_stored else (self.not_before, math.inf)
        return seconds


def decide(now: float, states: Mapping[str, SpiderState], room: int) -> tuple[list[str], float]:
    """Return the spiders whose runs should begin now, and the seconds to sleep unless a run ends.

    Spiders that have waited longest go first.

    room: maximum number of concurrent runs
    """
    room -= sum(state.is_running for state in states.values())
    times = {name: ready for name, state in states.items() if (ready := state.ready) is not None}
    waiting = sorted((name for name, ready in times.items() if ready <= now), key=times.__getitem__)
    # Ready spiders beyond `room` do not shorten the sleep: they wait until a run ends, which wakes
    # the service.
    later = [ready - now for ready in times.values() if ready > now]
    pauses = [state.not_before - now for state in states.values() if state.not_before > now]
    return waiting[: max(0, room)], min([DUE_SECONDS, *later, *pauses])


def pause_seconds(end: RunEnd, repeated: int) -> float:
    """Return the pause after a run. repeated: number of consecutive runs with this result."""
    if end is RunEnd.SUCCESS:
        return MIN_PAUSE_SECONDS
    if end is RunEnd.BUSY:
        return BUSY_SECONDS
    first = IDLE_SECONDS if end is RunEnd.IDLE else FAILED_SECONDS
    return min(MAX_PAUSE_SECONDS, first * 2.0 ** min(repeated - 1, 10))


@dataclass(slots=True)
class PeriodicJob:
    """A command that the service runs periodically.

    every:   interval in seconds
    next_at: time of the next start on a monotonic clock, in seconds
    """

    name: str
    words: list[str]
    every: float
    next_at: float

    def ran(self, now: float, *, succeeded: bool) -> None:
        """Schedule the next run; after a failure, within RETRY_SECONDS."""
        self.next_at = now + (self.every if succeeded else min(self.every, RETRY_SECONDS))


def periodic_jobs(
    replan_seconds: float, since_plan: float, now: float, *, prunes: bool = True
) -> list[PeriodicJob]:
    """Return the periodic jobs of a service.

    replan_seconds: interval between replans; 0: never
    since_plan:     seconds since the last plan or, if there is none, since the first run
    """
    prune = PeriodicJob(PRUNE, ["prune"], PRUNE_SECONDS, now + FIRST_PRUNE_SECONDS)
    first = now + max(0.0, replan_seconds - since_plan)
    replan = PeriodicJob(REPLAN, ["replan"], replan_seconds, first)
    return [replan] * bool(replan_seconds) + [prune] * prunes


def notify_job(now: float) -> PeriodicJob:
    """Return the job that delivers notifications. Replans, which take long, do not delay it."""
    return PeriodicJob(NOTIFY, ["notify", "deliver"], NOTIFY_SECONDS, now)


def rotate_logs(config: Config) -> None:
    """Rename the logs of cron's commands and of the embedded server if they are large.

    Raises ConfigError.
    """
    with file_errors(str(config.data_dir)):
        rotate(config.data_dir / CRON_LOG)
        if config.mongo_uri is None:
            EmbeddedServer.of(config).rotate_log()


def command_line_settings(settings: BaseSettings) -> list[str]:
    """Return this process's `-s` options, to pass on to commands, except the log settings."""
    priority = SETTINGS_PRIORITIES["cmdline"]
    given = (name for name in settings if settings.getpriority(name) == priority)
    passed = sorted(name for name in given if not name.startswith("LOG_"))
    return [word for name in passed for word in ("-s", f"{name}={settings[name]}")]


async def run_periodic_jobs(
    todo: list[PeriodicJob],
    options: list[str],
    counts: Counter[str],
    waits: Callable[[PeriodicJob], Awaitable[float]],
) -> None:
    """Run the periodic jobs on schedule, one at a time, and count the results, until cancelled.

    waits: returns the seconds that a job has to wait because another machine runs it or has run
    it
    """
    clock = asyncio.get_running_loop().time
    while todo:
        job = min(todo, key=lambda job: job.next_at)
        await asyncio.sleep(max(0.0, job.next_at - clock()))
        if (seconds := await waits(job)) > 0:
            job.next_at = clock() + seconds
            continue
        code = await _run_command([*job.words, *options])
        job.ran(clock(), succeeded=not code)
        counts[f"{job.name} {FAILED}" if code else job.name] += 1
        if code:
            logger.warning("scrapy %s failed (exit code %d)", job.name, code)
        else:
            logger.info("scrapy %s finished", job.name)


async def _run_command(words: list[str]) -> int:
    """Run a command with its output on stderr; return its exit code. Terminate it if cancelled."""
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


SERVICE, WORKER, WEB = "freshet.service", "freshet@.service", "freshet-web.service"


def unit(config: Config, names: Sequence[str], template: str = SERVICE) -> str:
    """Return the text of a systemd unit.

    names:    spiders, files and folders; empty: all spiders
    template: SERVICE, WORKER for a unit that neither replans nor prunes, or WEB for the web app
    """
    # Absolute paths, because a unit runs in the project folder.
    words = [
        f"{Path(name).resolve()}{os.sep if name.endswith(os.sep) else ''}"
        if name.endswith((os.sep, ".toml"))
        else name
        for name in names
    ]
    is_embedded, needs_tmp = config.mongo_uri is None, False
    if is_embedded:
        # If the path of the data folder is too long for a socket, the socket is in /tmp.
        server = EmbeddedServer.of(config)
        needs_tmp = server.socket.parent != server.folder
    # With the prefix "-", systemd ignores missing folders.
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
    """Escape systemd's specifiers."""
    return text.replace("%", "%%")


def _quoted(word: str) -> str:
    """Quote a word of a command line for systemd."""
    word = _plain(word).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{word}"' if set(word) & set(" '\"\\;\t") else word


NEVER = "0"
HOUR_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """Validated options of the service.

    names:         spiders, site definition files, folders; empty: all spiders of the project
    seconds:       time after which the service exits; None: run until stopped
    slice_seconds: maximum duration of a run
    replan_hours:  interval between replans; 0: never
    prunes:        whether to prune old versions and visits
    metrics:       address of the metrics server; None: no server
    standby:       whether to run only while no other service does
    attached:      whether to stop when standard input ends
    """

    names: list[str]
    seconds: float | None
    slice_seconds: float
    replan_hours: float
    prunes: bool = True
    metrics: Address | None = None
    standby: bool = False
    attached: bool = False


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments and options of `scrapy refresh run`."""
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME|FILE.toml|FOLDER/",
        help="sites to keep fresh (default: all spiders)",
    )
    parser.add_argument(
        "--spider", action="append", default=[], metavar="NAME", help="same as NAME (repeatable)"
    )
    parser.add_argument(
        "--for", dest="for_time", metavar="T", help="stop after a time, such as 12h"
    )
    parser.add_argument(
        "--slice", metavar="T", help="maximum duration of one run [FRESHET_REFRESH_SLICE_SECONDS]"
    )
    parser.add_argument(
        "--replan",
        metavar="T",
        help="interval between replans; 0: never [FRESHET_REFRESH_REPLAN_HOURS]",
    )
    parser.add_argument(
        "--no-prune", dest="prunes", action="store_false", help="do not run scrapy prune"
    )
    parser.add_argument(
        "--metrics",
        metavar="[HOST:]PORT",
        help="serve Prometheus metrics; HOST defaults to loopback [FRESHET_METRICS_PORT]",
    )
    parser.add_argument(
        "--standby",
        action="store_true",
        help="run only while no other service does, and take over when it ends",
    )
    # The web app starts the service so, and may be killed.
    parser.add_argument("--attached", action="store_true", help=argparse.SUPPRESS)


def options_of(config: Config, opts: argparse.Namespace) -> ServiceOptions:
    """Validate the options, which override settings; raises ConfigError."""
    words = list(dict.fromkeys([*opts.names, *opts.spider]))
    limit = None if opts.for_time is None else _seconds(opts.for_time, "--for")
    slice_seconds, replan_hours = config.refresh_slice_seconds, config.refresh_replan_hours
    if opts.slice is not None:
        slice_seconds = _seconds(opts.slice, "--slice")
    if opts.replan is not None:
        never = opts.replan == NEVER
        replan_hours = 0.0 if never else _seconds(opts.replan, "--replan") / HOUR_SECONDS
    address = None
    if opts.metrics is not None:
        address = address_of(opts.metrics, "--metrics")
    elif config.metrics_port is not None:
        address = address_of(config.metrics_port, "FRESHET_METRICS_PORT")
    return ServiceOptions(
        words, limit, slice_seconds, replan_hours, opts.prunes, address, opts.standby, opts.attached
    )


def _seconds(text: str, option: str) -> float:
    try:
        return units.seconds(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from None
