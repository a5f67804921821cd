"""Metrics of the database: targets, plans, posts, runs, queues.

Sums over targets are estimated from a sample, because there may be millions of targets.
`of_database` describes the metrics for the documentation.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import TypedDict

from crawler.errors import ConfigError, StorageError
from crawler.items import Kind, Outcome
from crawler.reports.estimates import estimated
from crawler.storage import runs, stats
from crawler.storage.client import MongoRetry
from crawler.storage.outbox import MAX_COUNTED
from crawler.storage.stats import NUMBERS, CountedState, Notifications, Sample, SpiderStats, Stats
from crawler.storage.store import Store
from crawler.utils.time import Clock

if TYPE_CHECKING:
    from crawler.storage.redis import QueueState

# Pairs of label values and metric values.
Values = Iterable[tuple[Sequence[str], float]]


def gauge(name: str, text: str, labels: Sequence[str], values: Values) -> Metric:
    """Return a gauge family without the samples whose value is unknown (NaN)."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for label_values, value in values:
        if not math.isnan(value):
            family.add_metric(label_values, value)
    return family


def by_spider(name: str, text: str, values: Iterable[tuple[str, float]]) -> Metric:
    """Return a gauge family with the single label `spider`."""
    return gauge(name, text, ("spider",), (((spider,), value) for spider, value in values))


class Fixed(Collector):
    """A collector of metrics that were already read."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        yield from self._metrics


def text_of(metrics: Sequence[Metric]) -> bytes:
    """Return metrics in Prometheus's text format."""
    registry = CollectorRegistry()
    registry.register(Fixed(metrics))
    return generate_latest(registry)


class Described(NamedTuple):
    """A metric as Prometheus has it, with the names of its labels."""

    name: str
    type: str
    labels: tuple[str, ...]
    text: str


def described(families: Iterable[Metric], instruments: Mapping[str, object]) -> Iterator[Described]:
    """Describe metric families. instruments: sources of families, by the families' names."""
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = getattr(instruments.get(family.name, family), "_labelnames", ())
        yield Described(name, family.type, tuple(labels), family.documentation)


QUEUES_WAIT_SECONDS = 2.0
# Thresholds of consecutive errors by which targets are counted.
IN_A_ROW = (1, 5)
# Names and help texts of gauges, by the field of `stats.SpiderStats`.
TIMES = {
    "due": ("freshet_targets_due", "Number of due targets."),
    "overdue": (
        "freshet_targets_overdue",
        "Number of targets that have been due for more than one hour.",
    ),
    "oldest_seconds": (
        "freshet_targets_oldest_due_seconds",
        "Seconds since the most overdue target became due; 0 if none is due.",
    ),
}
POSTS = {
    "posts": ("freshet_posts", "Number of stored posts."),
    "copies": (
        "freshet_duplicate_posts",
        "Number of stored posts that are near-duplicates of earlier posts.",
    ),
}
# By the field of Estimates.
ESTIMATES = {
    "planned": (
        "freshet_plan_targets",
        "Number of targets with a planned frequency or a fixed period.",
    ),
    "requests_per_day": (
        "freshet_plan_requests_per_day",
        "Requests per day required by plans and fixed periods.",
    ),
    "expected_freshness": (
        "freshet_plan_freshness_ratio",
        "Expected freshness of the plan: share of time that stored copies are current.",
    ),
    "expected_age_seconds": (
        "freshet_plan_age_seconds",
        "Expected mean age of stored copies under the plan, in seconds.",
    ),
    "present_freshness": (
        "freshet_current_freshness_ratio",
        "Estimated share of stored copies that are current, from change rates and last visits.",
    ),
    "present_age_seconds": (
        "freshet_current_age_seconds",
        "Estimated mean age of stored copies, from change rates and last visits, in seconds.",
    ),
    "missed_per_week": (
        "freshet_plan_missed_posts_per_week",
        "Expected number of missed feed posts per week under the plan.",
    ),
    "delay_seconds": (
        "freshet_plan_delay_seconds",
        "Expected mean delay until feed posts are collected under the plan, in seconds.",
    ),
}
COUNTS = (
    *map(str, Outcome), "visits", "discovered", "unlisted", "due", "over_cap", "closed",
    "over_limit", "missed_visits", "second_requests", "posts", "edited_posts", "missed_posts",
    "bytes", "pushed", "pushed_refused",
)  # fmt: skip
# Other reasons, which spiders may define, are exported as "other" to bound the number of series.
REASONS = frozenset(
    {
        "finished", "shutdown", "cancelled", "storage", "start_error", "interrupted", "failed",
        "memusage_exceeded", "closespider_timeout", "closespider_timeout_no_item",
        "closespider_itemcount", "closespider_pagecount", "closespider_pagecount_no_item",
        "closespider_errorcount",
    }
)  # fmt: skip
RUN_TIMES = {
    "started": (
        "freshet_last_run_start_timestamp_seconds",
        "Unix time when the last crawl run started.",
    ),
    "finished": (
        "freshet_last_run_end_timestamp_seconds",
        "Unix time when the last crawl run ended.",
    ),
}
QUEUES = {
    "freshet_queue_pending": ("Number of queue entries waiting for a worker.", "waiting"),
    "freshet_queue_leased": ("Number of queue entries leased to workers.", "leased"),
    "freshet_queue_workers": ("Number of workers in the shared crawl run.", "workers"),
}
# States of the messages of notifications.
MESSAGES: tuple[Literal["unconfirmed", "waiting", "delivered", "dropped", "dead"], ...] = (
    "unconfirmed", "waiting", "delivered", "dropped", "dead",
)  # fmt: skip
DEAD = "Number of dead-lettered pages."


def families(figures: Stats) -> Iterator[Metric]:
    """Yield all gauges of the database."""
    spiders = figures.spiders
    yield from _targets(figures.states)
    yield from _by_field(TIMES, spiders)
    requests: dict[tuple[str, str, str], float] = {}
    for name, of in spiders.items():
        for outcome in map(str, Outcome):
            late = requests[name, outcome, "1h"] = of.requests[outcome, True]
            requests[name, outcome, "1d"] = late + of.requests[outcome, False]
    yield gauge(
        "freshet_recent_requests",
        "Requests logged in the last hour and the last day, by outcome.",
        ("spider", "outcome", "window"),
        requests.items(),
    )
    plans = {name: of.plan for name, of in spiders.items() if of.plan is not None}
    yield by_spider(
        "freshet_plan_timestamp_seconds",
        "Unix time when the active plan was created.",
        ((name, plan["at"].timestamp()) for name, plan in plans.items()),
    )
    budgets = {name: plan.get("budget_per_day") for name, plan in plans.items()}
    yield by_spider(
        "freshet_plan_budget_requests_per_day",
        "Request budget per day of the active plan, shared by spiders planned together.",
        ((name, math.nan if budget is None else budget) for name, budget in budgets.items()),
    )
    # Spiders without a plan have only the estimates from fixed periods.
    of_spiders = stats.targets_by_spider(figures.states)
    yield from _by_field(ESTIMATES, dict(estimated(figures.sample, of_spiders)))
    yield from _last_runs(spiders)
    yield from _by_field(POSTS, spiders)
    yield gauge(
        "freshet_database_documents",
        "Estimated number of documents by collection.",
        ("collection",),
        (((name,), n) for name, n in figures.documents.items()),
    )
    yield gauge(
        "freshet_database_bytes",
        "Size of the database in bytes, by part: uncompressed data, compressed storage, indexes.",
        ("part",),
        (((part,), size) for part, size in figures.size.items()),
    )
    yield from _notifications(figures.notifications)


def _by_field(
    fields: Mapping[str, tuple[str, str]], spiders: Mapping[str, Any]
) -> Iterator[Metric]:
    """Yield a gauge by spider for each field."""
    for field, (name, text) in fields.items():
        values = ((spider, getattr(of, field)) for spider, of in spiders.items())
        yield by_spider(name, text, values)


def _targets(states: Counter[CountedState]) -> Iterator[Metric]:
    kinds = {(state.spider, str(kind)): 0 for state in states for kind in Kind}
    never, longest = (dict.fromkeys((state.spider for state in states), 0) for _ in range(2))
    failing = {(state.spider, str(minimum)): 0 for state in states for minimum in IN_A_ROW}
    for (spider, kind, errors, is_visited), n in states.items():
        kinds[spider, kind] += n
        never[spider] += 0 if is_visited else n
        longest[spider] = max(longest[spider], errors)
        for minimum in IN_A_ROW:
            failing[spider, str(minimum)] += n if errors >= minimum else 0
    of_kind = ("spider", "kind")
    yield gauge("freshet_targets", "Number of targets by kind.", of_kind, kinds.items())
    text = "Number of targets that were never visited."
    yield by_spider("freshet_targets_never_visited", text, never.items())
    text = "Number of targets with at least in_a_row consecutive errors."
    yield gauge("freshet_targets_failing", text, ("spider", "in_a_row"), failing.items())
    text = "Highest number of consecutive errors of any target."
    yield by_spider("freshet_targets_most_errors_in_a_row", text, longest.items())


def _last_runs(spiders: dict[str, SpiderStats]) -> Iterator[Metric]:
    last = {name: of.last for name, of in spiders.items() if of.last is not None}
    for field, (name, text) in RUN_TIMES.items():
        yield by_spider(name, text, ((of, run[field].timestamp()) for of, run in last.items()))
    yield by_spider(
        "freshet_last_run_duration_seconds",
        "Duration of the last crawl run in seconds.",
        ((name, (run["finished"] - run["started"]).total_seconds()) for name, run in last.items()),
    )
    reasons = {name: str(run.get("reason")) for name, run in last.items()}
    yield gauge(
        "freshet_last_run_info",
        "Reason the last crawl run ended.",
        ("spider", "reason"),
        (
            ((name, reason if reason in REASONS else "other"), 1.0)
            for name, reason in reasons.items()
        ),
    )
    # An interrupted run has no counts.
    counts = {name: run.get("counts") or {} for name, run in last.items()}
    yield gauge(
        "freshet_last_run_counts",
        "Counts of the last crawl run, by name.",
        ("spider", "count"),
        (((name, of), float(n.get(of, 0))) for name, n in counts.items() for of in COUNTS),
    )


def _notifications(figures: Notifications) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "freshet_notification_events_pending",
        "Number of events to which the rules of notifications have not been applied, "
        f"at most {MAX_COUNTED:,}.",
        value=figures.events,
    )
    yield GaugeMetricFamily(
        "freshet_notification_events_oldest_seconds",
        "Seconds since the oldest event to which the rules have not been applied; 0 if none.",
        value=figures.oldest_seconds,
    )
    channels = figures.channels
    yield gauge(
        "freshet_notification_messages",
        f"Number of messages by state, at most {MAX_COUNTED:,}; "
        "of those that were delivered or dropped, the messages of the last week.",
        ("channel", "state"),
        (((of["channel"], state), float(of[state])) for of in channels for state in MESSAGES),
    )
    yield _by_channel(
        "freshet_notification_messages_retrying",
        "Number of waiting messages whose last attempt failed.",
        ((of["channel"], of["retrying"]) for of in channels),
    )
    yield _by_channel(
        "freshet_notification_messages_oldest_seconds",
        "Seconds since the oldest event whose message waits for its delivery; 0 if none.",
        figures.waits_seconds.items(),
    )
    yield _by_channel(
        "freshet_notification_channel_broken",
        "1 if attempts fail and nothing was delivered since the first one that failed, else 0.",
        ((of["channel"], float(of["broken"])) for of in channels),
    )


def _by_channel(name: str, text: str, values: Iterable[tuple[str, float]]) -> Metric:
    return gauge(name, text, ("channel",), (((channel,), value) for channel, value in values))


async def read_queues(store: Store) -> list[Metric]:
    """Return the gauge of dead letters and, with Redis, those of queues; raises StorageError."""
    metrics: list[Metric] = [dead_letters(await runs.count_dead_letters(store.db))]
    if store.config.redis_url is not None:
        # Imported here, because the web app needs 7 MB less without it.
        from crawler.storage.redis import open_redis, queue_states

        client = await open_redis(store.config.redis_url, QUEUES_WAIT_SECONDS, retry_seconds=0)
        try:
            metrics += queue_families(await queue_states(client, store.db.name))
        finally:
            await client.aclose()
    return metrics


def queue_families(states: Sequence[QueueState]) -> Iterator[Metric]:
    """Yield the gauges of shared runs."""
    for name, (text, field) in QUEUES.items():
        yield by_spider(name, text, ((state.spider, getattr(state, field)) for state in states))


def dead_letters(counts: Mapping[str, int]) -> Metric:
    """Return the gauge of dead-lettered pages, by spider."""
    return by_spider("freshet_dead_letters", DEAD, counts.items())


async def read(store: Store) -> list[Metric]:
    """Return all metrics of the database and of queues; raises StorageError."""
    began, now = time.monotonic(), store.config.clock.now()
    figures = await MongoRetry(0, store.revive).read(lambda: stats.read(store.db, now))
    # In a thread: estimates for many spiders take time, and the web app has to answer requests.
    metrics = await asyncio.to_thread(lambda: list(families(figures)))
    # If Redis is unavailable, the metrics of the database are still exported.
    with contextlib.suppress(StorageError, ConfigError):
        metrics += await read_queues(store)
    seconds, at = time.monotonic() - began, Clock().now().timestamp()
    return [*metrics, *reading_families(seconds, at), up(1)]


def reading_families(seconds: float, at: float) -> Iterator[Metric]:
    """Yield the gauges of the last database read: its duration, and its end as Unix time."""
    text = "Duration of the last database read in seconds."
    yield GaugeMetricFamily("freshet_database_read_seconds", text, value=seconds)
    text = "Unix time of the last database read."
    yield GaugeMetricFamily("freshet_database_read_timestamp_seconds", text, value=at)


class MetricSample(TypedDict):
    """A value of a metric."""

    name: str
    """Name of the metric."""
    labels: dict[str, str]
    """Values of the labels by name."""
    value: float | None
    """Value; null if it is not a finite number."""


def samples_of(metrics: Iterable[Metric]) -> list[MetricSample]:
    """Return the values of metrics."""
    return [
        {
            "name": sample.name,
            "labels": dict(sample.labels),
            "value": sample.value if math.isfinite(sample.value) else None,
        }
        for metric in metrics
        for sample in metric.samples
    ]


def up(value: float) -> Metric:
    """Return the gauge of whether MongoDB could be read."""
    return GaugeMetricFamily(
        "freshet_database_up", "1 if MongoDB could be read, else 0.", value=value
    )


def of_database() -> list[Described]:
    """Return descriptions of the metrics of the database and of shared runs."""
    columns = (*(name for name in NUMBERS if name != "seen"), "hours")
    sample = Sample((), np.zeros(0, np.int64), **{name: np.zeros(0) for name in columns})
    empty = Stats({}, Counter(), sample, {}, {}, Notifications())
    all_families = [
        *families(empty),
        *queue_families([]),
        dead_letters({}),
        *reading_families(0.0, 0.0),
        up(1),
    ]
    return list(described(all_families, {}))
