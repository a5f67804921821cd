"""The times of events on the site: an hour-of-week profile and random times that follow it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from itertools import accumulate
from math import exp
from random import Random

HORIZON_WEEKS = 12
WEEK_HOURS = 168


def hour_weight(hour: int) -> float:
    """Return the relative probability of a change in an hour of the week (0: Monday 00-01 UTC)."""
    day, clock = divmod(hour, 24)
    working = 8 <= clock < 18
    if day < 5:
        return 10.0 if working else 0.8
    return 2.0 if working else 0.3


_CUMULATIVE = tuple(accumulate(hour_weight(hour) for hour in range(WEEK_HOURS)))


def moment(random: Random, monday: datetime) -> datetime:
    """Return a random whole second of the week that starts at `monday`, following the profile."""
    hour = random.choices(range(WEEK_HOURS), cum_weights=_CUMULATIVE)[0]
    return monday + timedelta(hours=hour, seconds=random.randrange(3600))


def poisson(random: Random, mean: float) -> int:
    """Return a Poisson-distributed count (Knuth's method; `mean` must be below about 50)."""
    limit, product, count = exp(-mean), random.random(), 0
    while product > limit:
        product *= random.random()
        count += 1
    return count


def change_times(random: Random, monday: datetime, per_week: float) -> list[datetime]:
    """Return sorted, distinct change times over the 12 weeks from `monday`."""
    times: set[datetime] = set()
    for week in range(HORIZON_WEEKS):
        for _ in range(poisson(random, per_week)):
            times.add(moment(random, monday + timedelta(weeks=week)))
    return sorted(times)


def between(times: Iterable[datetime], since: datetime, until: datetime) -> list[datetime]:
    """Return the times with since < time <= until, in order."""
    return [time for time in times if since < time <= until]
