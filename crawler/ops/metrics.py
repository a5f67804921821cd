"""Metrics of a process: its crawl runs, and the file with the metrics.

Counters of runs are computed on export from the stats that a crawl collects anyway, so they add no
cost to the crawl. `freshet-NAME.prom` is a file for node_exporter's textfile collector. Concurrent
processes of the same name use `NAME`, `NAME-2`, `NAME-3`: unlike process ids, these names are
reused, which keeps the number of Prometheus series small. Import this module only if metrics are
enabled, because prometheus_client is slow to import.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from prometheus_client import (
    CollectorRegistry,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from scrapy.exceptions import IgnoreRequest
from scrapy.utils.python import global_object_name

from crawler import __version__
from crawler.errors import Busy, ConfigError, OffLimits
from crawler.fetch.downloader import NotRequested, RunEnded
from crawler.frontier.run import Run
from crawler.items import Outcome, Visit
from crawler.reports.metrics import Values, by_spider
from crawler.utils.time import Clock

logger = logging.getLogger(__name__)
LAST_SUCCESS = "freshet_run_last_success_timestamp_seconds"
BUILD = "freshet_build_info"
PROCESS_PREFIX = "freshet_process_"
RESULTS = ("finished", "limited", "stopped", "failed", "other")
CLASSES = ("2xx", "3xx", "4xx", "5xx", "other")
PLAIN = {
    "freshet_requests": "Number of requests, including robots.txt, redirects and retries.",
    "freshet_request_failures": "Number of requests without a response, such as timeouts.",
    "freshet_request_retries": "Number of requests retried after a failure.",
    "freshet_response_bytes": "Received response bytes, including headers, before decompression.",
    "freshet_missed_visits": "Number of planned visits that were not made.",
    "freshet_storage_retries": "Number of retries while MongoDB was unavailable.",
    "freshet_runs_started": "Number of started crawl runs.",
}
# Counters with a second label and its values. All series are exported from the start at 0, because
# Prometheus's increase() misses the event with which a series begins.
LABELED = {
    "freshet_responses": ("Number of responses by status class.", "code", CLASSES),
    "freshet_visits": ("Number of stored visits by outcome.", "outcome", tuple(map(str, Outcome))),
    "freshet_runs_ended": ("Number of ended crawl runs by result.", "result", RESULTS),
}
ENDS = {"finished": "finished", "shutdown": "stopped", "cancelled": "stopped"}
LIMIT = "closespider_"
STATUS = ("downloader/response_status_count/", "freshet/asked_again_status_count/")
FAILURES = "downloader/exception_count"
# Errors of requests that were never sent: robots.txt disallows them, their host is paused, the run
# ended, or their host is in a private network.
NEVER_SENT = tuple(
    f"downloader/exception_type_count/{global_object_name(error)}"
    for error in (IgnoreRequest, NotRequested, RunEnded, OffLimits)
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
# Types of families that continue from the values of the last process of the same name.
CUMULATIVE = ("counter", "histogram")
# Gauges whose values of spiders that this process has not run are kept.
KEPT_GAUGES = (LAST_SUCCESS,)
PREFIX, SUFFIX = "freshet-", ".prom"
MAX_SAME_NAME = 64
WRITE_SECONDS = 10.0
# A file that was not written for this long belongs to a spider that is no longer crawled.
MAX_FILE_AGE_SECONDS = 40 * 24 * 3600.0

Counts = Counter[tuple[str, str]]
Key = tuple[str, frozenset[tuple[str, str]]]
# Samples of an earlier process, by family name and key.
Samples = dict[str, dict[Key, Sample]]


def counter(name: str, text: str, labels: Sequence[str], values: Values) -> Metric:
    """Return a counter with these values by labels."""
    family = CounterMetricFamily(name, text, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family


class RunsCollector(Collector):
    """Counts the runs of this process by spider, both ended and in progress."""

    def __init__(self) -> None:
        self._ended: dict[str, Counts] = {}
        self._succeeded: dict[str, float] = {}
        self._in_progress: set[Run] = set()

    def begin(self, run: Run) -> None:
        """Count the start of a run."""
        self._in_progress.add(run)
        counts = self._ended.setdefault(run.spider, Counter())
        counts["freshet_runs_started", ""] += 1

    def end(self, run: Run, reason: str) -> None:
        """Count the end of a run. reason: Scrapy's close reason."""
        self._in_progress.discard(run)
        counts = self._ended[run.spider]
        counts.update(counted(run))
        has_failed = run.state.error is not None and not isinstance(run.state.error, Busy)
        result = "failed" if has_failed else result_of(reason)
        counts["freshet_runs_ended", result] += 1
        if run.state.error is None:
            self._succeeded[run.spider] = Clock().now().timestamp()

    def collect(self) -> Iterator[Metric]:
        """Yield the counters and gauges."""
        now = {spider: Counter(counts) for spider, counts in self._ended.items()}
        for run in self._in_progress:
            now[run.spider].update(counted(run))
        for name, text in PLAIN.items():
            values = (((spider,), counts[name, ""]) for spider, counts in now.items())
            yield counter(name, text, ["spider"], values)
        for name, (text, label, labels) in LABELED.items():
            each = (((of, to), counts[name, to]) for of, counts in now.items() for to in labels)
            yield counter(name, text, ["spider", label], each)
        in_flight = ((run.spider, len(run.in_flight)) for run in self._in_progress)
        text = "Number of targets taken from the queue and not stored yet."
        yield by_spider("freshet_targets_in_flight", text, in_flight)
        running = Counter(run.spider for run in self._in_progress)
        of_all = ((spider, running[spider]) for spider in now)
        yield by_spider("freshet_runs_running", "Number of crawl runs in progress.", of_all)
        text = "Unix time when a crawl run last ended without an error."
        yield by_spider(LAST_SUCCESS, text, self._succeeded.items())


def result_of(reason: str) -> str:
    """Map the close reason of a run without an error to a label; spiders may define reasons."""
    return "limited" if reason.startswith(LIMIT) else ENDS.get(reason, "other")


def counted(run: Run) -> Counts:
    """Return the counts of a run so far, by metric and label; they never decrease."""
    stats = run.crawler.stats.get_stats()
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
    counts["freshet_missed_visits", ""] = run.state.counts["missed visits"]
    for outcome in Outcome:
        counts["freshet_visits", outcome] = run.state.counts[outcome]
    # A run that could not connect to the database has no `patience`.
    if patience := getattr(run, "patience", None):
        counts["freshet_storage_retries", ""] = patience.counts["retries"]
    return counts


def class_of(status: str) -> str:
    """Return the class of an HTTP status, such as 4xx; "other" for nonstandard ones."""
    return f"{status[0]}xx" if status[:1] in {"2", "3", "4", "5"} else "other"


class ProcessMetrics:
    """The Prometheus registry of a process, and its metrics."""

    def __init__(self) -> None:
        # *_created series are misleading here: counters continue from those of earlier processes.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.runs = RunsCollector()
        self.registry.register(self.runs)
        # Without the namespace, process_* would clash with node_exporter's own series.
        ProcessCollector(namespace="freshet", registry=self.registry)
        version = Gauge(BUILD, "Running version of Freshet.", ["version"], registry=self.registry)
        version.labels(__version__).set(1)
        self._durations = self._histogram(
            "run_duration_seconds", "Duration of crawl runs in seconds.", LONG
        )
        self._sizes = self._histogram(
            "storage_batch_visits", "Number of visits stored per batch.", SIZES
        )
        text = "Time to store a batch in seconds."
        self._storing = self._histogram("storage_batch_duration_seconds", text, SHORT)
        self._to_stored = self._histogram("response_to_stored_seconds", TO_STORED, SHORT)
        self._lag = self._histogram("reactor_lag_seconds", LAG, LAGS, by_spider=False)

    def run_ended(self, run: Run, reason: str, seconds: float) -> None:
        """Count the end of a run and its duration. reason: Scrapy's close reason."""
        self.runs.end(run, reason)
        self._durations.labels(run.spider).observe(seconds)

    def on_stored(self, run: Run) -> Callable[[list[Visit], float], None]:
        """Return a callback to call with each stored batch of a run and the seconds it took."""
        of_batch = (self._sizes, self._storing, self._to_stored)
        sizes, storing, to_stored = (each.labels(run.spider) for each in of_batch)

        def observe(batch: list[Visit], seconds: float) -> None:
            sizes.observe(len(batch))
            storing.observe(seconds)
            now = run.clock.now()
            for visit in batch:
                # Exclude deliveries of WebSub hubs, which wait in storage until a run begins.
                if visit.fetched.push is None:
                    to_stored.observe((now - visit.fetched.at).total_seconds())

        return observe

    async def watch_lag(self) -> None:
        """Sample the event loop's lag until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            due = clock() + LAG_EVERY_SECONDS
            await asyncio.sleep(LAG_EVERY_SECONDS)
            self._lag.observe(max(0.0, clock() - due))

    async def exposition(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self.registry)

    def _histogram(
        self, name: str, text: str, buckets: tuple[float, ...], *, by_spider: bool = True
    ) -> Histogram:
        labels, name = ["spider"] if by_spider else [], f"freshet_{name}"
        return Histogram(name, text, labels, buckets=buckets, registry=self.registry)


def samples_to_carry(families: Iterable[Metric], version: str) -> Samples:
    """Return the samples that a new process continues from.

    Samples of another version of Freshet are dropped, because histogram buckets may differ.
    """
    by_name = {family.name: family for family in families}
    build = by_name.get(BUILD)
    if build is None or version not in {sample.labels.get("version") for sample in build.samples}:
        return {}
    return {
        name: {_key(sample): sample for sample in family.samples}
        for name, family in by_name.items()
        if family.type in CUMULATIVE or name in KEPT_GAUGES
    }


class Carried(Collector):
    """A registry whose counters continue from those of an earlier process.

    process: value of the label `process`, which is added to every series
    """

    def __init__(self, registry: CollectorRegistry, earlier: Samples, process: str) -> None:
        self._registry = registry
        self._earlier = earlier
        self._process = process
        self.is_over = False

    def collect(self) -> Iterator[Metric]:
        """Yield all families; process gauges, such as memory, only while the process runs."""
        for family in self._registry.collect():
            is_of_process = family.type == "gauge" and family.name.startswith(PROCESS_PREFIX)
            if not (self.is_over and is_of_process):
                yield self._carried(family)

    def _carried(self, family: Metric) -> Metric:
        earlier = dict(self._earlier.get(family.name, {}))
        whole = Metric(family.name, family.documentation, family.type)
        for sample in family.samples:
            own = sample._replace(labels={"process": self._process, **sample.labels})
            before = earlier.pop(_key(own), None)
            if before is not None and family.type in CUMULATIVE:
                own = own._replace(value=own.value + before.value)
            whole.samples.append(own)
        # Samples of spiders that this process has not run.
        whole.samples.extend(earlier.values())
        return whole


def _key(sample: Sample) -> Key:
    return sample.name, frozenset(sample.labels.items())


class TextFile:
    """The metrics file of one process, whose name is locked until `close`; raises ConfigError."""

    def __init__(self, folder: Path, name: str, registry: CollectorRegistry) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stem = self._claim(name)
            self._remove_old()
        except OSError as error:
            raise ConfigError(_message(folder, error)) from None
        self.path = folder / f"{PREFIX}{stem}{SUFFIX}"
        self._draft = folder / f".{PREFIX}{stem}.new"
        self._written = Gauge(FILE_TIME, FILE_TIME_HELP, registry=registry)
        earlier: Samples = {}
        # Without a readable file of Freshet's, all counters start at 0.
        with contextlib.suppress(OSError, ValueError):
            text = self.path.read_text(encoding="utf-8")
            earlier = samples_to_carry(list(text_string_to_metric_families(text)), __version__)
        self._carried = Carried(registry, earlier, stem)
        self._is_failing = False

    def write(self) -> None:
        """Replace the file atomically. Log only the first of consecutive errors."""
        self._written.set_to_current_time()
        try:
            self._draft.write_bytes(generate_latest(self._carried))
            self._draft.replace(self.path)
        except OSError as error:
            if not self._is_failing:
                logger.warning("Writing metrics failed, retrying: %s", _message(self.path, error))
            self._is_failing = True
        else:
            self._is_failing = False

    async def keep_writing(self) -> None:
        """Write the file every WRITE_SECONDS until cancelled."""
        while True:
            self.write()
            await asyncio.sleep(WRITE_SECONDS)

    def close(self) -> None:
        """Write the file for the last time, without process gauges, and release its name."""
        self._carried.is_over = True
        self.write()
        self._lock.release()

    def _claim(self, name: str) -> str:
        """Lock and return the first name that no other process uses."""
        for number in range(1, MAX_SAME_NAME + 1):
            stem = name if number == 1 else f"{name}-{number}"
            self._lock = self._lock_of(stem)
            with contextlib.suppress(Timeout):
                self._lock.acquire()
                return stem
        message = f"{self._folder}: {MAX_SAME_NAME} processes of {name} are already running"
        raise ConfigError(f"FRESHET_METRICS_DIR {message}")

    def _lock_of(self, stem: str) -> FileLock:
        return FileLock(self._folder / f".{PREFIX}{stem}.lock", timeout=0)

    def _remove_old(self) -> None:
        oldest = time.time() - MAX_FILE_AGE_SECONDS
        for path in self._folder.glob(f"{PREFIX}*{SUFFIX}"):
            stem = path.name.removeprefix(PREFIX).removesuffix(SUFFIX)
            # Another process may be removing this file too, or may have locked it for writing.
            with contextlib.suppress(Timeout, FileNotFoundError):
                if path.stat().st_mtime < oldest:
                    with self._lock_of(stem):
                        path.unlink()


def _message(place: Path, error: OSError) -> str:
    return f"FRESHET_METRICS_DIR {place}: {error.strerror or error}"


class Export:
    """Collects metrics from `begin` to `end`; raises ConfigError if the file cannot be created.

    folder: folder of the file `freshet-NAME.prom`; None: no file
    """

    def __init__(self, folder: Path | None, name: str) -> None:
        self.metrics = ProcessMetrics()
        self._file = None if folder is None else TextFile(folder, name, self.metrics.registry)
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        """Start collecting metrics of all runs of this process."""
        self._start(self.metrics.watch_lag())
        if self._file is not None:
            self._start(self._file.keep_writing())

    def end(self) -> None:
        """Stop collecting and write the file for the last time."""
        for task in self._tasks:
            task.cancel()
        if self._file is not None:
            self._file.close()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))
