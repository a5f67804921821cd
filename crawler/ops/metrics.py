"""Metrics of a process: the runs in it, what the service counts, and their file.

The counters of runs are read off what a crawl counts anyway, so that they cost it nothing.
`freshet-NAME.prom` is the file for node_exporter's textfile collector. Several processes of one
name take `NAME`, `NAME-2`, `NAME-3`; names, unlike process ids, come again, so Prometheus keeps few
series. Import the module only where metrics are wanted: prometheus_client is slow to import.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout
from prometheus_client import (
    CollectorRegistry,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from scrapy.exceptions import IgnoreRequest
from scrapy.utils.python import global_object_name

from crawler import __version__
from crawler.errors import Busy, ConfigError
from crawler.fetch.middlewares import NotAsked
from crawler.frontier.session import Session
from crawler.items import Outcome, Visit
from crawler.ops.extensions import Metrics
from crawler.ops.schedule import CHORES, FAILED
from crawler.storage.store import Store
from crawler.utils.time import Clock
from crawler.web.address import Address

if TYPE_CHECKING:
    from crawler.ops.service import Report

logger = logging.getLogger(__name__)
LAST_SUCCESS = "freshet_pass_last_success_timestamp_seconds"
BUILD = "freshet_build_info"
OF_PROCESS = "freshet_process_"
RESULTS = ("finished", "limited", "stopped", "failed", "other")
CLASSES = ("2xx", "3xx", "4xx", "5xx", "other")
PLAIN = {
    "freshet_requests": "Number of requests, including robots.txt, redirects and retries.",
    "freshet_request_failures": "Number of requests without a response, such as timeouts.",
    "freshet_request_retries": "Number of requests retried after a failure.",
    "freshet_response_bytes": "Received response bytes, including headers, before decompression.",
    "freshet_missed_visits": "Number of planned visits that were not made.",
    "freshet_storage_retries": "Number of retries while MongoDB was unavailable.",
    "freshet_passes_started": "Number of started crawl runs.",
}
# With the label besides the spider and its values, which are there before they are counted.
LABELLED = {
    "freshet_responses": ("Number of responses by status class.", "code", CLASSES),
    "freshet_visits": ("Number of stored visits by outcome.", "outcome", tuple(map(str, Outcome))),
    "freshet_passes_ended": ("Number of ended crawl runs by result.", "result", RESULTS),
}
ENDS = {"finished": "finished", "shutdown": "stopped", "cancelled": "stopped"}
LIMIT = "closespider_"
STATUS = ("downloader/response_status_count/", "freshet/asked_again_status_count/")
FAILURES = "downloader/exception_count"
# What was never sent: robots.txt forbids it, or its host is to be left alone.
NEVER_SENT = tuple(
    f"downloader/exception_type_count/{global_object_name(error)}"
    for error in (IgnoreRequest, NotAsked)
)
LAG_EVERY_SECONDS = 1.0
# Upper bounds of histograms' buckets.
SHORT = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
LONG = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600)
LAGS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5)
SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
TO_STORED = "Seconds from receiving a response to storing its visit."
FILE_TIME = "freshet_metrics_timestamp_seconds"
FILE_TIME_HELP = "Unix time when this file was written."
LAG = "Event loop lag in seconds, sampled once a second."
# Families that go on counting where the last process of their name ended.
SUMS = ("counter", "histogram")
# Gauges of which a process has only the spiders that it runs.
GAUGES = (LAST_SUCCESS,)
PREFIX, SUFFIX = "freshet-", ".prom"
MAX_ALIKE = 64
WRITE_SECONDS = 10.0
# A file that was not written for so long is of a spider that is crawled no longer.
KEPT_SECONDS = 40 * 24 * 3600.0
# The service's name in file names, and the option of its address.
SERVICE, OPTION = "refresh", "--metrics"
PING_SECONDS = 2.0

# Of labels, and of the metric.
Values = Iterable[tuple[Sequence[str], float]]
Counts = Counter[tuple[str, str]]
Key = tuple[str, frozenset[tuple[str, str]]]
Past = dict[str, dict[Key, Sample]]


def gauge(name: str, text: str, labels: Sequence[str], values: Values) -> Metric:
    """Return a gauge; values that are NaN, so unknown, are left out."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for of, value in values:
        if not math.isnan(value):
            family.add_metric(of, value)
    return family


def by_spider(name: str, text: str, values: Iterable[tuple[str, float]]) -> Metric:
    """Return a gauge with the one label `spider`."""
    return gauge(name, text, ("spider",), (((spider,), value) for spider, value in values))


def _counter(name: str, text: str, labels: Sequence[str], values: Values) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for of, value in values:
        family.add_metric(of, value)
    return family


class RunsCollector(Collector):
    """The runs of this process, by spider: those that have ended, and those in progress."""

    def __init__(self) -> None:
        self._ended: dict[str, Counts] = {}
        self._succeeded: dict[str, float] = {}
        self._in_progress: set[Session] = set()

    def begin(self, session: Session) -> None:
        """Note that a run begins."""
        self._in_progress.add(session)
        counts = self._ended.setdefault(session.spider, Counter())
        counts["freshet_passes_started", ""] += 1

    def end(self, session: Session, reason: str) -> None:
        """Note that a run has ended. reason: Scrapy's."""
        self._in_progress.discard(session)
        counts = self._ended[session.spider]
        counts.update(counted(session))
        has_failed = session.error is not None and not isinstance(session.error, Busy)
        result = "failed" if has_failed else result_of(reason)
        counts["freshet_passes_ended", result] += 1
        if session.error is None:
            self._succeeded[session.spider] = Clock().now().timestamp()

    def collect(self) -> Iterator[Metric]:
        """Yield counters and gauges by spider."""
        now = {spider: Counter(counts) for spider, counts in self._ended.items()}
        for session in self._in_progress:
            now[session.spider].update(counted(session))
        for name, text in PLAIN.items():
            values = (((spider,), counts[name, ""]) for spider, counts in now.items())
            yield _counter(name, text, ["spider"], values)
        for name, (text, label, labels) in LABELLED.items():
            each = (((of, to), counts[name, to]) for of, counts in now.items() for to in labels)
            yield _counter(name, text, ["spider", label], each)
        in_flight = ((session.spider, len(session.in_flight)) for session in self._in_progress)
        text = "Number of targets in flight between queue and storage."
        yield by_spider("freshet_targets_in_flight", text, in_flight)
        running = Counter(session.spider for session in self._in_progress)
        of_all = ((spider, running[spider]) for spider in now)
        yield by_spider("freshet_passes_running", "Number of crawl runs in progress.", of_all)
        text = "Unix time when a crawl run last ended without an error."
        yield by_spider(LAST_SUCCESS, text, self._succeeded.items())


def result_of(reason: str) -> str:
    """Return how a run without an error has ended: spiders may name reasons of their own."""
    return "limited" if reason.startswith(LIMIT) else ENDS.get(reason, "other")


def counted(session: Session) -> Counts:
    """Return what a run has counted so far, by metric and label; it never falls."""
    stats = session.crawler.stats.get_stats()
    counts: Counts = Counter()
    for name, value in stats.items():
        for prefix in STATUS:
            if name.startswith(prefix):
                counts["freshet_responses", class_of(name.removeprefix(prefix))] += value
    failures = stats.get(FAILURES, 0) - sum(stats.get(name, 0) for name in NEVER_SENT)
    counts["freshet_request_failures", ""] = failures
    counts["freshet_requests", ""] = failures + sum(
        n for (name, _), n in counts.items() if name == "freshet_responses"
    )
    counts["freshet_request_retries", ""] = stats.get("retry/count", 0)
    counts["freshet_response_bytes", ""] = stats.get("downloader/response_bytes", 0)
    counts["freshet_missed_visits", ""] = session.counts["missed visits"]
    for outcome in Outcome:
        counts["freshet_visits", outcome] = session.counts[outcome]
    # A run that could not reach the database has none.
    if patience := getattr(session, "patience", None):
        counts["freshet_storage_retries", ""] = patience.counts["retries"]
    return counts


def class_of(status: str) -> str:
    """Return the class of an HTTP status; some servers make up their own."""
    return f"{status[0]}xx" if status[:1] in {"2", "3", "4", "5"} else "other"


class ProcessMetrics:
    """The registry of a process, and what is put into it."""

    def __init__(self) -> None:
        # When each counter was made is of no use where counters outlive processes.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.runs = RunsCollector()
        self.registry.register(self.runs)
        # Under its usual name it would clash with that of node_exporter.
        ProcessCollector(namespace="freshet", registry=self.registry)
        version = Gauge(BUILD, "Running version of Freshet.", ["version"], registry=self.registry)
        version.labels(__version__).set(1)
        self._took = self._histogram(
            "pass_duration_seconds", "Duration of crawl runs in seconds.", LONG
        )
        self._sizes = self._histogram(
            "storage_batch_visits", "Number of visits stored per batch.", SIZES
        )
        text = "Time to store a batch in seconds."
        self._storing = self._histogram("storage_batch_duration_seconds", text, SHORT)
        self._to_stored = self._histogram("response_to_stored_seconds", TO_STORED, SHORT)
        self._lag = self._histogram("reactor_lag_seconds", LAG, LAGS, by_spider=False)

    def run_ended(self, session: Session, reason: str, seconds: float) -> None:
        """Note that a run has ended. reason: Scrapy's."""
        self.runs.end(session, reason)
        self._took.labels(session.spider).observe(seconds)

    def on_stored(self, session: Session) -> Callable[[list[Visit], float], None]:
        """Return what is to be called with each stored batch of a run, and its seconds."""
        of_batch = (self._sizes, self._storing, self._to_stored)
        sizes, storing, to_stored = (each.labels(session.spider) for each in of_batch)

        def note(batch: list[Visit], seconds: float) -> None:
            sizes.observe(len(batch))
            storing.observe(seconds)
            now = session.clock.now()
            for visit in batch:
                # Deliveries of hubs have waited for a run.
                if visit.fetched.push is None:
                    to_stored.observe((now - visit.fetched.at).total_seconds())

        return note

    async def watch_lag(self) -> None:
        """Measure the event loop's lag until this is cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            due = clock() + LAG_EVERY_SECONDS
            await asyncio.sleep(LAG_EVERY_SECONDS)
            self._lag.observe(max(0.0, clock() - due))

    async def exposition(self) -> bytes:
        """Return all metrics in the text format."""
        return generate_latest(self.registry)

    def _histogram(
        self, name: str, text: str, buckets: tuple[float, ...], *, by_spider: bool = True
    ) -> Histogram:
        labels, name = ["spider"] if by_spider else [], f"freshet_{name}"
        return Histogram(name, text, labels, buckets=buckets, registry=self.registry)


def past_of(families: Iterable[Metric], version: str) -> Past:
    """Return what is carried on, by family; nothing of another version: its buckets may differ."""
    by_name = {family.name: family for family in families}
    build = by_name.get(BUILD)
    if build is None or version not in {sample.labels.get("version") for sample in build.samples}:
        return {}
    return {
        name: {_key(sample): sample for sample in family.samples}
        for name, family in by_name.items()
        if family.type in SUMS or name in GAUGES
    }


class Carried(Collector):
    """A registry with the past added to it, and a label that names the process.

    process: the value of that label, on every series
    """

    def __init__(self, registry: CollectorRegistry, past: Past, process: str) -> None:
        self._registry = registry
        self._past = past
        self._process = process
        self.is_over = False

    def collect(self) -> Iterator[Metric]:
        """Yield all families; of a process that is over, without what only a running one has."""
        for family in self._registry.collect():
            is_of_process = family.type == "gauge" and family.name.startswith(OF_PROCESS)
            if not (self.is_over and is_of_process):
                yield self._carried(family)

    def _carried(self, family: Metric) -> Metric:
        before = dict(self._past.get(family.name, {}))
        whole = Metric(family.name, family.documentation, family.type)
        for sample in family.samples:
            own = sample._replace(labels={"process": self._process, **sample.labels})
            was = before.pop(_key(own), None)
            if was is not None and family.type in SUMS:
                own = own._replace(value=own.value + was.value)
            whole.samples.append(own)
        # Of spiders that this process has not begun.
        whole.samples.extend(before.values())
        return whole


def _key(sample: Sample) -> Key:
    return sample.name, frozenset(sample.labels.items())


class TextFile:
    """The file of one process, which holds its name until `close`; raises ConfigError."""

    def __init__(self, folder: Path, name: str, registry: CollectorRegistry) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stem = self._claim(name)
            self._remove_old()
        except OSError as error:
            raise ConfigError(_in_words(folder, error)) from None
        self.path = folder / f"{PREFIX}{stem}{SUFFIX}"
        self._draft = folder / f".{PREFIX}{stem}.new"
        self._written = Gauge(FILE_TIME, FILE_TIME_HELP, registry=registry)
        past: Past = {}
        # A file that cannot be read, or is not ours, has nothing to carry on.
        with contextlib.suppress(OSError, ValueError):
            text = self.path.read_text(encoding="utf-8")
            past = past_of(list(text_string_to_metric_families(text)), __version__)
        self._carried = Carried(registry, past, stem)
        self._is_failing = False

    def write(self) -> None:
        """Replace the file atomically; an error is logged once."""
        self._written.set_to_current_time()
        try:
            self._draft.write_bytes(generate_latest(self._carried))
            self._draft.replace(self.path)
        except OSError as error:
            if not self._is_failing:
                logger.warning("%s; retrying", _in_words(self.path, error))
            self._is_failing = True
        else:
            self._is_failing = False

    async def keep_writing(self) -> None:
        """Write it again and again until this is cancelled."""
        while True:
            self.write()
            await asyncio.sleep(WRITE_SECONDS)

    def close(self) -> None:
        """Write it for the last time: what only a running process has is left out."""
        self._carried.is_over = True
        self.write()
        self._lock.release()

    def _claim(self, name: str) -> str:
        """Lock and return the first name that no other process has."""
        for number in range(1, MAX_ALIKE + 1):
            stem = name if number == 1 else f"{name}-{number}"
            self._lock = self._lock_of(stem)
            with contextlib.suppress(Timeout):
                self._lock.acquire()
                return stem
        message = f"{self._folder}: {MAX_ALIKE} processes of {name} at work"
        raise ConfigError(f"FRESHET_METRICS_DIR {message}")

    def _lock_of(self, stem: str) -> FileLock:
        return FileLock(self._folder / f".{PREFIX}{stem}.lock", timeout=0)

    def _remove_old(self) -> None:
        oldest = time.time() - KEPT_SECONDS
        for path in self._folder.glob(f"{PREFIX}*{SUFFIX}"):
            stem = path.name.removeprefix(PREFIX).removesuffix(SUFFIX)
            # Another process may be at the same, or about to write this one.
            with contextlib.suppress(Timeout, FileNotFoundError):
                if path.stat().st_mtime < oldest:
                    with self._lock_of(stem):
                        path.unlink()


def _in_words(place: Path, error: OSError) -> str:
    return f"FRESHET_METRICS_DIR {place}: {error.strerror or error}"


class Export:
    """Measures from `begin` to `end`; raises ConfigError where the file cannot be had.

    folder: where the file `freshet-NAME.prom` goes; None: no file
    """

    def __init__(self, folder: Path | None, name: str) -> None:
        self.metrics = ProcessMetrics()
        self._file = None if folder is None else TextFile(folder, name, self.metrics.registry)
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        """Measure the runs of this process from now on."""
        Metrics.of_process = self.metrics
        self._do(self.metrics.watch_lag())
        if self._file is not None:
            self._do(self._file.keep_writing())

    def end(self) -> None:
        """Stop, and write the file for the last time."""
        Metrics.of_process = None
        for task in self._tasks:
            task.cancel()
        if self._file is not None:
            self._file.close()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))


class ServiceCollector(Collector):
    """What the service counts: failures, also of runs that could not begin; replans and prunes."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def collect(self) -> Iterator[Metric]:
        """Yield counters."""
        # A spider may be named twice, as its file too.
        failed: Counter[str] = Counter()
        for word, sums in self._report.sums.items():
            failed[self._report.names[word]] += sums["failed"]
        text = "Number of failed crawl runs of the service, including runs that could not start."
        values = (((name,), n) for name, n in failed.items())
        yield _counter("freshet_refresh_failures", text, ["spider"], values)
        counts = self._report.chores
        text, results = "Number of replans and prunes of the service, by result.", ("done", FAILED)
        each = (
            ((name, result), counts[name if result == "done" else f"{name} {FAILED}"])
            for name in CHORES
            for result in results
        )
        yield _counter("freshet_refresh_chores", text, ["chore", "result"], each)


@asynccontextmanager
async def service_measured(
    store: Store, report: Report, address: Address | None
) -> AsyncIterator[None]:
    """Measure the service while inside; serve the metrics at an address, else write the file.

    Raises ConfigError where the address cannot be had. The service does without a file.
    """
    try:
        export = Export(store.config.metrics_dir if address is None else None, SERVICE)
    except ConfigError as error:
        logger.error("%s; writing metrics disabled", error)
        yield
        return
    export.metrics.registry.register(ServiceCollector(report))
    export.begin()
    try:
        if address is None:
            yield
            return
        # Twisted's web parts are slow to import.
        from crawler.web.metrics import MetricsSource, served

        problem = partial(store.problem, PING_SECONDS)
        source = MetricsSource(export.metrics.exposition, problem)
        async with served(source, address, OPTION, store.config.metrics_hosts) as url:
            logger.info("serving metrics at %smetrics", url)
            yield
    finally:
        export.end()
