"""Who goes first when not all that is due can go."""

from __future__ import annotations

import numpy as np

from schedules.history import Floats, Ints


def room(cap: int, used: int) -> int | None:
    """Requests left of a cap of which `used` are spent; None where there is no cap (0)."""
    return max(0, cap - used) if cap else None


def least(*rooms: int | None) -> int | None:
    """The tightest of several; None where none is bounded."""
    bounded = [one for one in rooms if one is not None]
    return min(bounded) if bounded else None


def most_valuable(
    value: Floats, waited: Floats, every: Floats, most: int, longest_hours: float
) -> Ints:
    """Which `most` of n due targets go, in this order.

    value:  (n,) worth of one visit in time; NaN where no plan says it: then the others' mean
    waited: (n,) hours since the last visit, or since the target was found
    every:  (n,) hours between visits by plan; NaN or inf where there is none
    returns (min(n, most),) indices

    Those that have waited `longest_hours` come first. A visit that is put off gains in worth by as
    much as the planned interval is exceeded, so that nothing is put off for ever.
    """
    known = value[np.isfinite(value)]
    worth = np.where(np.isfinite(value), value, known.mean() if len(known) else 0.0)
    late = np.divide(waited, every, where=np.isfinite(every) & (every > 0), out=np.ones(len(value)))
    worth = worth * np.maximum(late, 1.0)
    return np.lexsort((-waited, -worth, waited < longest_hours))[:most]
