"""Work of the web app in subprocesses: planning jobs, explanations, comparisons, and commands.

Planning jobs run one at a time, each in a subprocess. A job may take minutes and a
gigabyte, so it must not slow down the app or leave memory allocated there. Only small results stay
here: one curve for each objective, and the last result of each kind of job.

Explanations of targets and diffs of versions run in forks, at most two of a kind at a time.
Explanations need much memory and time, and Numba is never imported in the app. Comparisons of posts
run in a subprocess that has loaded the compiled code.

`scrapy crawl` continues when the app ends; its progress is read from the database like that of any
run. `scrapy feeds add` uses Scrapy's engine, which cannot run in the process of the server, with
its guards: robots.txt, private addresses, limits of size and time. The app limits its duration.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal, cast

from fastapi import FastAPI
from pydantic import TypeAdapter

from crawler.config import PREFIX, PROJECT, UNPREFIXED, Config
from crawler.errors import Busy, ConfigError, FreshetError, NoTargets
from crawler.feeds.subscriptions import feed_url
from crawler.planning.budget_curve import BudgetCurve
from crawler.planning.report_types import BudgetPreview, Explanation
from crawler.reports import history
from crawler.reports.duplicates import Comparison
from crawler.reports.feeds import AddReport
from crawler.reports.jobs import (
    APPLY,
    CURVE,
    FEED_APPLY,
    FEED_CURVE,
    FEED_PREVIEW,
    MODULE,
    PREVIEW,
    SIMULATE,
    JobKind,
    JobRequest,
    PairRequest,
)
from crawler.storage.client import Document, server_uri
from crawler.storage.dedup.labels import Label
from crawler.storage.store import opened
from crawler.utils.process import JobCrashed, JobProcess, end_tasks
from crawler.utils.sandbox import LimitExceeded, ProcessPool
from crawler.utils.terminal import printable

logger = logging.getLogger(__name__)
# The history grows and plans change, so a curve is computed again after this time.
CURVE_SECONDS = 600.0
# Time after a failure during which showing the page does not start the job again.
RETRY_SECONDS = 30.0
MAX_JOB_SECONDS = 3600.0
CRASHED = "The job ended unexpectedly. The log of scrapy web has the details"
TITLES: Mapping[JobKind, str] = {
    CURVE: "Computing the curve",
    PREVIEW: "Dry run",
    APPLY: "Applying the plan",
    SIMULATE: "Simulation",
    FEED_CURVE: "Computing the curve of feeds",
    FEED_PREVIEW: "Dry run of feeds",
    FEED_APPLY: "Applying the plan of feeds",
}
# The kind of dry run whose plan each of these kinds of job applies.
APPLIES: Mapping[JobKind, JobKind] = {APPLY: PREVIEW, FEED_APPLY: FEED_PREVIEW}
CURVES = (CURVE, FEED_CURVE)
_CURVE, _PREVIEW = TypeAdapter(BudgetCurve), TypeAdapter(BudgetPreview)
RESULTS: Mapping[JobKind, TypeAdapter[Any]] = {
    CURVE: _CURVE, FEED_CURVE: _CURVE, PREVIEW: _PREVIEW, FEED_PREVIEW: _PREVIEW,
}  # fmt: skip

State = Literal["running", "done", "failed", "cancelled"]
# Limits of one explanation.
MAX_SECONDS, MAX_MB = 30, 4096
# Targets of the site to read. Reading 100,000 histories takes the server about two seconds.
MAX_READ = 20_000
# Requests to the server that started the work go first.
NICENESS = 10
# An explanation takes seconds, so it is kept for readers who return to the page.
KEPT_SECONDS, MAX_KEPT = 600.0, 100
# Time that a request waits for an explanation; the work continues afterwards.
PATIENCE_SECONDS = 0.2
# Explanations being made, most of them waiting for a subprocess.
MAX_PENDING = 20
# Time after the last comparison for which its subprocess, which takes about 185 MB, is kept.
IDLE_SECONDS = 600.0
MAX_COMPARISON_SECONDS = 60.0
COMPARISON, LABEL = TypeAdapter(Comparison), TypeAdapter(Label)


@dataclass(slots=True)
class Job:
    """A planning job.

    by:     name of the user
    result: its type depends on the kind; None until the job is done
    error:  what went wrong, one line
    is_empty: whether it failed because there are no targets
    """

    id: str
    kind: JobKind
    by: str
    started: datetime
    request: JobRequest
    state: State = "running"
    progress: str = "starting"
    result: Any = None
    error: str = ""
    is_empty: bool = False

    @property
    def is_without_targets(self) -> bool:
        """Return whether this job is for a curve, which needs targets that do not exist yet."""
        return self.is_empty and self.kind in CURVES

    @property
    def title(self) -> str:
        """Return what the job does."""
        return TITLES[self.kind]

    @property
    def is_running(self) -> bool:
        """Return whether the job has not ended."""
        return self.state == "running"

    @property
    def can_be_cancelled(self) -> bool:
        """Return whether the job may be cancelled: a plan is applied as a whole or not at all."""
        return self.is_running and self.kind not in APPLIES


class Planner:
    """Starts, watches and cancels jobs, and keeps their last results."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.job: Job | None = None
        self._done: dict[JobKind, Job] = {}
        self._failed: dict[JobKind, Job] = {}
        self._curves: dict[tuple[JobKind, str | None], tuple[float, Any]] = {}
        self._failed_at: dict[JobKind, float] = {}
        self._task: asyncio.Task[None] | None = None
        # A cancelled job ends immediately, and a job's memory is freed with its subprocess.
        self.jobs = JobProcess(MODULE, grace_seconds=0.0)

    def last(self, kind: JobKind) -> Job | None:
        """Return the last job of a kind that was done since the app was started."""
        return self._done.get(kind)

    @property
    def failed(self) -> list[Job]:
        """Return the failed or cancelled jobs, unless a newer job of the same kind was started.

        A curve without targets is no failure: the page says what to do.
        """
        return [job for job in self._failed.values() if not job.is_without_targets]

    def has_no_targets(self, kind: JobKind) -> bool:
        """Return whether the last job of a kind found no targets."""
        job = self._failed.get(kind)
        return job is not None and job.is_without_targets

    def curve(self, kind: JobKind, objective: str | None) -> Any:
        """Return a curve; None if it must be computed. objective: of pages; None: of feeds."""
        at, curve = self._curves.get((kind, objective), (0.0, None))
        if curve is not None and time.monotonic() - at > CURVE_SECONDS:
            del self._curves[kind, objective]
            return None
        return curve

    def want_curve(self, kind: JobKind, objective: str | None, by: str, now: datetime) -> None:
        """Start computing a curve, unless a job is running or the curve failed a moment ago."""
        is_busy = self.job is not None and self.job.is_running
        failed_at = self._failed_at.get(kind, -math.inf)
        if not is_busy and time.monotonic() - failed_at > RETRY_SECONDS:
            self.start(kind, by, now, objective=objective)

    def forget_curves(self) -> None:
        """Compute curves again when they are needed."""
        self._curves.clear()
        self._failed_at.clear()

    def start(self, kind: JobKind, by: str, now: datetime, **options: Any) -> Job:
        """Start a job with options of JobRequest; raises Busy while another one is running."""
        if self.job is not None and self.job.is_running:
            how = "Wait for it" if self.job.kind in APPLIES else "Wait for it, or cancel it"
            raise Busy(f"Another job is running: {self.job.title.lower()} ({self.job.by}). {how}")
        request = JobRequest(kind=kind, config=self._config.model_dump(mode="json"), **options)
        self._failed.pop(kind, None)
        self.job = job = Job(secrets.token_hex(8), kind, by, now, request)
        self._task = asyncio.create_task(self._run(job))
        return job

    def apply(self, kind: JobKind, preview_id: str, by: str, now: datetime) -> Job:
        """Start applying a dry run; raises Busy, and ConfigError if it is not the last one."""
        last = self.last(APPLIES[kind])
        if last is None or last.id != preview_id or last.result is None:
            raise ConfigError("This is not the last dry run. Make the dry run again")
        request, plans = last.request, last.result["plans"]
        return self.start(
            kind, by, now, budget=request.budget, objective=request.objective, plans=plans
        )

    async def cancel(self, job_id: str) -> None:
        """Cancel the job with this id, if it is still running and may be cancelled."""
        job, task = self.job, self._task
        if job is None or task is None or job.id != job_id or not job.can_be_cancelled:
            return
        job.state, job.progress = "cancelled", ""
        await end_tasks(task)

    async def close(self) -> None:
        """End the running job; a plan that is being applied is completed by the next replan."""
        if self._task is not None:
            await end_tasks(self._task)

    async def _run(self, job: Job) -> None:
        def report(text: str) -> None:
            job.progress = text

        try:
            result = await self.jobs.run(job.request.model_dump_json(), MAX_JOB_SECONDS, report)
            if (types := RESULTS.get(job.kind)) is not None:
                result = await asyncio.to_thread(types.validate_python, result)
            job.result, job.state = result, "done"
        except TimeoutError:
            job.error = f"The job took more than {MAX_JOB_SECONDS / 60:.0f} minutes"
        except FreshetError as error:
            job.error, job.is_empty = str(error), isinstance(error, NoTargets)
        except JobCrashed:
            job.error = CRASHED
        except (OSError, ValueError) as error:
            logger.exception("Planning job failed: %s", job.kind)
            job.error = f"The job could not be run: {error}"
        finally:
            if job.is_running:
                job.state, job.error = "failed", job.error or CRASHED
            self._keep(job)

    def _keep(self, job: Job) -> None:
        """Keep the result of an ended job, or its error."""
        if job.state != "done":
            self._failed[job.kind] = job
            if job.kind in CURVES:
                self._failed_at[job.kind] = time.monotonic()
        elif job.kind in CURVES:
            self._curves[job.kind, job.request.objective] = time.monotonic(), job.result
            job.result = None
        else:
            self._done[job.kind] = job
        if job.kind in APPLIES and job.state == "done":
            self.forget_curves()
            # The dry run describes changes that have now been made.
            self._done.pop(APPLIES[job.kind], None)


class Subprocesses:
    """The sandboxes of an app, and the explanations that it made recently.

    patience_seconds: time that `explained` waits
    pending:          explanations being made
    """

    def __init__(self, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.comparing = ProcessPool.forking(history.COMPARE_SECONDS, history.COMPARE_MB)
        self._explaining = ProcessPool.forking(MAX_SECONDS, MAX_MB)
        self._patience_seconds = patience_seconds
        self._kept: OrderedDict[tuple[str, ...], tuple[float, Explanation | FreshetError]]
        self._kept = OrderedDict()
        self.pending: dict[tuple[str, ...], asyncio.Task[None]] = {}

    @classmethod
    def of(cls, app: FastAPI) -> Subprocesses:
        """Return the instance of an app, creating it if necessary."""
        if not hasattr(app.state, "subprocesses"):
            app.state.subprocesses = cls()
        made: Subprocesses = app.state.subprocesses
        return made

    async def explained(self, config: Config, target: Document) -> Explanation | None:
        """Return the explanation of a target, not older than KEPT_SECONDS or its last write.

        Returns None while the explanation is being made: call this again a second later. Raises
        ConfigError if the site of the target is too large.
        """
        names = ("_id", "fence", "next_visit", "limits", "muted_at")
        state = [str(target.get(name)) for name in names]
        key = (*state, str((target.get("plan") or {}).get("id")))
        if (made := self._fresh(key)) is None:
            if key not in self.pending and len(self.pending) < MAX_PENDING:
                work = self._explain(key, config, target["_id"])
                self.pending[key] = asyncio.create_task(work)
            if (task := self.pending.get(key)) is not None:
                # The task continues if the request is cancelled or times out.
                await asyncio.wait({task}, timeout=self._patience_seconds)
            made = self._fresh(key)
        if isinstance(made, FreshetError):
            raise type(made)(*made.args)
        return made

    async def close(self) -> None:
        """Cancel explanations that are being made."""
        await end_tasks(*self.pending.values())

    def _fresh(self, key: tuple[str, ...]) -> Explanation | FreshetError | None:
        at, made = self._kept.get(key, (0.0, None))
        return made if time.monotonic() - at < KEPT_SECONDS else None

    async def _explain(self, key: tuple[str, ...], config: Config, target: str) -> None:
        made: Explanation | FreshetError
        try:
            made = await explained(config, target, self._explaining)
        except FreshetError as error:
            made = error
        except Exception:
            # Nobody may be waiting for the task.
            logger.exception("Target not explained: %s", target)
            made = ConfigError("the explanation failed. The log of scrapy web has the details")
        finally:
            del self.pending[key]
        self._kept[key] = time.monotonic(), made
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)


async def explained(config: Config, key: str, sandbox: ProcessPool) -> Explanation:
    """Return state, estimates and plan of a target, by its `_id`.

    Raises ConfigError if the target does not exist, or if its site is too large.
    """
    # The subprocess must not start or stop an embedded server.
    uri = await asyncio.to_thread(server_uri, config)
    work = partial(_explain, config.model_copy(update={"mongo_uri": uri}), key)
    try:
        explanation: Explanation = await sandbox.run(work)
    except LimitExceeded as problem:
        raise ConfigError(
            f"the estimate {problem}. Run scrapy explain in a terminal, which has no limit"
        ) from None
    return explanation


def _explain(config: Config, key: str) -> Explanation:
    from crawler.planning.explain import explain_target
    from crawler.storage.target_queries import find

    async def explain() -> Explanation:
        async with opened(config) as db:
            if (target := await find(db, key)) is None:
                raise ConfigError("target not found: it has been deleted")
            now = config.clock.now()
            return await explain_target(db, config, target, now, lambda _: None, MAX_READ)

    os.nice(NICENESS)
    return asyncio.run(explain())


class DuplicateJobs:
    """Compares and labels posts, one pair at a time."""

    def __init__(self, config: Config) -> None:
        self.jobs = JobProcess(MODULE, IDLE_SECONDS)
        self._config = config.model_dump(mode="json")

    async def compare(self, posts: tuple[str, str]) -> Comparison:
        """Return two posts side by side, by URLs or ids; raises ConfigError."""
        request = PairRequest(kind="compare", config=self._config, posts=posts)
        return COMPARISON.validate_python(await self._run(request))

    async def label(self, posts: tuple[str, str], now: datetime, *, same: bool, by: str) -> Label:
        """Label two posts by their ids; raises ConfigError, and Busy during a rebuild."""
        request = PairRequest(
            kind="label", config=self._config, posts=posts, now=now, same=same, by=by
        )
        return LABEL.validate_python(await self._run(request))

    async def _run(self, request: PairRequest) -> object:
        try:
            return await self.jobs.run(request.model_dump_json(), MAX_COMPARISON_SECONDS)
        except TimeoutError:
            raise ConfigError(
                f"comparing these posts takes more than {MAX_COMPARISON_SECONDS:g} s"
            ) from None


# Maximum number of crawls in progress that the app has started.
MAX_CRAWLS = 4
# Maximum number of crawls that are kept for their results.
MAX_RESULTS = 100
# Maximum number of sites of which all pages are checked after the crawl in progress.
MAX_WAITING = 20
POLL_SECONDS, WAIT_POLL_SECONDS = 0.25, 1.0
MAX_LOG_BYTES, MAX_MESSAGE_CHARACTERS = 4096, 500
# Limits on adding feeds: how many at a time, seconds for each, and characters of its error.
MAX_ADDS, MAX_ADD_SECONDS, MAX_ADD_CHARACTERS = 2, 60.0, 300
_adding = asyncio.Semaphore(MAX_ADDS)


@dataclass(slots=True)
class Crawl:
    """A crawl that the app has started.

    started: time at which it was asked for
    full:    whether it visits all pages, due or not
    waits:   whether it waits for the end of another crawl of the site
    code:    exit code; None while it is in progress
    message: last line that the command printed, if it failed; else empty
    """

    site: str
    by: str
    started: datetime
    full: bool = False
    waits: bool = False
    code: int | None = None
    message: str = ""


class Crawls:
    """Starts crawls, and keeps the results of the last ones by site.

    settings: `-s NAME=VALUE` words, to pass on to the command
    """

    def __init__(self, settings: Sequence[str] = ()) -> None:
        self._settings = list(settings)
        self._crawls: OrderedDict[str, Crawl] = OrderedDict()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def of(self, site: str) -> Crawl | None:
        """Return the last crawl of a site that the app has started; None without one."""
        return self._crawls.get(site)

    def start(self, site: str, by: str, now: datetime, *, full: bool = False) -> Crawl:
        """Start a crawl of a site; raises Busy if the app has started too many, and ConfigError.

        full: of all pages, whether they are due or not
        """
        if site.startswith("-") or not site.isprintable():
            raise ConfigError(f"not the name of a site: {site!r}")
        if site in self._processes:
            raise Busy(f"{site} is already being crawled")
        crawl = Crawl(site, by, now, full)
        self._begin(crawl)
        self._keep(crawl)
        return crawl

    async def start_full(
        self, site: str, by: str, now: datetime, is_free: Callable[[], Awaitable[bool]]
    ) -> Crawl:
        """Start a crawl of all pages of a site, as soon as the crawl in progress has ended.

        is_free: whether no process crawls the site, also none that was started elsewhere

        Return the crawl of all pages that waits or is in progress, if there is one. Raises Busy if
        the app has started too many or too many are waiting, and ConfigError.
        """
        last = self._crawls.get(site)
        if last is not None and last.full and last.code is None:
            return last
        if await is_free() and site not in self._processes:
            return self.start(site, by, now, full=True)
        if sum(crawl.waits for crawl in self._crawls.values()) >= MAX_WAITING:
            raise Busy(f"{MAX_WAITING} sites are waiting for the end of a crawl")
        crawl = Crawl(site, by, now, full=True, waits=True)
        self._keep(crawl)
        self._watch(self._begin_when(crawl, is_free))
        return crawl

    async def close(self) -> None:
        """Stop waiting for crawls, which continue."""
        await end_tasks(*self._tasks)
        for process in self._processes.values():
            if process.poll() is None:
                # Popen would warn that the process outlives this one, which is intended.
                process.returncode = 0
        self._processes.clear()

    def _keep(self, crawl: Crawl) -> None:
        self._crawls.pop(crawl.site, None)
        self._crawls[crawl.site] = crawl
        while len(self._crawls) > MAX_RESULTS:
            self._crawls.popitem(last=False)

    def _watch(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _begin_when(self, crawl: Crawl, is_free: Callable[[], Awaitable[bool]]) -> None:
        try:
            while crawl.site in self._processes or not await is_free():  # noqa: ASYNC110
                await asyncio.sleep(WAIT_POLL_SECONDS)
            self._begin(crawl)
        except FreshetError as error:
            crawl.code, crawl.message = 1, str(error)
        finally:
            crawl.waits = False

    def _begin(self, crawl: Crawl) -> None:
        """Start the process of a crawl; raises Busy and ConfigError."""
        if len(self._processes) >= MAX_CRAWLS:
            raise Busy(
                f"{MAX_CRAWLS} crawls started here are in progress. Wait until one of them ends"
            )
        words = [sys.executable, "-m", "scrapy", "crawl", crawl.site, "-L", "WARNING"]
        words += ["-a", "full=1"] if crawl.full else []
        words += self._settings
        # An unnamed file, which disappears when the last process that has it open ends.
        log = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            # Not asyncio's subprocess: the event loop would kill it when the app ends.
            process = subprocess.Popen(
                words, cwd=PROJECT, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            log.close()
            raise ConfigError(f"scrapy crawl: {error.strerror or error}") from None
        self._processes[crawl.site] = process
        self._watch(self._wait(crawl, process, log))

    async def _wait(self, crawl: Crawl, process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
        with log:
            # Waiting in a thread would delay the end of the app.
            while process.poll() is None:  # noqa: ASYNC110
                await asyncio.sleep(POLL_SECONDS)
            crawl.code = process.returncode
            del self._processes[crawl.site]
            if crawl.code:
                size = log.seek(0, 2)
                log.seek(max(0, size - MAX_LOG_BYTES))
                lines = log.read(MAX_LOG_BYTES).decode(errors="replace").strip().splitlines()
                last = printable(lines[-1])[:MAX_MESSAGE_CHARACTERS] if lines else ""
                crawl.message = last or f"exit code {crawl.code}"


async def add_feeds(
    config: Config,
    spider: str,
    url: str,
    *,
    title: str = "",
    categories: Sequence[str] = (),
    every: bool = False,
    settings: Sequence[str] = (),
) -> AddReport:
    """Fetch a URL, and add its feed, or the first feed that the page links to.

    every:    add all feeds that the page links to
    settings: `-s NAME=VALUE` words, to pass on to the command

    Raises ConfigError for an invalid URL and after MAX_ADD_SECONDS, and Busy if MAX_ADDS other
    commands are running.
    """
    try:
        feed_url(url, config)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if _adding.locked():
        raise Busy("other feeds are being added. Try again in a minute")
    options = ["--spider", spider, *(["--all"] if every else [])]
    options += [f"--title={title}"] if title else []
    options += [f"--category={category}" for category in categories]
    words = ("feeds", "add", "--json", *options, *settings, "--", url)
    command = (sys.executable, "-m", "scrapy", *words)
    async with _adding:
        return await _report_of(command, config)


async def _report_of(command: Sequence[str], config: Config) -> AddReport:
    # The settings of this process, for the command.
    names = {field: name for name, field in UNPREFIXED.items()}
    settings = {
        names.get(field, f"{PREFIX}{field.upper()}"): str(value)
        for field in config.model_fields_set
        if isinstance(value := getattr(config, field), str | int | float | Path)
    }
    environment = os.environ | settings | {"SCRAPY_SETTINGS_MODULE": "crawler.settings"}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, cwd=PROJECT, env=environment, stdin=asyncio.subprocess.DEVNULL,
        stdout=pipe, stderr=pipe,
    )  # fmt: skip
    reading = asyncio.ensure_future(process.communicate())
    try:
        output, errors = await asyncio.wait_for(asyncio.shield(reading), MAX_ADD_SECONDS)
    except TimeoutError:
        raise ConfigError(
            f"the site did not answer within {MAX_ADD_SECONDS:g} s. Try again"
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
        await end_tasks(reading)
        await process.wait()
    try:
        return cast(AddReport, json.loads(output))
    except ValueError:
        lines = errors.decode("utf-8", "replace").strip().splitlines()
        raise ConfigError(
            (lines or ["the feed could not be added"])[-1][:MAX_ADD_CHARACTERS]
        ) from None
