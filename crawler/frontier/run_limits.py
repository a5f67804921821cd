"""Limit the requests of a run, and order its due targets if it cannot visit all of them.

Limits are the caps of the plan and of the site, the limit of the run, visiting hours, and limits
per host. Both frontiers use this module, so a run ends in the same way with and without Redis.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from crawler.extract.list_wrappers import FeedsWrapper, connections_by_host
from crawler.extract.site_definition import Wrapper
from crawler.storage import due, leases, targets, visits
from crawler.storage.client import Database, Document, MongoRetry, in_batches
from crawler.storage.due import DueTargets, VisitShare
from crawler.storage.leases import Lease
from crawler.utils.text import count
from crawler.utils.time import Clock
from schedules.dispatch import Capacity, dispatch, equal_ratio
from schedules.history import Floats

if TYPE_CHECKING:
    from crawler.frontier.run import Run

logger = logging.getLogger(__name__)
# Other runs use the same caps, so visits in the database are counted again after this time.
RECOUNT_AFTER = timedelta(minutes=1)
# Maximum number of requests that a run reserves at once of caps that several spiders share.
MAX_RESERVED = 1000
# Runs that reserve at the same time try again after a random pause, up to twice as long each time.
RESERVE_ATTEMPTS = 6
RESERVE_PAUSE_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Cap:
    """Maximum number of requests of some spiders in one UTC day or hour.

    unit:    `day` or `hour`
    spiders: spiders whose requests count
    option:  option of `scrapy replan` that sets the cap; empty for the cap of a site definition
    """

    requests: int
    unit: str
    spiders: tuple[str, ...]
    option: str = ""

    def __str__(self) -> str:
        each = (
            f"{count(self.requests, 'request')} {'an' if self.unit == 'hour' else 'a'} {self.unit}"
        )
        shared = len(self.spiders) > 1
        return f"{each} by the {len(self.spiders)} spiders of the plan" if shared else each

    def begins(self, now: datetime) -> datetime:
        """Return the beginning of the current day or hour."""
        hour = now.replace(minute=0, second=0, microsecond=0)
        return hour if self.unit == "hour" else hour.replace(hour=0)


class Allowance:
    """Counts requests against the plan's caps and the hourly cap of the site; times are in UTC.

    If several spiders share the plan's caps, each run stores in its lease how many requests it may
    still make. So runs at the same time exceed no cap, whatever is in flight.
    """

    def __init__(
        self, db: Database, patience: MongoRetry, wrapper: Wrapper, clock: Clock,
        lease: Lease | None = None,
    ) -> None:  # fmt: skip
        self._db, self._patience, self._clock = db, patience, clock
        self._wrapper, self._lease = wrapper, lease
        hourly, own = wrapper.requests_per_hour, (wrapper.name,)
        self._site_caps = [Cap(hourly, "hour", own)] if hourly else []
        self._plan_caps: list[Cap] = []
        self._is_full = False
        self._reached: list[Cap] = []
        self._left: int | None = None
        self._good_until: datetime | None = None

    def follow(self, plan: Document, extra_per_day: float = 0, *, is_full: bool = False) -> None:
        """Use the caps of a plan: `daily_cap` and `hourly_cap`, requests of all its spiders.

        extra_per_day: requests per day in addition to the caps, for sampling phases and cells with
                       a period; spread evenly over the hours
        is_full:       the user requested a full run, which ignores these caps
        """
        self._is_full = is_full
        spiders = tuple(plan["spiders"])
        extra = {"day": ceil(extra_per_day), "hour": ceil(extra_per_day / 24)}
        names = (("daily_cap", "day", "--daily-cap"), ("hourly_cap", "hour", "--hourly-cap"))
        self._plan_caps = [
            Cap(int(plan[name]) + extra[unit], unit, spiders, option)
            for name, unit, option in names
            if plan.get(name)
        ]

    @property
    def ignored(self) -> str:
        """Describe the plan's caps that a full run ignores; empty if there are none."""
        return " and ".join(map(str, self._plan_caps)) if self._is_full else ""

    @property
    def reached(self) -> str:
        """Describe the caps that are reached, and how to raise or ignore them."""
        caps = self._reached or self._caps
        reasons = []
        if plan_caps := [cap for cap in caps if cap.option]:
            reasons.append(
                f"the plan's cap of {' and '.join(map(str, plan_caps))} is reached (to raise it: "
                f"scrapy replan {' N or '.join(cap.option for cap in plan_caps)} N; to ignore it "
                "once: -a full=1)"
            )
        reasons += [
            f"the site's cap of {cap} is reached (requests_per_hour in the site definition; later "
            "runs continue)"
            for cap in caps
            if not cap.option
        ]
        return " and ".join(reasons)

    @property
    def _caps(self) -> list[Cap]:
        return self._site_caps if self._is_full else [*self._plan_caps, *self._site_caps]

    @property
    def _others(self) -> list[str]:
        """Return the other spiders that share the caps of this run."""
        spiders = {name for cap in self._caps for name in cap.spiders}
        return sorted(spiders - {self._wrapper.name})

    def is_open(self) -> bool:
        """Return whether the current time is within the site's visiting hours."""
        if not (self._wrapper.visiting_hours or self._wrapper.blackout):
            return True
        return self._wrapper.open_at(self._clock.now())

    async def room(self, in_flight: int) -> int | None:
        """Return how many requests the caps allow now, after those in flight; None: no cap."""
        if not self._caps:
            return None
        # Before the visits are counted: a visit that is stored meanwhile counts twice, not never.
        reserved = 0
        if others := self._others:
            reserved = await self._patience.read(lambda: leases.reserved(self._db, others))
        now, left = self._clock.now(), {}
        for cap in self._caps:
            spiders, since = list(cap.spiders), cap.begins(now)
            count_visits = partial(visits.count_since, self._db, spiders, since)
            used = await self._patience.read(count_visits) + in_flight
            used += reserved if len(spiders) > 1 else 0
            left[cap] = max(0, cap.requests - used)
        self._reached = [cap for cap, rest in left.items() if not rest]
        return min(left.values())

    async def take(self, in_flight: int) -> bool:
        """Return whether the caps allow one more target, and count it if so."""
        if not self._caps:
            return True
        now = self._clock.now()
        spent = self._left is None or self._left <= 0
        if spent or self._good_until is None or now >= self._good_until:
            self._left = await self._share(in_flight)
            hour_ends = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
            self._good_until = min(now + RECOUNT_AFTER, hour_ends)
        if self._left is None:
            return True
        self._left -= 1
        return self._left >= 0

    async def some(self, max_targets: int, in_flight: int) -> int:
        """Return how many of `max_targets` targets the caps allow, and count these."""
        taken = 0
        while taken < max_targets and await self.take(in_flight + taken):
            taken += 1
        return taken

    def give_back(self, count: int) -> None:
        """Give back the allowance for `count` targets that were not handed out after all."""
        if self._left is not None:
            self._left += count

    async def _share(self, in_flight: int) -> int | None:
        """Return how many requests this run may make until it counts again; None: no limit.

        If other spiders use the same caps, this is a quarter of what is left, which is reserved.
        """
        for attempt in range(RESERVE_ATTEMPTS):
            left = await self.room(in_flight)
            if left is None or not self._others:
                return left
            share = min(-(-left // 4), MAX_RESERVED)
            if self._lease is None:
                return share
            await self._lease.reserve(in_flight + share)
            # Other runs may have reserved at the same time: then at least one of them sees the
            # other.
            left = await self.room(in_flight)
            if left is None or left >= share:
                return share
            await self._lease.reserve(in_flight + left)
            if left:
                return left
            # If each run sees the others' reservations, none gets anything: try at another time.
            await asyncio.sleep(random.uniform(0, RESERVE_PAUSE_SECONDS * 2**attempt))
        return 0


@dataclass(slots=True)
class HostLimits:
    """State of the hosts of one run.

    cap:         maximum number of requests per host; 0: no cap
    max_blocked: number of consecutive blocked responses after which a host is paused
    requests:    number of requests by host
    holds:       end of the pause by host
    given_up:    hosts that get no more requests in this run
    tries:       number of consecutive failures after which a host is unreachable: connections that
                 fail, and responses that say that the server is down
    """

    cap: int = 0
    max_blocked: int = 3
    tries: int = 10
    requests: Counter[str] = field(default_factory=Counter)
    holds: dict[str, datetime] = field(default_factory=dict)
    given_up: set[str] = field(default_factory=set)
    _blocked: Counter[str] = field(default_factory=Counter)
    _failed: Counter[str] = field(default_factory=Counter)

    def spend(self, host: str) -> bool:
        """Count a request to a host; return False if the host's cap is reached."""
        if self.cap and self.requests[host] >= self.cap:
            return False
        self.requests[host] += 1
        return True

    def wait_seconds(self, host: str, now: datetime) -> float:
        """Return for how many more seconds a host is paused; 0 if it is not."""
        until = self.holds.get(host)
        return max(0.0, (until - now).total_seconds()) if until else 0.0

    def hold(self, host: str, until: datetime) -> None:
        """Pause a host until `until`, or until the end of its current pause if that is later."""
        self.holds[host] = max(until, self.holds.get(host, until))

    def note(self, host: str, *, blocked: bool) -> bool:
        """Count a response; return True if it is the `max_blocked`-th blocked one in a row."""
        self._blocked[host] = self._blocked[host] + 1 if blocked else 0
        return self._blocked[host] == self.max_blocked

    def note_failure(self, host: str, *, has_failed: bool = True) -> bool:
        """Count a failure; return True if it is the `tries`-th in a row.

        has_failed: false for a response that does not say that the server is down
        """
        self._failed[host] = self._failed[host] + 1 if has_failed else 0
        return self._failed[host] == self.tries

    def is_unreachable(self, host: str) -> bool:
        """Return whether the last `tries` requests to a host failed."""
        return self._failed[host] >= self.tries

    def closed(self, now: datetime, patience: timedelta) -> list[str]:
        """Return hosts that get no more requests in this run.

        Their cap is reached, they are paused for longer than `patience`, or the run gave them up.
        """
        capped = [host for host, n in self.requests.items() if self.cap and n >= self.cap]
        held = [host for host, until in self.holds.items() if until > now + patience]
        return sorted({*capped, *held, *self.given_up})


class Admission:
    """Decides how many targets a run may hand out now.

    limit:      maximum number of targets of the run (`-a limit`); None: no limit
    handed_out: number of targets handed out so far by all processes
    """

    def __init__(self, run: Run, limit: int | None) -> None:
        self._run = run
        self._limit = limit
        self.handed_out = 0

    @property
    def is_spent(self) -> bool:
        """Return whether the run has handed out as many targets as its limit allows."""
        return self._limit is not None and self.handed_out >= self._limit

    async def admit(self, max_targets: int, under_way: int) -> int | None:
        """Return how many of `max_targets` targets to hand out now; None ends the run and logs why.

        under_way: number of targets that are queued or in progress. Some may already be stored and
                   would count twice, so the caps end the run only when there are none; until then,
                   0 is returned
        """
        run, allowance = self._run, self._run.allowance
        refused, allowed = None, 0
        if self._limit is not None:
            max_targets = min(max_targets, self._limit - self.handed_out)
        if self.is_spent:
            refused = "over_limit", f"limit reached (-a limit={self._limit})"
        elif not allowance.is_open():
            refused = "closed", "outside the site's visiting hours (visiting_hours, blackout)"
        else:
            allowed = await allowance.some(max_targets, under_way)
            if max_targets and not allowed and not under_way:
                refused = "over_cap", allowance.reached
        if refused is None:
            return allowed
        name, reason = refused
        count = partial(targets.count_due, run.db, run.spider, run.started)
        run.state.counts[name] = left = max(0, await run.patience.read(count) - under_way)
        if left:
            logger.info("%s: %s; %d targets remain due", run.spider, reason, left)
        return None


async def chosen(run: Run, size: int) -> AsyncIterator[list[str]]:
    """Yield the keys of the targets to fetch in dispatch order, in lists of `size`.

    Yields nothing if the run can fetch all due targets: dispatch only matters if a cap or a
    CLOSESPIDER_* setting may end the run before that.
    """
    limits, db, spider = run.limits, run.db, run.spider
    room = await run.allowance.room(0)
    caps = (room, limits.cap or None)
    is_short = any(cap is not None and run.state.due_at_start > cap for cap in caps)
    if not is_short and not run.may_end_early:
        return
    # Pages of paused hosts would take the places of others.
    closed = run.closed_hosts()
    candidates = await run.patience.read(partial(due.read, db, spider, run.started, closed))
    longest = run.config.longest_hours(feeds=isinstance(run.wrapper, FeedsWrapper))
    waiting = candidates.waiting.due(longest, by_time=run.is_timed)
    # Array (h,): number of requests that each host may still get.
    of_host = None
    if limits.cap:
        spent = np.array([limits.requests[host] for host in candidates.hosts], np.int64)
        of_host = np.maximum(limits.cap - spent, 0)
    served = await run.patience.read(partial(_served, run, candidates))
    capacity = Capacity(requests=room, of_host=of_host)
    best = dispatch(run.config.dispatch, waiting, capacity, served)
    if len(best) < len(waiting):
        logger.info(
            "%s: %d targets due, %d can be fetched; chosen by %s",
            spider, len(waiting), len(best), run.config.dispatch,
        )  # fmt: skip
    for part in in_batches(best.tolist(), size):
        yield [candidates.ids[i] for i in part]


async def _served(run: Run, candidates: DueTargets) -> float | Floats:
    """Return the ratio of visits to planned visits that all targets would get if it were equal.

    If requests are limited, that is the spider's ratio so far. If time is limited, each host has
    its own ratio; the ratio of a database follows from the load of its cells and its connections.
    """
    if not run.is_timed:
        return await due.served(run.db, run.spider)
    of_host = await due.served_of_hosts(run.db, run.spider)
    at_a_time = connections_by_host(run.wrapper)
    equal = np.ones(len(candidates.hosts))
    for number, host in enumerate(candidates.hosts):
        served = of_host.get(host, VisitShare())
        is_database = host in at_a_time
        equal[number] = equal_ratio(served.load / at_a_time[host]) if is_database else served.share
    ratios: Floats = equal[candidates.waiting.host]
    return ratios
