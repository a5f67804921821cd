"""What passes have done, read off what they count anyway: that costs a crawl nothing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from crawler.items import Outcome
from crawler.session import Session

OF_SPIDER = "spider"
# Name, HELP, and the label besides the spider with its values.
COUNTERS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    (
        "freshet_requests",
        "Requests that were answered or failed, with robots.txt, redirects and repetitions.",
        "",
        (),
    ),
    (
        "freshet_responses",
        "Responses by class of their status.",
        "code",
        ("2xx", "3xx", "4xx", "5xx", "other"),
    ),
    ("freshet_request_failures", "Requests without a response, such as timeouts.", "", ()),
    ("freshet_request_retries", "Requests that were made again after a failure.", "", ()),
    ("freshet_response_bytes", "Bytes of responses as received, with headers.", "", ()),
    ("freshet_visits", "Stored visits by outcome.", "outcome", tuple(map(str, Outcome))),
    ("freshet_missed_visits", "Visits of plans that were never made.", "", ()),
    ("freshet_storage_retries", "Repetitions while MongoDB was away.", "", ()),
    ("freshet_passes_started", "Passes that have begun.", "", ()),
    (
        "freshet_passes_ended",
        "Passes that have ended, by how.",
        "result",
        ("finished", "limited", "stopped", "failed", "other"),
    ),
)
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
        result = "failed" if session.error is not None else result_of(reason)
        counts["freshet_passes_ended", result] += 1
        if session.error is None:
            self._succeeded[session.spider] = time.time()

    def collect(self) -> Iterator[Metric]:
        """Counters and gauges by spider."""
        now = {spider: Counter(counts) for spider, counts in self._ended.items()}
        for session in self._at_work:
            now[session.spider].update(counted(session))
        for name, told, label, values in COUNTERS:
            yield _family(name, told, label, values, now)
        yield _gauge(
            "freshet_targets_in_flight",
            "Targets between queue and storage.",
            ((session.spider, len(session.in_flight)) for session in self._at_work),
        )
        running = Counter(session.spider for session in self._at_work)
        yield _gauge(
            "freshet_passes_running",
            "Passes at work.",
            ((spider, running[spider]) for spider in now),
        )
        yield _gauge(
            "freshet_pass_last_success_timestamp_seconds",
            "When a pass last ended without an error.",
            self._succeeded.items(),
        )


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


def _family(
    name: str, told: str, label: str, values: tuple[str, ...], now: dict[str, Counts]
) -> Metric:
    """A counter of all spiders; with all values of its label, so that none begins at one."""
    labels = [OF_SPIDER, label] if label else [OF_SPIDER]
    family = CounterMetricFamily(name, told, labels=labels)
    for spider, counts in now.items():
        for value in values or ("",):
            family.add_metric([spider, value] if label else [spider], counts[name, value])
    return family


def _gauge(name: str, told: str, values: Iterable[tuple[str, float]]) -> Metric:
    gauge = GaugeMetricFamily(name, told, labels=[OF_SPIDER])
    for spider, value in values:
        gauge.add_metric([spider], value)
    return gauge
