"""The figures of the database as metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import Metric

from crawler.items import Outcome
from crawler.metrics import plans, targets
from crawler.metrics.gauges import by_spider, gauge
from crawler.storage.figures import Figures, OfSpider

COUNTS = (
    *map(str, Outcome), "visits", "discovered", "unlisted", "due", "over_cap", "closed",
    "over_limit", "missed_visits", "posts", "edited_posts", "missed_posts", "bytes",
)  # fmt: skip
# Spiders may name reasons of their own, as many as they like.
REASONS = frozenset(
    {
        "finished", "shutdown", "cancelled", "storage", "start_error", "cut off", "failed",
        "memusage_exceeded", "closespider_timeout", "closespider_timeout_no_item",
        "closespider_itemcount", "closespider_pagecount", "closespider_pagecount_no_item",
        "closespider_errorcount",
    }
)  # fmt: skip
TIMES = {
    "started": ("freshet_last_pass_start_timestamp_seconds", "When the last pass began."),
    "finished": ("freshet_last_pass_end_timestamp_seconds", "When the last pass ended."),
}
POSTS = {
    "posts": ("freshet_posts", "Posts that are kept."),
    "copies": ("freshet_duplicate_posts", "Posts that are near-duplicates of earlier ones."),
}


def families(figures: Figures) -> Iterator[Metric]:
    """All gauges."""
    yield from targets.families(figures)
    yield from plans.families(figures)
    yield from _of_passes(figures.spiders)
    for field, (name, told) in POSTS.items():
        values = ((spider, getattr(of, field)) for spider, of in figures.spiders.items())
        yield by_spider(name, told, values)
    yield gauge(
        "freshet_database_documents",
        "Documents by collection, nearly.",
        ("collection",),
        (((name,), n) for name, n in figures.documents.items()),
    )
    yield gauge(
        "freshet_database_bytes",
        "Size of the database: data before compression, storage after it, indexes.",
        ("part",),
        (((part,), size) for part, size in figures.size.items()),
    )


def _of_passes(spiders: dict[str, OfSpider]) -> Iterator[Metric]:
    last = {name: of.last for name, of in spiders.items() if of.last is not None}
    for field, (name, told) in TIMES.items():
        yield by_spider(name, told, ((of, one[field].timestamp()) for of, one in last.items()))
    yield by_spider(
        "freshet_last_pass_duration_seconds",
        "Seconds that the last pass took.",
        ((name, (one["finished"] - one["started"]).total_seconds()) for name, one in last.items()),
    )
    yield gauge(
        "freshet_last_pass_info",
        "Why the last pass ended.",
        ("spider", "reason"),
        (((name, _reason(one)), 1.0) for name, one in last.items()),
    )
    yield gauge(
        "freshet_last_pass_counts",
        "What the last pass counted, by name.",
        ("spider", "count"),
        (((name, of), _count(one, of)) for name, one in last.items() for of in COUNTS),
    )


def _reason(one: dict[str, Any]) -> str:
    reason = str(one.get("reason"))
    return reason if reason in REASONS else "other"


def _count(one: dict[str, Any], name: str) -> float:
    """One that was cut off has counted nothing."""
    return float((one.get("counts") or {}).get(name, 0))
