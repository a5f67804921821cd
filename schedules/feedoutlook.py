"""What is to be expected of the schedules of feeds: posts lost, and how long the others wait."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from schedules.chunks import Part, parts, spread_over
from schedules.compiled import compiled
from schedules.fetches import course, interval_posts
from schedules.history import Floats, Ints
from schedules.overflow import expected, looked_up, table
from schedules.posting import Hours, Posting, profile_of
from schedules.schedule import FEED_CYCLES, WEEK_HOURS, Schedules


class FeedOutlook(NamedTuple):
    """What is to be expected of n feeds.

    missed: (n,) posts lost in a week    delay_hours: (n,) mean wait of those collected
    """

    missed: Floats
    delay_hours: Floats


def feed_outlook(posting: Posting, window: Ints, schedules: Schedules) -> FeedOutlook:
    """The outlook of any schedules; window: (n,) posts that the documents hold.

    Without a visit everything is lost.
    """

    def work(part: Part) -> tuple[Floats, Floats]:
        cells, first = posting.cells_of(part), schedules.first[part.start : part.stop + 1]
        return _outlook(
            (posting.per_week[part], posting.batch[part]),
            (cells.first, cells.hour, posting.common),
            window[part],
            schedules.weeks[part].astype(np.int64),
            (first - first[0], schedules.slots[first[0] : first[-1]].astype(np.int64)),
            schedules.every_hours[part],
        )

    pieces = spread_over(work, parts(len(schedules)))
    missed, wait = (np.concatenate(column) for column in zip(*pieces, strict=True))
    got = posting.per_week - missed
    delay = np.divide(wait, got, where=got > 0, out=np.full(len(got), np.inf))
    return FeedOutlook(missed, delay)


@compiled
def _outlook(
    posts: tuple[Floats, Floats],
    cells: tuple[Ints, Hours, Floats],
    window: Ints,
    weeks: Ints,
    slots: tuple[Ints, Ints],
    every: Floats,
) -> tuple[Floats, Floats]:
    """Posts lost in a week, and hours that the others wait together."""
    missed, wait = posts[0].copy(), np.zeros(len(window))
    for i in range(len(window)):
        mine = slots[1][slots[0][i] : slots[0][i + 1]]
        per_week, batch = posts[0][i], posts[1][i]
        if every[i] > 0:
            mean = per_week * every[i] / WEEK_HOURS
            lost, share = expected(mean, batch, window[i])
            missed[i] = lost * WEEK_HOURS / every[i]
            wait[i] = share * per_week * every[i] / 2
        elif len(mine):
            profile = profile_of(cells[1][cells[0][i] : cells[0][i + 1]], cells[2])
            missed[i], wait[i] = _of_slots(profile, per_week, batch, window[i], weeks[i], mine)
    return missed, wait


@compiled
def _of_slots(
    profile: Floats, per_week: float, batch: float, window: int, weeks: int, slots: Ints
) -> tuple[float, float]:
    mass, lever = course(profile, per_week)
    t = table(FEED_CYCLES[0] * per_week, batch, window)
    missed, wait = 0.0, 0.0
    for j in range(len(slots)):
        later = slots[j + 1] if j + 1 < len(slots) else slots[0] + weeks * WEEK_HOURS
        a = slots[j] % WEEK_HOURS
        posts, waits = interval_posts(mass, lever, a, a + later - slots[j])
        lost, share = looked_up(t.lost, t.wait, t.top, posts)
        missed += lost
        wait += share * waits
    return missed / weeks, wait / weeks
