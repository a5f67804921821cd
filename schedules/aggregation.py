"""How many fetches each feed gets: the policies of Han and Lee (2008), "Minimum Missing".

n feeds have `rate` posts in a period, a document that holds the newest `window` posts, and M
fetches between them. A post that is pushed out of the document before a fetch is lost. All counts
are of one and the same period: with posts a day and fetches of three weeks the policy loses more
than twice as many posts.
"""

from __future__ import annotations

import heapq

import numpy as np

from schedules.compiled import compiled
from schedules.history import Floats, Ints

# What sums of floats leave over is no post.
RESIDUE = 1e-9


def whole(shares: Floats, total: int) -> Ints:
    """(n,) whole numbers that sum to `total`, as `shares` have it: by largest remainder.

    shares: (n,) >= 0; ties go to the lowest index
    """
    if not len(shares):
        return np.empty(0, np.int64)
    even = np.full(len(shares), 1 / len(shares))
    exact = total * (shares / shares.sum() if shares.sum() > 0 else even)
    result = np.floor(exact + RESIDUE).astype(np.int64)
    order = np.argsort(-(exact - result), kind="stable")
    result[order[: total - int(result.sum())]] += 1
    return result


def uniform(rate: Floats, fetches: int) -> Ints:
    """(n,) the same for each feed: m = M / n."""
    return whole(np.ones(len(rate)), fetches)


def min_delay(rate: Floats, weight: Floats, fetches: int) -> Ints:
    """(n,) least delay of posts (Sia and Cho 2007): m = k sqrt(weight rate)."""
    return whole(np.sqrt(weight * rate), fetches)


def min_missing(rate: Floats, window: Floats, fetches: int) -> Ints:
    """(n,) fewest posts lost: each fetch goes to the feed of which it collects most posts.

    rate: (n,) posts in the period   window: (n,) >= 1 posts that the document holds

    A fetch collects PPA = min(TP, S) of the TP posts that are left. The largest PPA is next, the
    lowest index of equals; when nothing is left anywhere, all begin anew. Since PPA never rises
    along a feed's fetches, a heap holds the next of each: O((n + M) log n). Rounds that use up
    all posts are the same each time, and are counted, not played.
    """
    if not (rate > 0).any():
        return uniform(rate, fetches)
    round_of = np.maximum(np.ceil(rate / window * (1 - RESIDUE)), rate > 0).astype(np.int64)
    rounds, rest = divmod(fetches, int(round_of.sum()))
    result: Ints = rounds * round_of + np.bincount(choices(rate, window, rest), minlength=len(rate))
    return result


def choices(rate: Floats, window: Floats, fetches: int) -> Ints:
    """(fetches,) the feeds that `min_missing` chooses, in order."""
    return _choices(rate.astype(np.float64), window.astype(np.float64), fetches)


@compiled
def _choices(rate: Floats, window: Floats, fetches: int) -> Ints:
    chosen = np.empty(fetches, np.int64)
    left = rate.copy()
    heap = _full(rate, window)
    for j in range(fetches):
        if not len(heap):
            left[:] = rate
            heap = _full(rate, window)
        # The smallest pair: the most posts, then the lowest index.
        posts, i = heapq.heappop(heap)
        chosen[j] = i
        left[i] += posts
        if left[i] > RESIDUE * rate[i]:
            heapq.heappush(heap, (-min(left[i], window[i]), i))
    return chosen


@compiled
def _full(rate: Floats, window: Floats) -> list[tuple[float, int]]:
    heap = [(-min(rate[i], window[i]), i) for i in range(len(rate)) if rate[i] > 0]
    heapq.heapify(heap)
    return heap


def missing(rate: Floats, window: Floats, fetches: Ints) -> Floats:
    """(n,) posts lost when fetches come when the document is full: MP = rate - sum of PPA."""
    lost: Floats = np.maximum(rate - fetches * window, 0)
    return lost
