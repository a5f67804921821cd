"""What a simulation plays on: pages with a span of time, from a trace or from the own past."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np

from crawler.errors import ConfigError
from crawler.replanning.population import LONGEST_HOURS, SHORTEST_HOURS, Gathered, keys_of_texts
from crawler.traces import HOUR_SECONDS, Trace
from schedules.history import Floats, Ints
from schedules.population import Population, walls_of
from schedules.schedule import WEEK_HOURS
from schedules.score import Times
from schedules.world import Span, World

# Three weeks in nine are enough to learn from.
LEARNING_SHARE = 1 / 3
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Stage:
    """n targets with names, what truly happens to them, and when.

    source: (n,) index of each one's source
    """

    world: World
    names: Sequence[str]
    source: Ints
    span: Span


def stage_of_trace(
    trace: Trace, start: float | None, split: float | None, stop: float | None
) -> Stage:
    """The pages of a trace; all clocks are UTC's. None: the bounds of what is known."""
    known = trace.changes.at, trace.began, trace.ends
    span = _span(known, start, split, stop)
    return Stage(
        World(_population(trace, span), trace.changes, trace.began, trace.ends),
        trace.ids, trace.source, span,
    )  # fmt: skip


def _population(trace: Trace, span: Span) -> Population:
    n, sites, zone = len(trace), len(trace.sources), ZoneInfo("UTC")
    return Population(
        key=keys_of_texts(list(trace.ids)),
        site=trace.source,
        group=trace.source,
        parent=np.arange(sites),
        zones=(zone,) * sites,
        open_hours=np.ones((sites, WEEK_HOURS), np.bool_),
        weight=np.ones(n),
        cost=np.ones(n),
        min_hours=np.full(n, SHORTEST_HOURS),
        max_hours=np.full(n, float(LONGEST_HOURS)),
        site_day=np.full(sites, np.inf),
        site_hour=np.full(sites, np.inf),
        walls=walls_of((zone,), span.start, span.stop),
    )


def stage_of_past(
    gathered: Gathered, start: float | None, split: float | None, stop: float | None
) -> Stage:
    """The targets of a database as its visits saw them: a change is where it was found.

    A page is there from its first look on. After its last look it counts as unchanged.
    """
    rows = np.flatnonzero(~np.isnan(gathered.histories.since))
    population, past = gathered.population.of(rows), gathered.histories.of(rows)
    span = _span((past.since, past.until), start, split, stop)
    zones = tuple(dict.fromkeys(population.zones))
    population = replace(population, walls=walls_of(zones, span.start, span.stop))
    world = World(population, Times(past.first, past.by), past.since, np.full(len(rows), np.inf))
    names = [gathered.watched.ids[row] for row in rows.tolist()]
    return Stage(world, names, population.site, span)


def _span(
    known: Sequence[Floats], start: float | None, split: float | None, stop: float | None
) -> Span:
    """The span that was asked for, else that of what is known; ConfigError if it is none."""
    moments = np.concatenate([part[np.isfinite(part)] for part in known])
    if not len(moments):
        raise ConfigError("nothing is known of any change (scrapy crawl finds them)")
    start = float(moments.min()) if start is None else start
    stop = float(moments.max()) if stop is None else stop
    split = start + (stop - start) * LEARNING_SHARE if split is None else split
    if not start < split:
        raise ConfigError(f"--from {iso(start)} has to be before --split {iso(split)}")
    if not split < stop:
        raise ConfigError(f"--split {iso(split)} has to be before --to {iso(stop)}")
    return Span(start, split, stop)


def iso(hours: float) -> str:
    """A moment as ISO 8601 in UTC, to the second."""
    moment = EPOCH + timedelta(seconds=round(hours * HOUR_SECONDS))
    return moment.isoformat().replace("+00:00", "Z")
