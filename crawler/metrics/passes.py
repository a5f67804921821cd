"""What passes have done, read off what they count anyway: that costs a crawl nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from crawler.errors import Busy
from crawler.items import Outcome
from crawler.metrics.gauges import Values, by_spider
from crawler.session import Session
from crawler.utils.time import Clock

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
