"""What visits see of true changes: the history that a crawl would have kept."""

from __future__ import annotations

import numpy as np

from schedules.history import Floats, Histories, Ints, Times


def never(n: int) -> Histories:
    """The histories of n targets that nobody has looked at yet."""
    nothing, none = np.full(n, np.nan), np.empty(0)
    return Histories(nothing, nothing.copy(), np.zeros(n + 1, np.int64), none, none)


def polls(n: int, start: float, stop: float, every_hours: float) -> Times:
    """Looks at all n targets on one grid, both ends included."""
    count = int(np.floor((stop - start) / every_hours + 1e-9)) + 1
    grid = start + np.arange(count) * every_hours
    return Times(np.arange(n + 1) * count, np.tile(grid, n))


def seen(past: Histories, visits: Times, changes: Times) -> Histories:
    """The histories after more visits. visits: later than the past, ascending for each target."""
    n = len(past)
    owner = np.repeat(np.arange(n), np.diff(visits.first))
    before = np.empty(len(visits.at))
    before[1:] = visits.at[:-1]
    begins = visits.first[:-1][np.diff(visits.first) > 0]
    before[begins] = past.until[owner[begins]]
    old, new = _changes_until(changes, owner, before), _changes_until(changes, owner, visits.at)
    changed = (new > old) & ~np.isnan(before)
    return _with(past, visits, owner[changed], before[changed], visits.at[changed])


def _changes_until(changes: Times, owner: Ints, at: Floats) -> Ints:
    """How many changes of its target each moment has behind it."""
    if np.isnan(at).all():
        return np.zeros(len(at), np.int64)
    low = min(changes.at.min(initial=np.inf), np.nanmin(at, initial=np.inf))
    high = max(changes.at.max(initial=-np.inf), np.nanmax(at, initial=-np.inf))
    # Targets one after the other on one line. Milliseconds: sums of hours are not exact.
    length = round((high - low) * 3.6e6) + 2
    of = np.repeat(np.arange(len(changes.first) - 1), np.diff(changes.first))
    line = of * length + np.rint((changes.at - low) * 3.6e6).astype(np.int64)
    place = owner * length + np.rint((np.nan_to_num(at, nan=low) - low) * 3.6e6).astype(np.int64)
    behind: Ints = np.searchsorted(line, place, "right") - changes.first[owner]
    return behind


def _with(past: Histories, visits: Times, owner: Ints, after: Floats, by: Floats) -> Histories:
    n = len(past)
    some = np.diff(visits.first) > 0
    since, until = past.since.copy(), past.until.copy()
    since[some & np.isnan(since)] = visits.at[visits.first[:-1][some & np.isnan(since)]]
    until[some] = visits.at[visits.first[1:][some] - 1]
    of = np.concatenate([np.repeat(np.arange(n), np.diff(past.first)), owner])
    order = np.argsort(of, kind="stable")
    first = np.concatenate([[0], np.cumsum(np.bincount(of, minlength=n))])
    later = np.concatenate([past.after, after])[order], np.concatenate([past.by, by])[order]
    return Histories(since, until, first, *later)
