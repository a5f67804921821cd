"""Scrapy scheduler for workers that share a run.

Requests for a worker's leases, including redirects and retries, stay in Scrapy's queues in the
memory of that worker: if it crashes, the whole entry is leased again. New requests of a spider go
to Redis, for any worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self, cast

from scrapy import Request, Spider
from scrapy.core.scheduler import Scheduler as OwnScheduler
from scrapy.crawler import Crawler
from scrapy_redis import scheduler
from scrapy_redis.dupefilter import RFPDupeFilter
from twisted.internet.defer import Deferred

if TYPE_CHECKING:
    from crawler.frontier.shared import SharedFrontier


class DupeFilter(RFPDupeFilter):  # type: ignore[misc]
    """Duplicate filter that uses REQUEST_FINGERPRINTER_CLASS, which scrapy-redis ignores."""

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(None, "", debug=crawler.settings.getbool("DUPEFILTER_DEBUG"))
        assert crawler.request_fingerprinter is not None
        self._fingerprinter = crawler.request_fingerprinter

    def request_fingerprint(self, request: Request) -> str:
        """Return the fingerprint in hexadecimal; empty for a request with dont_filter."""
        return "" if request.dont_filter else self._fingerprinter.fingerprint(request).hex()


# Keys in request.meta: name of the leased entry, and the target.
LEASE = "lease"
TARGET = "target"


class Scheduler(scheduler.Scheduler):  # type: ignore[misc]
    """Queues requests for this worker's leases in memory, and all others in Redis."""

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(server=None, dupefilter=DupeFilter(crawler))
        self.stats = crawler.stats
        self._crawler = crawler
        self._queued: Counter[str] = Counter()
        self._own = cast("Any", OwnScheduler).from_crawler(crawler)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Create the scheduler of a crawl; the session connects to Redis."""
        return cls(crawler)

    def open(self, spider: Spider) -> Deferred[None] | None:
        """Open the queue in memory."""
        self.spider = spider
        opened: Deferred[None] | None = self._own.open(spider)
        return opened

    def close(self, reason: str) -> Deferred[None] | None:
        """Close the queue in memory; the session closes the queue in Redis."""
        closed: Deferred[None] | None = self._own.close(reason)
        return closed

    def __len__(self) -> int:
        return len(self._own)

    def has_pending_requests(self) -> bool:
        """Return whether the queue in memory has requests."""
        return bool(self._own.has_pending_requests())

    def enqueue_request(self, request: Request) -> bool:
        """Queue a request in memory or in Redis; return False for a duplicate."""
        frontier = cast("SharedFrontier", cast("Any", self.spider).session.frontier)
        if LEASE in request.meta or TARGET in request.meta:
            self._queued[request.meta.get(LEASE, "")] += 1
            return bool(self._own.enqueue_request(request))
        if not frontier.share(request, self.df.request_fingerprint):
            return bool(self._own.enqueue_request(request))
        self.stats.inc_value("scheduler/enqueued/redis")
        return True

    def next_request(self) -> Request | None:
        """Return the next request of the queue in memory."""
        request: Request | None = self._own.next_request()
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
