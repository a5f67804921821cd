"""What a simulation plays on: pages with a span of time, from a trace or from the own past."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from zoneinfo import ZoneInfo

import numpy as np

from crawler.replanning.population import LONGEST_HOURS, SHORTEST_HOURS, Gathered, keys_of_texts
from crawler.simulation.moments import Moments, span_of
from crawler.simulation.past import are_feeds
from crawler.traces.pages import Trace
from schedules.history import Ints, Times
from schedules.population import Population, walls_of
from schedules.schedule import WEEK_HOURS
from schedules.world import Span, World


@dataclass(frozen=True, slots=True)
class Stage:
    """n targets with names, what truly happens to them, and when.

    source: (n,) index of each one's source
    """

    world: World
    names: Sequence[str]
    source: Ints
    span: Span


def stage_of_trace(trace: Trace, moments: Moments) -> Stage:
    """The pages of a trace; all clocks are UTC's. Without moments: the bounds of what is known."""
    span = span_of((trace.changes.at, trace.began, trace.ends), moments)
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


def stage_of_past(gathered: Gathered, moments: Moments) -> Stage:
    """The pages of a database as its visits saw them: a change is where it was found.

    A page is there from its first look on. After its last look it counts as unchanged.
    """
    seen = ~np.isnan(gathered.histories.since)
    rows = np.flatnonzero(seen & ~are_feeds(gathered.watched))
    population, past = gathered.population.of(rows), gathered.histories.of(rows)
    span = span_of((past.since, past.until), moments)
    zones = tuple(dict.fromkeys(population.zones))
    population = replace(population, walls=walls_of(zones, span.start, span.stop))
    world = World(population, Times(past.first, past.by), past.since, np.full(len(rows), np.inf))
    names = [gathered.watched.ids[row] for row in rows.tolist()]
    return Stage(world, names, population.site, span)
