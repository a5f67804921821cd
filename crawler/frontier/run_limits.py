"""Limits of the requests of a run: caps of the plan and the site, visiting hours, hosts."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from math import ceil

from crawler.extract.site_definition import Wrapper
from crawler.storage import leases, visits
from crawler.storage.client import Database, Document, MongoRetry
from crawler.storage.leases import Lease
from crawler.utils.text import count
from crawler.utils.time import Clock

# Other runs use the same caps, so visits in the database are counted again after this time.
RECOUNT_AFTER = timedelta(minutes=1)
# Maximum number of requests that a run reserves at once of caps that several spiders share.
MAX_RESERVED = 1000
# Runs that reserve at the same time try again after a random pause, which depends on the time of an
# attempt: it is long on a busy machine.
RESERVE_ATTEMPTS = 6


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

        If other spiders use the same caps, this is a quarter of what is left, which is reserved;
        less if others reserve at the same time.
        """
        time = asyncio.get_running_loop().time
        if self._others and self._lease is not None:
            # Visits that are stored count twice while they are reserved.
            await self._lease.reserve(in_flight)
        for attempt in range(RESERVE_ATTEMPTS):
            began = time()
            left = await self.room(in_flight)
            if left is None or not self._others:
                return left
            share = min(-(-left // (4 << attempt)), MAX_RESERVED)
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
            await asyncio.sleep(random.uniform(0, (time() - began) * (1 << attempt)))
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
