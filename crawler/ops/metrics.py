"""What passes have done, read off what they count anyway: that costs a crawl nothing."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import (
    CollectorRegistry,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from crawler import __version__
from crawler.errors import Busy
from crawler.frontier.session import Session
from crawler.items import Outcome, Visit
from crawler.utils.time import Clock

Values = Iterable[tuple[Sequence[str], float]]


def gauge(name: str, told: str, labels: Sequence[str], values: Values) -> Metric:
    """A gauge. values: of the labels, and the gauge's; NaN, which nobody knows, is left out."""
    family = GaugeMetricFamily(name, told, labels=labels)
    for of, value in values:
        if not math.isnan(value):
            family.add_metric(of, value)
    return family


def by_spider(name: str, told: str, values: Iterable[tuple[str, float]]) -> Metric:
    """A gauge with the one label `spider`."""
    return gauge(name, told, ("spider",), (((spider,), value) for spider, value in values))


OF_SPIDER = "spider"
LAST_SUCCESS = "freshet_pass_last_success_timestamp_seconds"
RESULTS = ("finished", "limited", "stopped", "failed", "other")
CLASSES = ("2xx", "3xx", "4xx", "5xx", "other")
PLAIN = {
    "freshet_requests": "Requests answered or failed, with robots.txt, redirects, repetitions.",
    "freshet_request_failures": "Requests without a response, such as timeouts.",
    "freshet_request_retries": "Requests that were made again after a failure.",
    "freshet_response_bytes": "Bytes of responses as received, with headers.",
    "freshet_missed_visits": "Visits of plans that were never made.",
    "freshet_storage_retries": "Repetitions while MongoDB was unavailable.",
    "freshet_passes_started": "Passes that have begun.",
}
# With the label besides the spider and its values, which are there before they are counted.
LABELLED = {
    "freshet_responses": ("Responses by class of their status.", "code", CLASSES),
    "freshet_visits": ("Stored visits by outcome.", "outcome", tuple(map(str, Outcome))),
    "freshet_passes_ended": ("Passes that have ended, by how.", "result", RESULTS),
}
ENDS = {"finished": "finished", "shutdown": "stopped", "cancelled": "stopped"}
LIMIT = "closespider_"
STATUS = ("downloader/response_status_count/", "freshet/asked_again_status_count/")
FAILURES = "downloader/exception_count"
# What was never sent: robots.txt forbids it, or its host is to be left alone.
NEVER_SENT = (
    "downloader/exception_type_count/scrapy.exceptions.IgnoreRequest",
    "downloader/exception_type_count/crawler.middlewares.manners.NotAsked",
)
Counts = Counter[tuple[str, str]]


class Passes(Collector):
    """The passes of this process, by spider: those that have ended, and those at work."""

    def __init__(self) -> None:
        self._ended: dict[str, Counts] = {}
        self._succeeded: dict[str, float] = {}
        self._at_work: set[Session] = set()

    def begin(self, session: Session) -> None:
        """A pass begins."""
        self._at_work.add(session)
        counts = self._ended.setdefault(session.spider, Counter())
        counts["freshet_passes_started", ""] += 1

    def end(self, session: Session, reason: str) -> None:
        """A pass has ended. reason: as Scrapy says it."""
        self._at_work.discard(session)
        counts = self._ended[session.spider]
        counts.update(counted(session))
        has_failed = session.error is not None and not isinstance(session.error, Busy)
        result = "failed" if has_failed else result_of(reason)
        counts["freshet_passes_ended", result] += 1
        if session.error is None:
            self._succeeded[session.spider] = Clock().now().timestamp()

    def collect(self) -> Iterator[Metric]:
        """Counters and gauges by spider."""
        now = {spider: Counter(counts) for spider, counts in self._ended.items()}
        for session in self._at_work:
            now[session.spider].update(counted(session))
        for name, told in PLAIN.items():
            values = (((spider,), counts[name, ""]) for spider, counts in now.items())
            yield _counter(name, told, [OF_SPIDER], values)
        for name, (told, label, labels) in LABELLED.items():
            each = (((of, to), counts[name, to]) for of, counts in now.items() for to in labels)
            yield _counter(name, told, [OF_SPIDER, label], each)
        yield from self._gauges(now)

    def _gauges(self, spiders: Iterable[str]) -> Iterator[Metric]:
        in_flight = ((session.spider, len(session.in_flight)) for session in self._at_work)
        told = "Targets between queue and storage."
        yield by_spider("freshet_targets_in_flight", told, in_flight)
        running = Counter(session.spider for session in self._at_work)
        of_all = ((spider, running[spider]) for spider in spiders)
        yield by_spider("freshet_passes_running", "Passes at work.", of_all)
        told = "When a pass last ended without an error."
        yield by_spider(LAST_SUCCESS, told, self._succeeded.items())


def result_of(reason: str) -> str:
    """How a pass without an error has ended: spiders may name reasons of their own."""
    return "limited" if reason.startswith(LIMIT) else ENDS.get(reason, "other")


def counted(session: Session) -> Counts:
    """What a pass has counted so far, by metric and label; it never falls."""
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
    # A pass that could not reach the database has none.
    if patience := getattr(session, "patience", None):
        counts["freshet_storage_retries", ""] = patience.counts["retries"]
    return counts


def class_of(status: str) -> str:
    """The class of a status of HTTP; some servers make up their own."""
    return f"{status[0]}xx" if status[:1] in {"2", "3", "4", "5"} else "other"


def _counter(name: str, told: str, labels: Sequence[str], values: Values) -> Metric:
    family = CounterMetricFamily(name, told, labels=labels)
    for of, value in values:
        family.add_metric(of, value)
    return family


SUMS = ("counter", "histogram")
# Gauges that a process does not know of those before it.
GAUGES = (LAST_SUCCESS,)
BUILD = "freshet_build_info"
OF_PROCESS = "freshet_process_"
Key = tuple[str, frozenset[tuple[str, str]]]
Past = dict[str, dict[Key, Sample]]


def past_of(families: Iterable[Metric], version: str) -> Past:
    """What is carried on, by family; nothing from another version, whose buckets may differ."""
    found = {family.name: family for family in families}
    build = found.get(BUILD)
    if build is None or version not in {one.labels.get("version") for one in build.samples}:
        return {}
    return {
        name: {_key(sample): sample for sample in family.samples}
        for name, family in found.items()
        if family.type in SUMS or name in GAUGES
    }


class Carried(Collector):
    """A registry with the past added to it, and a label that tells whose it is.

    process: the value of that label, on every series
    """

    def __init__(self, registry: CollectorRegistry, past: Past, process: str) -> None:
        self._registry = registry
        self._past = past
        self._process = process
        self.is_over = False

    def collect(self) -> Iterator[Metric]:
        """All families; of a process that is over, without what only a living one has."""
        for family in self._registry.collect():
            if not (self.is_over and _is_of_the_living(family)):
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


def _is_of_the_living(family: Metric) -> bool:
    return family.type == "gauge" and family.name.startswith(OF_PROCESS)


def _key(sample: Sample) -> Key:
    return sample.name, frozenset(sample.labels.items())


LAG_EVERY_SECONDS = 1.0
SHORT = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
LONG = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600)
LAGS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5)
SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
TO_STORED = "Seconds from the response to the moment when its visit was stored."
LAG = "How much too late the event loop comes, measured once a second."


class Measuring:
    """The registry of a process, and what is put into it."""

    def __init__(self) -> None:
        # When each counter was made is of no use where counters outlive processes.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.passes = Passes()
        self.registry.register(self.passes)
        # Under its usual name it would clash with that of node_exporter.
        ProcessCollector(namespace="freshet", registry=self.registry)
        version = Gauge(BUILD, "The version at work.", ["version"], registry=self.registry)
        version.labels(__version__).set(1)
        self._took = self._of("pass_duration_seconds", "Seconds that passes took.", LONG)
        self._sizes = self._of("storage_batch_visits", "Visits stored in one batch.", SIZES)
        told = "Seconds that storing a batch took."
        self._storing = self._of("storage_batch_duration_seconds", told, SHORT)
        self._to_stored = self._of("response_to_stored_seconds", TO_STORED, SHORT)
        self._lag = self._of("reactor_lag_seconds", LAG, LAGS, by_spider=False)

    def ended(self, session: Session, reason: str, seconds: float) -> None:
        """A pass has ended. reason: as Scrapy says it."""
        self.passes.end(session, reason)
        self._took.labels(session.spider).observe(seconds)

    def batches(self, session: Session) -> Callable[[list[Visit], float], None]:
        """What is to hear of each stored batch of a pass, and of the seconds that it took."""
        of_batch = (self._sizes, self._storing, self._to_stored)
        sizes, storing, to_stored = (each.labels(session.spider) for each in of_batch)

        def note(batch: list[Visit], seconds: float) -> None:
            sizes.observe(len(batch))
            storing.observe(seconds)
            now = session.clock.now()
            for visit in batch:
                # Deliveries of hubs have waited for a pass.
                if visit.fetched.push is None:
                    to_stored.observe((now - visit.fetched.at).total_seconds())

        return note

    async def watch_lag(self) -> None:
        """Measure until this is cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            due = clock() + LAG_EVERY_SECONDS
            await asyncio.sleep(LAG_EVERY_SECONDS)
            self._lag.observe(max(0.0, clock() - due))

    async def exposition(self) -> bytes:
        """All of it in the text format."""
        return generate_latest(self.registry)

    def _of(
        self, name: str, told: str, buckets: tuple[float, ...], *, by_spider: bool = True
    ) -> Histogram:
        labels, name = [OF_SPIDER] if by_spider else [], f"freshet_{name}"
        return Histogram(name, told, labels, buckets=buckets, registry=self.registry)
