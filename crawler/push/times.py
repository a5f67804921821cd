"""When to ask a hub again."""

from __future__ import annotations

from datetime import timedelta

FIRST_PAUSE = timedelta(minutes=10)
LONGEST_PAUSE = timedelta(days=1)
AFTER_REFUSAL = timedelta(days=7)
FIRST_HOLD = timedelta(minutes=2)
LONGEST_HOLD = timedelta(hours=6)
SHORTEST_LEASE = timedelta(minutes=1)
# However long a hub's lease: a subscription has to prove itself alive now and then.
LONGEST_LEASE = timedelta(days=30)
SHORTEST_RENEWAL = timedelta(seconds=30)
RENEWED_AT = 2 / 3
MOST_DOUBLINGS = 16


def pause(attempts: int, chance: float) -> timedelta:
    """After so many requests (>= 1) without an answer that counts: 10 minutes, doubled to a day.

    chance: in [0, 1), spreads those that failed together over a fifth of the time
    """
    return _doubled(FIRST_PAUSE, attempts, LONGEST_PAUSE) * (0.9 + 0.2 * chance)


def hold(failures: int, chance: float) -> timedelta:
    """How long a hub that failed so often in a row (>= 1) is left alone: 2 minutes to 6 hours."""
    return _doubled(FIRST_HOLD, failures, LONGEST_HOLD) * (0.9 + 0.2 * chance)


def _doubled(first: timedelta, times: int, longest: timedelta) -> timedelta:
    factor: int = 2 ** min(max(times, 1) - 1, MOST_DOUBLINGS)
    return min(first * factor, longest)


def lease(named: str | None, asked: timedelta) -> timedelta:
    """The lease that a hub's `hub.lease_seconds` gives; what was asked for if it is unreadable."""
    text = (named or "").strip()
    if text.isascii() and text.isdigit():
        asked = timedelta(seconds=int(text[:9]))
    return min(max(asked, SHORTEST_LEASE), LONGEST_LEASE)


def renewal(length: timedelta, chance: float) -> timedelta:
    """After how much of a lease it is renewed: two thirds, up to a tenth of that sooner."""
    return max(length * RENEWED_AT * (1 - 0.1 * chance), SHORTEST_RENEWAL)
