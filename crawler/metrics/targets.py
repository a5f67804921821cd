"""What is watched, what is due, and what was asked for lately, as metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import Metric

from crawler.items import Kind, Outcome
from crawler.metrics.gauges import Values, by_spider, gauge
from crawler.storage.figures import Figures, OfSpider
from crawler.storage.present import State

# So many errors in a row are told apart.
IN_A_ROW = (1, 5)
TIMES = {
    "due": ("freshet_targets_due", "Targets that are due."),
    "overdue": ("freshet_targets_overdue", "Targets that have been due for over an hour."),
    "oldest_seconds": (
        "freshet_targets_oldest_due_seconds",
        "For how long the most overdue target has been due; 0 if none is.",
    ),
}


def families(figures: Figures) -> Iterator[Metric]:
    """Gauges by spider."""
    yield from _of_states(figures.states)
    for field, (name, told) in TIMES.items():
        values = ((spider, getattr(of, field)) for spider, of in figures.spiders.items())
        yield by_spider(name, told, values)
    yield gauge(
        "freshet_recent_requests",
        "Requests in the log of the last hour and of the last day, by outcome.",
        ("spider", "outcome", "window"),
        _requests(figures.spiders),
    )


def _of_states(states: Counter[State]) -> Iterator[Metric]:
    kinds = {(state.spider, str(kind)): 0 for state in states for kind in Kind}
    never, most = (dict.fromkeys((state.spider for state in states), 0) for _ in range(2))
    failing = {(state.spider, str(least)): 0 for state in states for least in IN_A_ROW}
    for (spider, kind, errors, is_visited), n in states.items():
        kinds[spider, kind] += n
        never[spider] += 0 if is_visited else n
        most[spider] = max(most[spider], errors)
        for least in IN_A_ROW:
            failing[spider, str(least)] += n if errors >= least else 0
    of_kind = ("spider", "kind")
    yield gauge("freshet_targets", "Targets under watch by kind.", of_kind, kinds.items())
    told = "Targets that were never visited."
    yield by_spider("freshet_targets_never_visited", told, never.items())
    told = "Targets whose last visits were errors, so many in a row or more."
    yield gauge("freshet_targets_failing", told, ("spider", "in_a_row"), failing.items())
    told = "The most errors in a row of any target."
    yield by_spider("freshet_targets_most_errors_in_a_row", told, most.items())


def _requests(spiders: dict[str, OfSpider]) -> Values:
    for name, of in spiders.items():
        for outcome in map(str, Outcome):
            late = of.requests[outcome, True]
            yield (name, outcome, "1h"), late
            yield (name, outcome, "1d"), late + of.requests[outcome, False]
