"""When in the local week a target changes: its own counts, shrunk to the rhythms of its site.

A target changes too seldom to show 168 hours of its own, so what its site shows stands for as much
as a few of its changes; without that pooling, profiles do harm. The targets of a site often change
together, and a few such days make peaks that never come again: half of a pooled profile is
therefore the product of weekday and hour of the day.
"""

from __future__ import annotations

import numpy as np

from schedules.compiled import compiled
from schedules.history import Floats
from schedules.schedule import WEEK_HOURS

DAYS, HOURS = 7, 24
# Changes that the product stands for in a site's profile, and its share of those counted.
PRODUCT_WEIGHT = 12.0
PRODUCT_SHARE = 0.5
# Changes, spread over all days and hours, that every product begins with.
EVEN_WEIGHT = 12.0
# Changes that the site's profile stands for in a target's.
SITE_WEIGHT = 8.0
NEIGHBOURS = 0.2
FLOOR = 1e-4


@compiled
def product(counts: Floats) -> Floats:
    """(168,) hour x weekday product of counts, sums to 1; even until there are more than a few."""
    total = counts.sum() + EVEN_WEIGHT
    table = counts.copy().reshape((DAYS, HOURS))
    days = (table.sum(1) + EVEN_WEIGHT / DAYS) / total
    hours = (table.sum(0) + EVEN_WEIGHT / HOURS) / total
    result = np.empty(WEEK_HOURS)
    for day in range(DAYS):
        for hour in range(HOURS):
            result[day * HOURS + hour] = days[day] * hours[hour]
    return result


def pooled(counts: Floats) -> Floats:
    """(168,) profile of many targets from the sum of their counts; sums to 1."""
    total = counts.sum()
    weight = PRODUCT_WEIGHT + PRODUCT_SHARE * total
    result: Floats = (counts + weight * product(counts)) / (total + weight)
    return result


def smoothed(profiles: Floats) -> Floats:
    """(..., 168) profiles with a share of each hour given to its neighbours."""
    beside = np.roll(profiles, 1, -1) + np.roll(profiles, -1, -1)
    result: Floats = (1 - 2 * NEIGHBOURS) * profiles + NEIGHBOURS * beside
    return result


@compiled
def target_profile(counts: Floats, rhythm: Floats, log_rhythm: Floats, share: Floats) -> Floats:
    """(168,) profile of a target from its own counts and its site's rhythms; sums to 1.

    counts: (168,)   rhythm, log_rhythm: (k, 168)   share: (k,) of the site's targets that follow
    each rhythm, 0 for those unused
    """
    belongs, profile = np.log(np.maximum(share, 1e-300)), counts.copy()
    for h in range(WEEK_HOURS):
        if counts[h] > 0:
            for k in range(len(share)):
                belongs[k] += counts[h] * log_rhythm[k, h]
    belongs = np.exp(belongs - belongs.max())
    belongs /= belongs.sum()
    for k in range(len(share)):
        weight = SITE_WEIGHT * belongs[k]
        for h in range(WEEK_HOURS):
            profile[h] += weight * rhythm[k, h]
    scale, least = (1 - FLOOR) / profile.sum(), FLOOR / WEEK_HOURS
    for h in range(WEEK_HOURS):
        profile[h] = scale * profile[h] + least
    return profile
