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
EVEN_WEIGHT = 14.0
# Changes that the site's profile stands for in a target's.
SITE_WEIGHT = 8.0
NEIGHBOURS = 0.2
FLOOR = 1e-4


@compiled
def product(counts: Floats, even: Floats) -> Floats:
    """(168,) hour x weekday product of counts, sums to 1; even until there are more than a few.

    counts: (168,)   even: (168,) what as many would be without any rhythm, see `even_counts`
    """
    table, flat = counts.copy().reshape((DAYS, HOURS)), even.copy().reshape((DAYS, HOURS))
    days = (table.sum(1) + EVEN_WEIGHT / DAYS) / (flat.sum(1) + EVEN_WEIGHT / DAYS)
    hours = (table.sum(0) + EVEN_WEIGHT / HOURS) / (flat.sum(0) + EVEN_WEIGHT / HOURS)
    result = np.empty(WEEK_HOURS)
    for day in range(DAYS):
        for hour in range(HOURS):
            result[day * HOURS + hour] = days[day] * hours[hour]
    normal: Floats = result / result.sum()
    return normal


def pooled(counts: Floats, even: Floats) -> Floats:
    """(168,) profile of many targets from the sums of their counts; sums to 1."""
    weight = PRODUCT_WEIGHT + PRODUCT_SHARE * counts.sum()
    profile = (counts + weight * product(counts, even)) / (WEEK_HOURS * even + weight)
    result: Floats = profile / profile.sum()
    return result


def smoothed(profiles: Floats) -> Floats:
    """(..., 168) profiles with a share of each hour given to its neighbours."""
    beside = np.roll(profiles, 1, -1) + np.roll(profiles, -1, -1)
    result: Floats = (1 - 2 * NEIGHBOURS) * profiles + NEIGHBOURS * beside
    return result


@compiled
def target_profile(
    counts: Floats, even: Floats, rhythm: Floats, log_rhythm: Floats, share: Floats
) -> Floats:
    """(168,) profile of a target from its own counts and its site's rhythms; sums to 1.

    counts, even: (168,) as in `product`   rhythm, log_rhythm: (k, 168)
    share: (k,) of the site's targets that follow each rhythm, 0 for those unused
    """
    belongs, likely = np.log(np.maximum(share, 1e-300)), np.zeros(len(share))
    profile, total = counts.copy(), counts.sum()
    for h in range(WEEK_HOURS):
        for k in range(len(share)):
            belongs[k] += counts[h] * log_rhythm[k, h]
            likely[k] += even[h] * rhythm[k, h]
    if total > 0:
        belongs -= total * np.log(likely)
    belongs = np.exp(belongs - belongs.max())
    belongs /= belongs.sum()
    for k in range(len(share)):
        weight = SITE_WEIGHT * belongs[k]
        for h in range(WEEK_HOURS):
            profile[h] += weight * rhythm[k, h]
    for h in range(WEEK_HOURS):
        profile[h] /= WEEK_HOURS * even[h] + SITE_WEIGHT
    scale, least = (1 - FLOOR) / profile.sum(), FLOOR / WEEK_HOURS
    for h in range(WEEK_HOURS):
        profile[h] = scale * profile[h] + least
    return profile
