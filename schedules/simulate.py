"""What a policy would have done: the planner's own code against changes that truly happened.

Time goes on from one replan to the next. A replan knows what the visits before it saw and nothing
else; a target that has ended is gone and leaves its share of the budget to the others. Under a hard
daily cap a refused visit stays due and goes first on the next UTC day with room.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from schedules.actors import Adaptive, Planned
from schedules.history import DAY_HOURS, Floats, Histories, Times
from schedules.looks import never, seen
from schedules.plan import Terms
from schedules.schedule import WEEK_HOURS, Schedules
from schedules.terms import GROUPED
from schedules.world import Span, World, joined, times_of, visits_of, while_there

POLL_HOURS = 1 / 3
# The golden section of a day.
GOLDEN = (5**0.5 - 1) / 2
# Moments as sums of hours are not exact; this is less than the second that files tell.
TOUCH = 1e-6


class _Crawl(Protocol):
    """What carries a plan out."""

    def replan(self, past: Histories, now: float) -> None:
        """Plan anew."""

    def visits(self, past: Histories, now: float, until: float) -> Times:
        """The visits of a period."""


def simulate(
    world: World,
    terms: Terms,
    span: Span,
    *,
    replan_hours: float = WEEK_HOURS,
    closed_loop: bool = False,
) -> Times:
    """All visits of a policy, ascending for each target.

    Open loop: it knows what polls every 20 minutes saw from `start` to `split`, and visits from
    `split` on; the paper's groups stay as those polls made them. Closed loop: it visits from
    `start` on and knows nothing; in its first week it looks at each target daily, at another hour
    each day, whatever the budget and the cap. Only the adaptive policy goes its own way at once.
    """
    crawl: _Crawl = Adaptive(world, terms) if terms.policy == "adaptive" else Planned(world, terms)
    learns = closed_loop or terms.policy not in GROUPED
    past, went, now = _beginning(world, terms, span, closed_loop=closed_loop)
    taught = past
    while now < span.stop:
        until = min(now + replan_hours, span.stop)
        crawl.replan(taught, now)
        visits = crawl.visits(past, now, until)
        past = seen(past, visits, world.changes)
        taught = past if learns else taught
        went.append(visits)
        now = until
    return joined(len(world), went)


def _beginning(
    world: World, terms: Terms, span: Span, *, closed_loop: bool
) -> tuple[Histories, list[Times], float]:
    """What is known before the first plan, the visits that saw it, and when the first plan is."""
    if not closed_loop:
        return polled(world, span.start, span.split), [], span.split
    if terms.policy == "adaptive":
        return never(len(world)), [], span.start
    until = min(span.start + WEEK_HOURS, span.stop)
    went = first_week(world, span.start, until)
    return seen(never(len(world)), went, world.changes), [went], until


def daily(world: World, start: float, stop: float) -> Times:
    """Each target once a day, at an hour that looks random and stays with the target."""
    n = len(world)
    hour = (world.population.key % np.uint64(DAY_HOURS)).astype(np.float64)
    schedules = Schedules.even(np.full(n, WEEK_HOURS / DAY_HOURS), hour / DAY_HOURS)
    return while_there(world, visits_of(schedules, world.population, start, stop))


def first_week(world: World, start: float, stop: float) -> Times:
    """Each target once a day, at hours that differ from day to day by the golden section.

    At one hour of the day nothing would be learned of the others; the golden section spreads a few
    days over all hours most evenly.
    """
    n, days = len(world), int(np.ceil((stop - start) / DAY_HOURS))
    begin = (world.population.key % np.uint64(DAY_HOURS)).astype(np.float64)[:, None]
    hour = np.floor(begin + DAY_HOURS * GOLDEN * np.arange(days)) % DAY_HOURS
    at = start + np.arange(days) * DAY_HOURS + hour
    return while_there(world, times_of(n, [(np.repeat(np.arange(n), days), at.ravel())]))


def polled(world: World, start: float, stop: float) -> Histories:
    """What looks at all targets every 20 minutes see, both ends included.

    The same as `looks.seen` of `looks.polls`, from the changes alone.
    """
    n, changes = len(world), world.changes
    since, until = _polls_of(world, start, stop)
    owner = np.repeat(np.arange(n), np.diff(changes.first))
    poll = np.ceil((changes.at - start) / POLL_HOURS - TOUCH)
    watched = (poll > since[owner]) & (poll <= until[owner])
    owner, poll = owner[watched], poll[watched]
    new = (np.diff(owner, prepend=-1) > 0) | (np.diff(poll, prepend=-1) > 0)
    owner, poll = owner[new], poll[new]
    first = np.searchsorted(owner, np.arange(n + 1))
    known = since <= until
    return Histories(
        np.where(known, start + since * POLL_HOURS, np.nan),
        np.where(known, start + until * POLL_HOURS, np.nan),
        first, start + (poll - 1) * POLL_HOURS, start + poll * POLL_HOURS,
    )  # fmt: skip


def _polls_of(world: World, start: float, stop: float) -> tuple[Floats, Floats]:
    """(n,) number of the first and the last poll of each target; the last is less if none is."""
    began = np.fmax(world.began, start)
    ends = np.minimum(world.ends, stop)
    since = np.ceil((began - start) / POLL_HOURS - TOUCH)
    return since, np.floor((ends - start) / POLL_HOURS + TOUCH)
