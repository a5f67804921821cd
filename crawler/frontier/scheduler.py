"""The Scrapy scheduler of the workers that share a run.

Requests for a worker's leases, including redirects and retries, stay in Scrapy's queues in the
memory of that worker: if it crashes, the whole entry is leased again. New requests of a spider go
to Redis, for any worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Protocol, Self, cast

from scrapy import Request, Spider
from scrapy.core.scheduler import BaseScheduler
from scrapy.core.scheduler import Scheduler as OwnScheduler
from scrapy.crawler import Crawler
from twisted.internet.defer import Deferred

from crawler.frontier.redis_queue import LEASE, TARGET


class Sharing(Protocol):
    """A frontier that shares requests between workers."""

    def share(self, request: Request, fingerprint: Callable[[Request], str]) -> bool:
        """Add a spider's request to the shared queue; return False if it cannot be shared."""


class Scheduler(BaseScheduler):
    """Queues requests for this worker's leases in memory, and all others in Redis.

    The queue in memory is Scrapy's own scheduler. The session connects to Redis.
    """

    def __init__(self, crawler: Crawler) -> None:
        assert crawler.stats is not None
        assert crawler.request_fingerprinter is not None
        self._crawler, self._stats = crawler, crawler.stats
        self._fingerprinter = crawler.request_fingerprinter
        self._own = OwnScheduler.from_crawler(crawler)
        self._queued: Counter[str] = Counter()

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Create the scheduler of a crawl."""
        return cls(crawler)

    def open(self, spider: Spider) -> Deferred[None] | None:
        """Open the queue in memory."""
        return self._own.open(spider)

    def close(self, reason: str) -> Deferred[None] | None:
        """Close the queue in memory."""
        return self._own.close(reason)

    def has_pending_requests(self) -> bool:
        """Return whether the queue in memory has requests."""
        return self._own.has_pending_requests()

    def enqueue_request(self, request: Request) -> bool:
        """Queue a request in memory or in Redis; return False for a duplicate."""
        if LEASE in request.meta or TARGET in request.meta:
            self._queued[request.meta.get(LEASE, "")] += 1
            return self._own.enqueue_request(request)
        frontier: Sharing = cast("Any", self._crawler.spider).session.frontier
        if not frontier.share(request, self._fingerprint):
            return self._own.enqueue_request(request)
        self._stats.inc_value("scheduler/enqueued/redis")
        return True

    def next_request(self) -> Request | None:
        """Return the next request of the queue in memory."""
        request = self._own.next_request()
        if request is not None:
            self._queued[request.meta.get(LEASE, "")] -= 1
        return request

    def ended(self, entries: Iterable[str]) -> list[str]:
        """Return those of `entries` whose requests and items Scrapy has finished."""
        engine = cast("Any", self._crawler.engine)
        under_way = {request.meta.get(LEASE) for request in engine._slot.inprogress}
        return [
            entry for entry in entries if self._queued.get(entry) == 0 and entry not in under_way
        ]

    def _fingerprint(self, request: Request) -> str:
        """Return the fingerprint in hexadecimal; empty for a request with dont_filter."""
        return "" if request.dont_filter else self._fingerprinter.fingerprint(request).hex()
