"""Scrapy's scheduler where several workers share a run.

What this worker has leased, and whatever follows from that (redirects, retries), stays with it, in
Scrapy's own queues in memory: were the worker to die, all of it comes back as one. Requests that a
spider makes go to Redis, for whoever has room.
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
    """Knows a request's fingerprint as the settings make it (REQUEST_FINGERPRINTER_CLASS).

    scrapy-redis has one of its own, which knows nothing of them.
    """

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(None, "", debug=crawler.settings.getbool("DUPEFILTER_DEBUG"))
        assert crawler.request_fingerprinter is not None
        self._fingerprinter = crawler.request_fingerprinter

    def request_fingerprint(self, request: Request) -> str:
        """The fingerprint as text; empty where the request may come again."""
        return "" if request.dont_filter else self._fingerprinter.fingerprint(request).hex()


# In a request's meta: the entry that it belongs to.
LEASE = "lease"
TARGET = "target"


class Scheduler(scheduler.Scheduler):  # type: ignore[misc]
    """Parts requests into those that are this worker's, and those that are everybody's."""

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(server=None, dupefilter=DupeFilter(crawler))
        self.stats = crawler.stats
        self._crawler = crawler
        self._queued: Counter[str] = Counter()
        self._own = cast("Any", OwnScheduler).from_crawler(crawler)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """The scheduler of a crawl; the session makes the connection."""
        return cls(crawler)

    def open(self, spider: Spider) -> Deferred[None] | None:
        """Open the worker's own queue."""
        self.spider = spider
        opened: Deferred[None] | None = self._own.open(spider)
        return opened

    def close(self, reason: str) -> Deferred[None] | None:
        """Close the worker's own queue; what is in Redis is the session's."""
        closed: Deferred[None] | None = self._own.close(reason)
        return closed

    def __len__(self) -> int:
        return len(self._own)

    def has_pending_requests(self) -> bool:
        """Whether this worker has something to send."""
        return bool(self._own.has_pending_requests())

    def enqueue_request(self, request: Request) -> bool:
        """Keep a request, or let it wait for whoever has room."""
        frontier = cast("SharedFrontier", cast("Any", self.spider).session.frontier)
        if LEASE in request.meta or TARGET in request.meta:
            self._queued[request.meta.get(LEASE, "")] += 1
            return bool(self._own.enqueue_request(request))
        if not frontier.share(request, self.df.request_fingerprint):
            return bool(self._own.enqueue_request(request))
        self.stats.inc_value("scheduler/enqueued/redis")
        return True

    def next_request(self) -> Request | None:
        """The next request of this worker."""
        request: Request | None = self._own.next_request()
        if request is not None:
            self._queued[request.meta.get(LEASE, "")] -= 1
        return request

    def ended(self, entries: Iterable[str]) -> list[str]:
        """Those of some entries whose requests Scrapy is done with, items and all."""
        engine = cast("Any", self._crawler.engine)
        under_way = {request.meta.get(LEASE) for request in engine._slot.inprogress}
        return [
            entry for entry in entries if self._queued.get(entry) == 0 and entry not in under_way
        ]
