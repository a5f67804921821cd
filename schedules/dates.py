"""Whether the dates that a site's pages give are to be believed, and what they tell then.

A server may date a page by the time of asking, by the last restart, or not at all; so its dates
have to prove right first. What a date says is when the page changed last: earlier changes since the
look before stay unseen.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from schedules.history import Flags, Floats, Histories, Ints

LEAST_DATED = 20
LEAST_RIGHT = 0.9
# Of the dated changes: visits that met a new date on the old content.
MOST_LIES = 0.1
# So near to the visit a date is that of the asking.
ASKING_HOURS = 2 / 60
# A rate is told by days with and without changes (`evidence`), so within a day the exact hour of
# the last change takes nothing from it. In a longer gap it would pass for the only change.
LONGEST_GAP_HOURS = 24.0
# Histories are in whole minutes: a change at 10:07 happened in the minute that begins there.
MINUTE = 1 / 60


def right(histories: Histories, said: Floats) -> Flags:
    """(c,) which changes have a date that lies between the two looks, and not at the second.

    said: (c,) hours since 1970 (UTC); NaN where the page says nothing
    """
    tolerance = MINUTE / 2
    inside: Flags = said >= histories.after - tolerance
    inside &= said < histories.by - ASKING_HOURS + tolerance
    return inside


def reliable(histories: Histories, said: Floats, lies: Ints, site: Ints, sites: int) -> Flags:
    """(s,) whether each site's dates have proved right.

    lies: (n,) visits with a new date and the old content   site: (n,) 0 to s - 1
    """
    of = np.repeat(site, np.diff(histories.first))
    dated = np.bincount(of[~np.isnan(said)], minlength=sites)
    proved = np.bincount(of[right(histories, said)], minlength=sites)
    lied = np.bincount(site, lies, sites)
    result: Flags = (dated >= LEAST_DATED) & (proved >= LEAST_RIGHT * dated)
    return result & (lied <= MOST_LIES * dated)


def timed(
    histories: Histories, said: Floats, believed: Flags, each_dated: Flags | None = None
) -> Histories:
    """The histories with changes at the minute that the page says, where it is believed.

    believed:   (n,) whose dates are
    each_dated: (n,) targets that date every change and not only the last, such as feeds
    """
    if not believed.any():
        return histories
    exact = right(histories, said) & np.repeat(believed, np.diff(histories.first))
    short = histories.by - histories.after <= LONGEST_GAP_HOURS
    if each_dated is not None:
        short |= np.repeat(each_dated, np.diff(histories.first))
    exact &= short
    after = np.where(exact, np.maximum(said, histories.after), histories.after)
    by = np.where(exact, after + MINUTE, histories.by)
    return replace(histories, after=after, by=by)
