"""Deliver the messages of the outbox: each channel on its own, under a lease, in order.

A message is delivered at least once: a process that ends between sending and storing the result
sends it again, with the same id. A channel whose messages fail is paused, and delays no other one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Protocol

from crawler.config import Config
from crawler.errors import Busy, LeaseLost
from crawler.storage import outbox
from crawler.storage.client import Database, Document
from crawler.storage.leases import Lease
from crawler.storage.outages import MongoRetry, in_batches

logger = logging.getLogger(__name__)
# Messages of different targets that a channel receives concurrently. Their results are stored
# together, so that a crash repeats at most these.
CONCURRENT = 8
# Number of consecutive failures after which the channel itself is taken to be unavailable.
MAX_FAILURES = 3


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt failed. retry_after: when the receiver wants the next one; None: any time."""

    reason: str
    retry_after: timedelta | None = None


class Outlet(Protocol):
    """A channel as the deliverer uses it."""

    @property
    def name(self) -> str:
        """Return the name of the channel."""

    async def send(self, message: Document) -> Failure | None:
        """Send a document of the outbox, within a bounded time; None: it was accepted."""

    def next_attempt(self, attempts: int, first_at: datetime, now: datetime) -> datetime | None:
        """Return when to try again after `attempts` attempts; None: never."""


@dataclass(slots=True)
class Delivered:
    """What a process did with the messages of a channel.

    is_busy:   whether another process delivers the channel
    is_paused: whether the channel is unavailable, so that it is tried again later
    """

    channel: str
    delivered: int = 0
    failed: int = 0
    dead: int = 0
    is_busy: bool = False
    is_paused: bool = False


class Deliverer:
    """Delivers the due messages of several channels concurrently.

    patience: retries while MongoDB is unavailable
    """

    def __init__(
        self, db: Database, config: Config, patience: MongoRetry, now: Callable[[], datetime]
    ) -> None:
        self._db, self._config, self._patience, self._now = db, config, patience, now

    async def deliver(self, outlets: Sequence[Outlet]) -> list[Delivered]:
        """Deliver all messages that are due, and return the result of each channel."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._deliver(outlet)) for outlet in outlets]
        await self._patience.ask(lambda: outbox.drop_old(self._db, self._now()))
        return [task.result() for task in tasks]

    async def _deliver(self, outlet: Outlet) -> Delivered:
        result = Delivered(outlet.name)
        name = f"{outbox.LEASE}{outlet.name}"
        lease = Lease(self._db, name, self._config.lease_seconds, self._patience)
        try:
            await lease.take(f"{outlet.name} is already being delivered")
        except Busy:
            result.is_busy = True
            return result
        lease.keep(partial(_log_loss, outlet.name))
        try:
            await self._drain(outlet, lease, result)
        finally:
            await lease.release()
        return result

    async def _drain(self, outlet: Outlet, lease: Lease, result: Delivered) -> None:
        failures = 0
        while True:
            read = partial(outbox.due, self._db, outlet.name, self._now())
            messages = await self._patience.ask(read)
            if not messages:
                return
            for part in in_batches(messages, CONCURRENT):
                # Nothing is sent by a process that may have lost its lease while it was paused.
                if not await lease.still_holds():
                    return
                ended = await asyncio.gather(*(_attempt(outlet, message) for message in part))
                failed = await self._record(outlet, part, ended, result)
                failures = failures + failed if failed == len(part) else 0
                if failures >= MAX_FAILURES:
                    result.is_paused = True
                    return

    async def _record(
        self,
        outlet: Outlet,
        messages: Sequence[Document],
        ended: Sequence[Failure | None],
        result: Delivered,
    ) -> int:
        """Store the results of attempts; return the number of failed ones."""
        now = self._now()
        pairs = list(zip(messages, ended, strict=True))
        accepted = [message for message, failure in pairs if failure is None]
        await self._patience.ask(lambda: outbox.record_delivered(self._db, accepted, now))
        result.delivered += len(accepted)
        for message, failure in pairs:
            if failure is None:
                continue
            again = outlet.next_attempt(message["attempts"] + 1, message["first_at"], now)
            if again is not None and failure.retry_after is not None:
                again = max(again, now + failure.retry_after)
            if again is None:
                result.dead += 1
                logger.warning("%s: message not delivered: %s", outlet.name, failure.reason)
            store = partial(
                outbox.record_failure, self._db, message, failure.reason, again, now
            )  # fmt: skip
            await self._patience.ask(store)
        result.failed += len(messages) - len(accepted)
        return len(messages) - len(accepted)


async def _attempt(outlet: Outlet, message: Document) -> Failure | None:
    try:
        return await outlet.send(message)
    except Exception as error:
        logger.debug("%s: unexpected error", outlet.name, exc_info=True)
        return Failure(f"{type(error).__name__}: {error}")


def _log_loss(channel: str, error: LeaseLost) -> None:
    logger.warning("%s: delivery stopped: %s", channel, error)
