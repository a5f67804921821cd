"""The fetches of a period for all feeds at one price: the most posts for the number of fetches.

Each feed offers the fetches that it would like most, in falling order of what they save; the best
of all feeds are bought, and moved to their best hours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from schedules.allocate import Purchase, Steps, buy
from schedules.chunks import Part, parts, spread_over
from schedules.compiled import compiled
from schedules.fetches import Course, Room, course, hull, insert, polish
from schedules.history import Floats, Ints
from schedules.overflow import table
from schedules.posting import MONDAY_HOURS, Posting, profile_of
from schedules.schedule import WEEK_HOURS
from schedules.score import DAY_HOURS

# Posts lost that a day's waiting of one post counts for.
DELAY_PER_DAY = 0.03
# What is offered for less than this share of the price is not looked at.
WORTH_OFFERING = 0.7
FIRST_GUESS, LOWEST = 1.0, 1e-9
CHEAPER = 0.25
# So many feeds tell the price.
ENOUGH = 5_000
FOR_EVER = 1e9
T = TypeVar("T", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Feeds:
    """n feeds to be fetched.

    key:    (n,) a number that stays with the feed, for choices that are to look random
    window: (n,) >= 1 posts that the feed's document holds     weight: (n,) importance
    """

    key: NDArray[np.uint64]
    window: Ints
    weight: Floats

    def __len__(self) -> int:
        return len(self.key)

    def of(self, rows: Ints) -> Feeds:
        """Some of the feeds."""
        return Feeds(self.key[rows], self.window[rows], self.weight[rows])


@dataclass(frozen=True, slots=True)
class Period:
    """What is to be fetched: n feeds from hour 0, `begin` hours since 1970, to hour `hours`.

    seen: (n,) hour at which each feed was fetched last, 0 or later     soonest: first hour allowed
    """

    posting: Posting
    feeds: Feeds
    seen: Ints
    begin: float
    hours: int
    soonest: int

    def __len__(self) -> int:
        return len(self.feeds)

    def of(self, rows: Ints) -> Period:
        """The period of some of the feeds."""
        posting, feeds = self.posting.of(rows), self.feeds.of(rows)
        return replace(self, posting=posting, feeds=feeds, seen=self.seen[rows])


class Fetches(NamedTuple):
    """Moments of n feeds. first: (n + 1,) offsets; hour: (k,) of the period, whole for fetches."""

    first: Ints
    hour: NDArray[Any]


class Offers(NamedTuple):
    """What n feeds would buy. begin: (n + 1,) offsets; order: hours in the order put in."""

    steps: Steps
    begin: Ints
    order: NDArray[np.int32]


class Columns(NamedTuple):
    """What the kernels need of m feeds; see Period and Posting."""

    per_week: Floats
    batch: Floats
    first: Ints
    cell: NDArray[np.uint8]
    common: Floats
    window: Ints
    weight: Floats
    seen: Ints
    hours: int
    soonest: int
    monday: int


def bought(
    period: Period, fetches: int, until: int, guess: float = FIRST_GUESS
) -> tuple[Fetches, float]:
    """At most so many fetches, where they save most; and the price, a guess for the next time.

    until: feeds without a fetch up to this hour will be planned anew, and are not polished
    """
    price = _price(period, fetches, guess)
    while True:
        offer = offers(period, WORTH_OFFERING * price)
        purchase = _purchase(offer, period.feeds.key, fetches)
        if not purchase.sold_out or price <= LOWEST:
            return _placed(period, offer, purchase, until), max(purchase.price, LOWEST)
        price *= CHEAPER


def _purchase(offer: Offers, key: NDArray[np.uint64], fetches: float) -> Purchase:
    # Each feed's first step is to buy nothing.
    return buy(offer.steps, key, fetches)


def _price(period: Period, fetches: int, guess: float) -> float:
    """About what the last fetch is worth, from some of the feeds."""
    some, share = period, 1.0
    if len(period) > ENOUGH:
        some, share = (
            period.of(np.sort(np.argsort(period.feeds.key)[:ENOUGH])),
            ENOUGH / len(period),
        )
    price = max(guess, LOWEST)
    while True:
        purchase = _purchase(offers(some, price), some.feeds.key, fetches * share)
        if not purchase.sold_out:
            return max(purchase.price, LOWEST)
        if price <= LOWEST:
            return LOWEST
        price *= CHEAPER


def offers(period: Period, least: float) -> Offers:
    """All fetches that save more than `least`."""
    pieces = spread_over(lambda part: _offers(_columns(period, part), least), parts(len(period)))
    counts, visits, value, option, slots, order = (
        np.concatenate(column) for column in zip(*pieces, strict=True)
    )
    return Offers(Steps(_offsets(counts), visits, value, option), _offsets(slots), order)


def _columns(period: Period, part: Part) -> Columns:
    posting = period.posting
    cells = posting.cells_of(part)
    return Columns(
        posting.per_week[part], posting.batch[part], cells.first, cells.hour, posting.common,
        period.feeds.window[part], period.feeds.weight[part], period.seen[part], period.hours,
        period.soonest, int(np.floor(period.begin) - MONDAY_HOURS) % WEEK_HOURS,
    )  # fmt: skip


def _offsets(counts: Ints) -> Ints:
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


@compiled
def _course(f: Columns, i: int) -> tuple[Course, Room]:
    profile = profile_of(f.cell[f.first[i] : f.first[i + 1]], f.common)
    mass, lever = course(profile, f.per_week[i], f.hours, f.monday)
    # The period ends after its last hour, which is one for fetches.
    mass, lever = np.append(mass, mass[-1]), np.append(lever, lever[-1])
    most = mass[-1] - mass[f.seen[i]]
    found = Course(mass, lever, table(most, f.batch[i], f.window[i]), DELAY_PER_DAY / DAY_HOURS)
    end = f.hours + 1
    room = Room(
        f.seen[i], end, True, f.soonest, f.monday, np.ones(WEEK_HOURS, np.bool_), 1.0, FOR_EVER
    )
    return found, room


@compiled
def _grown(old: NDArray[T], used: int) -> NDArray[T]:
    """The same array, or one with room for more where all of it is used."""
    if used < len(old):
        return old
    new = np.empty(2 * used, old.dtype)
    new[:used] = old[:used]
    return new


@compiled
def _offers(f: Columns, least: float) -> tuple[NDArray[Any], ...]:
    m = len(f.weight)
    counts, slots = np.empty(m, np.int64), np.empty(m, np.int64)
    visits, value = np.empty(8 * m + 8, np.float32), np.empty(8 * m + 8, np.float32)
    option, order = np.empty(8 * m + 8, np.int32), np.empty(8 * m + 8, np.int32)
    used, placed = 0, 0
    for i in range(m):
        c, room = _course(f, i)
        saved, hour, _, _ = insert(c, room, least / f.weight[i], f.hours)
        count, worth, _ = hull(np.ones(len(saved)), saved, 0)
        counts[i], slots[i] = len(count) + 1, len(hour)
        total = 0.0
        for j in range(len(count) + 1):
            visits, value, option = _grown(visits, used), _grown(value, used), _grown(option, used)
            total += count[j - 1] if j else 0.0
            visits[used], option[used] = total, int(total + 0.5)
            value[used] = worth[j - 1] * f.weight[i] if j else np.inf
            used += 1
        for j in range(len(hour)):
            order = _grown(order, placed)
            order[placed] = hour[j]
            placed += 1
    return (
        counts, visits[:used].copy(), value[:used].copy(), option[:used].copy(), slots,
        order[:placed].copy(),
    )  # fmt: skip


def _placed(period: Period, offer: Offers, purchase: Purchase, until: int) -> Fetches:
    """The fetches bought, each at its best hour."""
    count = offer.steps.option[purchase.chosen].astype(np.int64)
    first = _offsets(count)
    place = np.arange(first[-1]) + np.repeat(offer.begin[:-1] - first[:-1], count)
    hour = offer.order[place].astype(np.int64)

    def work(part: Part) -> None:
        own = first[part.start : part.stop + 1]
        _polish(_columns(period, part), own - own[0], hour[own[0] : own[-1]], until)

    spread_over(work, parts(len(period)))
    return Fetches(first, hour)


@compiled
def _polish(f: Columns, first: Ints, hour: Ints, until: int) -> None:
    for i in range(len(first) - 1):
        fetches = hour[first[i] : first[i + 1]]
        if len(fetches) and fetches.min() <= until:
            c, room = _course(f, i)
            fetches[:] = polish(c, room, fetches)
