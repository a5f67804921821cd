"""What a run may ask for at this moment: the plan's caps, and the hours the wrapper keeps."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import ceil

from crawler.extract.wrapper import Wrapper
from crawler.storage import visits
from crawler.storage.client import Database, Document
from crawler.storage.retry import MongoRetry
from crawler.utils.text import count
from crawler.utils.time import Clock
from schedules.dispatch.dispatch import least, room

logger = logging.getLogger(__name__)
# Visits of other crawls count too, so they are counted again after this time.
TRUSTED_FOR = timedelta(minutes=1)


class Allowance:
    """Counts what is handed out against the plan's caps; hours and days are UTC."""

    def __init__(self, db: Database, patience: MongoRetry, wrapper: Wrapper, clock: Clock) -> None:
        self._db, self._patience, self._clock = db, patience, clock
        self._wrapper = wrapper
        self._caps: tuple[int, int] = (0, 0)
        self._is_full = False
        self._reached = (False, False)
        self._spiders: list[str] = []
        self._left: int | None = None
        self._good_until: datetime | None = None

    def follow(self, plan: Document, besides_per_day: float = 0, *, is_full: bool = False) -> None:
        """Take the caps of a plan: `daily_cap` and `hourly_cap`, requests of all its spiders.

        besides_per_day: what learning phases and cells with a period may spend besides, on a day
                         and evenly in its hours
        is_full: the user asked for everything: the caps are known, and not kept
        """
        self._is_full = is_full
        besides = (ceil(besides_per_day), ceil(besides_per_day / 24))
        caps = (int(plan.get(name) or 0) for name in ("daily_cap", "hourly_cap"))
        daily, hourly = (cap and cap + more for cap, more in zip(caps, besides, strict=True))
        self._caps = (daily, hourly)
        self._spiders = list(plan["spiders"])

    @property
    def caps(self) -> str:
        """The caps in words; empty where there are none."""
        return " and ".join(cap for cap, _ in self._each((True, True)))

    @property
    def reached(self) -> str:
        """That the caps are reached, and the way out, in words; those that are, as far as known."""
        each = self._each(self._reached if any(self._reached) else (True, True))
        caps, options = " and ".join(cap for cap, _ in each), " N or ".join(way for _, way in each)
        return (
            f"the plan's cap of {caps} is reached (to raise it: scrapy replan {options} N; to "
            "ignore it once: -a full=1)"
        )

    def _each(self, which: tuple[bool, bool]) -> list[tuple[str, str]]:
        """The daily and the hourly cap in words, and the option of `scrapy replan` that sets it."""
        daily, hourly = self._caps
        several = f" by the {len(self._spiders)} spiders of the plan"
        together = several if len(self._spiders) > 1 else ""
        each = ((daily, "a day", "--daily-cap"), (hourly, "an hour", "--hourly-cap"))
        return [
            (f"{count(cap, 'request')} {time}{together}", option)
            for wanted, (cap, time, option) in zip(which, each, strict=True)
            if wanted and cap
        ]

    def is_open(self) -> bool:
        """Whether the wrapper lets anything be asked for at this hour."""
        return self._wrapper.open_at(self._clock.now())

    async def room(self, in_flight: int) -> int | None:
        """Requests that may still be made now, besides those in flight; None: no cap."""
        if self._is_full or not any(self._caps):
            return None
        now = self._clock.now()
        hour = now.replace(minute=0, second=0, microsecond=0)
        daily, hourly = self._caps
        today = await self._spent(hour.replace(hour=0)) if daily else 0
        this_hour = await self._spent(hour) if hourly else 0
        rooms = room(daily, today + in_flight), room(hourly, this_hour + in_flight)
        self._reached = (rooms[0] == 0, rooms[1] == 0)
        return least(*rooms)

    async def take(self, in_flight: int) -> bool:
        """Whether one more may be handed out; it is counted then."""
        now = self._clock.now()
        spent = self._left is None or self._left <= 0
        if spent or self._good_until is None or now >= self._good_until:
            self._left = self._share(await self.room(in_flight))
            hour_ends = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
            self._good_until = min(now + TRUSTED_FOR, hour_ends)
        if self._left is None:
            return True
        self._left -= 1
        return self._left >= 0

    async def some(self, most: int, in_flight: int) -> int:
        """How many of `most` may be handed out; they are counted then."""
        taken = 0
        while taken < most and await self.take(in_flight + taken):
            taken += 1
        return taken

    def give_back(self, count: int) -> None:
        """So many were counted and not handed out."""
        if self._left is not None:
            self._left += count

    def _share(self, left: int | None) -> int | None:
        """Other spiders of the plan draw on the same caps: only a part before the next count."""
        if left is None or len(self._spiders) < 2:
            return left
        return -(-left // 4)

    async def _spent(self, since: datetime) -> int:
        return await self._patience.read(lambda: visits.count_since(self._db, self._spiders, since))


@dataclass(slots=True)
class HostLimits:
    """Per-host state of one run; bounded by the number of hosts of the spider.

    cap:     requests to one host; 0: no cap
    strikes: blocked responses in a row until a host is left alone
    """

    cap: int = 0
    strikes: int = 3
    asked: Counter[str] = field(default_factory=Counter)
    holds: dict[str, datetime] = field(default_factory=dict)
    given_up: set[str] = field(default_factory=set)
    _blocked: Counter[str] = field(default_factory=Counter)

    def spend(self, host: str) -> bool:
        """Count a request to a host; False if its cap is used up."""
        if self.cap and self.asked[host] >= self.cap:
            return False
        self.asked[host] += 1
        return True

    def wait_seconds(self, host: str, now: datetime) -> float:
        """How long the host has asked to be left alone yet; 0 if it has not."""
        until = self.holds.get(host)
        return max(0.0, (until - now).total_seconds()) if until else 0.0

    def hold(self, host: str, until: datetime) -> None:
        """Leave the host alone until `until`, or longer if that was said before."""
        self.holds[host] = max(until, self.holds.get(host, until))

    def note(self, host: str, *, blocked: bool) -> bool:
        """Count a response; True when a host has just refused once too often in a row."""
        self._blocked[host] = self._blocked[host] + 1 if blocked else 0
        return self._blocked[host] == self.strikes

    def closed(self, now: datetime, patience: timedelta) -> list[str]:
        """Hosts that get no more requests in this run: capped, on long hold, given up."""
        capped = [host for host, n in self.asked.items() if self.cap and n >= self.cap]
        held = [host for host, until in self.holds.items() if until > now + patience]
        return sorted({*capped, *held, *self.given_up})
