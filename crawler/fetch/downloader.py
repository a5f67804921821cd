"""Scrapy's downloader, conditional requests, pauses of hosts, and proxies.

The downloader has two fixes for Scrapy 2.19, and rate limits across workers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from scrapy import Request, Spider
from scrapy.core import downloader
from scrapy.core.downloader import Slot
from scrapy.crawler import Crawler
from scrapy.exceptions import (
    CannotResolveHostError,
    DownloadConnectionRefusedError,
    IgnoreRequest,
    NotConfigured,
)
from scrapy.http import Response
from scrapy.utils.asyncio import call_later
from twisted.python.failure import Failure

from crawler.errors import NoConnection
from crawler.extract.response import CONDITIONS
from crawler.extract.site_definition import Wrapper
from crawler.frontier.session import Session
from crawler.items import Target
from crawler.utils.time import http_date
from crawler.utils.urls import host_of

if TYPE_CHECKING:
    from crawler.frontier.rate_limits import Permit, Permits

logger = logging.getLogger(__name__)
# Errors of connections, rather than of single pages.
UNREACHABLE = (CannotResolveHostError, DownloadConnectionRefusedError, NoConnection)
# Responses to garbled conditions: servers check a validator less strictly when they create it.
REJECTED = frozenset({400, 412})
# Key in the meta of a request that is sent without conditions.
UNCONDITIONAL = "unconditional"
ENDED = "the run has ended"
BUSY = frozenset({429, 503})
# Statuses of proxies whose server is down; 500 may concern a single page.
DOWN = frozenset({502, 503, 504, *range(520, 528)})
REFUSED = frozenset({403, 429})
MAX_WAITS = 3
PAUSE_HOURS = 1.0
# A Retry-After on one page pauses the whole host, and the page may be the only one that is busy.
MAX_PAUSE = timedelta(hours=6)


class NotRequested(IgnoreRequest):
    """Raised for a request that is not sent: its host is paused, or the host's cap is reached."""

    @classmethod
    def paused(cls, host: str, seconds: float) -> Self:
        """Return the error for a host that is paused for some more seconds."""
        return cls(f"requests to {host} are paused for another {seconds:.0f} s")


class RunEnded(NotRequested):
    """Raised for a request that is not sent because this process is stopping."""


class SlotQueue(deque[Any]):
    """Queue of a slot; adds each request to `transferring` as it leaves the queue."""

    def __init__(self, transferring: set[Request]) -> None:
        super().__init__()
        self._transferring = transferring

    def popleft(self) -> Any:
        """Return the next request and its Deferred."""
        entry = super().popleft()
        self._transferring.add(entry[0])
        return entry


class HostSlot(Slot):
    """Slot of a host with a minimum delay, whatever AutoThrottle and a random variation choose.

    min_delay_seconds: Crawl-delay of the host's robots.txt; 0: none
    """

    def __init__(self, concurrency: int, delay: float, jitter: float) -> None:
        super().__init__(concurrency, delay, jitter)
        self.queue = SlotQueue(self.transferring)
        self.min_delay_seconds = 0.0

    def download_delay(self) -> float:
        """Return the time in seconds until the next request."""
        return max(super().download_delay(), self.min_delay_seconds)


class Downloader(downloader.Downloader):
    """Enforces the concurrency of slots, and drops queued targets at the end of a run.

    Without a delay, Scrapy sends all queued requests of a slot when one request ends, because it
    counts a request only when its task starts. And at the end of a run Scrapy still sends up to 16
    queued requests per slot, with the site's delay between them.
    """

    def _get_slot(self, request: Request, spider: Spider | None = None) -> tuple[str, Slot]:
        # Without the spider: passing it is deprecated and logs a warning.
        key, slot = super()._get_slot(request)
        if not isinstance(slot, HostSlot):
            self.slots[key] = slot = HostSlot(slot.concurrency, slot.delay, slot.jitter)
            slot.min_delay_seconds = self._min_delays.get(key, 0.0)
        return key, slot

    def slow_down(self, host: str, delay_seconds: float) -> None:
        """Send all further requests to a host at least `delay_seconds` apart.

        The delay lasts for the whole run, although Scrapy deletes slots that are not in use.
        """
        self._min_delays[host] = max(delay_seconds, self._min_delays.get(host, 0.0))
        if isinstance(slot := self.slots.get(host), HostSlot):
            slot.min_delay_seconds = self._min_delays[host]

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._min_delays: dict[str, float] = {}
        self._sending: set[asyncio.Task[Any]] = set()

    def give_up(self) -> None:
        """Cancel all requests in progress; they fail with RunEnded."""
        for task in list(self._sending):
            task.cancel()

    async def _download(self, slot: Slot, request: Request) -> Response:
        task = asyncio.current_task()
        assert task is not None
        self._sending.add(task)
        session = getattr(self.crawler.spider, "session", None)
        permits = session.frontier.permits if isinstance(session, Session) else None
        try:
            if permits is None:
                return await super()._download(slot, request)
            permit = await self._permit(permits, slot, request)
            try:
                return await super()._download(slot, request)
            finally:
                permits.give(permit)
        except asyncio.CancelledError:
            raise RunEnded(ENDED) from None
        finally:
            self._sending.discard(task)

    async def _permit(self, permits: Permits, slot: Slot, request: Request) -> Permit:
        """Wait for a permit; meanwhile the request counts against the slot's concurrency."""
        from crawler.frontier.rate_limits import HostHeld

        host = request.meta[self.DOWNLOAD_SLOT]
        delay_seconds = slot.download_delay()
        patience_seconds = Session.of(self.crawler).run.config.retry_after_seconds
        slot.transferring.add(request)
        try:
            return await permits.take(host, slot.concurrency, delay_seconds, patience_seconds)
        except BaseException as error:
            slot.transferring.discard(request)
            self._process_queue(slot)
            if isinstance(error, HostHeld):
                raise NotRequested.paused(host, error.seconds) from None
            raise

    def _process_queue(self, slot: Slot) -> None:
        if self.is_closing:
            # Targets stay due; all other requests are kept.
            _drop(
                slot, lambda _: RunEnded(ENDED),
                lambda request: isinstance(request.meta.get("target"), Target),
            )  # fmt: skip
        if not (slot.queue and self._is_held(slot)):
            super()._process_queue(slot)

    def _is_held(self, slot: Slot) -> bool:
        """Return whether queued requests have to wait because their host is paused.

        If it is paused for too long, or the run has given it up, they are dropped instead.
        """
        session = getattr(self.crawler.spider, "session", None)
        if not isinstance(session, Session):
            return False
        run, limits = session.run, session.run.limits
        if not limits.holds and not limits.given_up:
            return False
        host = host_of(slot.queue[0][0].url)
        if limits.is_unreachable(host):
            _drop(slot, _given_up, lambda request: host_of(request.url) == host)
            return False
        seconds = limits.wait_seconds(host, run.clock.now())
        if seconds > run.config.retry_after_seconds:
            _drop(
                slot, lambda _: NotRequested.paused(host, seconds),
                lambda request: host_of(request.url) == host,
            )  # fmt: skip
            return False
        if seconds > 0 and slot.latercall is None:
            slot.latercall = call_later(min(seconds, 1.0), self._latercall, slot)
        return seconds > 0

    @property
    def is_closing(self) -> bool:
        """Return whether the run is ending, so that no more targets are fetched."""
        state = self.crawler.engine._slot if self.crawler.engine is not None else None
        return state is not None and state.closing is not None


def _drop(
    slot: Slot, error: Callable[[Request], Exception], is_dropped: Callable[[Request], bool]
) -> None:
    """Fail some of the queued requests of a slot."""
    for request, answer in list(slot.queue):
        if is_dropped(request):
            slot.queue.remove((request, answer))
            answer.errback(Failure(error(request)))  # type: ignore[no-untyped-call]


def _given_up(request: Request) -> Exception:
    """Return the error of a request to a host that cannot be reached.

    A page that the run has tried has failed; all others stay due.
    """
    if not request.meta.get("retry_times"):
        return NotRequested(f"{host_of(request.url)} cannot be reached")
    request.meta["dont_retry"] = True
    return DownloadConnectionRefusedError("the host cannot be reached")


class ConditionalGetMiddleware:
    """Adds If-None-Match and If-Modified-Since to requests for targets."""

    def __init__(self, session: Session) -> None:
        self.session, self.run = session, session.run
        self.wrapper = session.run.wrapper

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Create the middleware of a crawl."""
        return cls(Session.of(crawler))

    def process_request(self, request: Request) -> None:
        """Set the headers, or remove them if a redirect led to a different URL."""
        target = request.meta.get("target")
        if not isinstance(target, Target) or UNCONDITIONAL in request.meta:
            return
        is_same = not request.meta.get("redirect_urls") or target.final_url == request.url
        targets = [target, *request.meta.get("shared_fetch", ())]
        is_doubtful = target.doubts_not_modified(self.run.clock.now())
        if is_doubtful or not (is_same and target.content_hash and self._can_share(targets)):
            for name in CONDITIONS:
                request.headers.pop(name, None)
            return
        if target.validators.etag:
            request.headers["If-None-Match"] = target.validators.etag
        if target.validators.last_modified:
            request.headers["If-Modified-Since"] = target.validators.last_modified

    def process_response(self, request: Request, response: Response) -> Response | Request:
        """Repeat a request without its conditions if a server does not understand them."""
        if response.status not in REJECTED or not any(
            name in request.headers for name in CONDITIONS
        ):
            return response
        again = request.replace(meta=request.meta | {UNCONDITIONAL: True}, dont_filter=True)
        for name in CONDITIONS:
            again.headers.pop(name, None)
        return again

    def _can_share(self, targets: list[Target]) -> bool:
        """Return whether a 304 response would apply to all targets, which share one page.

        If the archive of the site lacks the body, a 304 response would not provide it.
        """
        archive = self.session.archive
        if archive is not None and not all(archive.has(target.archived) for target in targets):
            return False
        return len({target.validators for target in targets}) == 1 and all(
            target.content_hash
            and target.selector_digest == self.wrapper.selector_digest_of(target)
            and not target.again
            for target in targets
        )


class PolitenessMiddleware:
    """Delays requests to a host as its Retry-After says; skips them if the delay is too long.

    If connections to a host fail repeatedly, or all responses say that it is down, the run gives it
    up: pages that it tried have failed, and all others stay due.
    """

    def __init__(self, session: Session) -> None:
        self.session, self.run = session, session.run
        self.patience_seconds = session.run.config.retry_after_seconds

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Create the middleware of a crawl."""
        return cls(Session.of(crawler))

    async def process_request(self, request: Request) -> None:
        """Wait while the host is paused, then count the request; raises NotRequested."""
        host, limits = host_of(request.url), self.run.limits
        while (seconds := limits.wait_seconds(host, self.run.clock.now())) > 0:
            if seconds > self.patience_seconds:
                raise NotRequested.paused(host, seconds)
            if self.run.patience.is_hurried:
                raise RunEnded(ENDED)
            await asyncio.sleep(min(seconds, 1.0))
        if limits.is_unreachable(host):
            raise _given_up(request)
        if not await self.session.frontier.may_fetch(host):
            raise NotRequested(f"{host}: request limit reached ({limits.cap} per run)")

    async def process_response(self, request: Request, response: Response) -> Response | Request:
        """Retry a busy host after its Retry-After; pause a host that refuses repeatedly."""
        host = host_of(request.url)
        is_down = response.status in DOWN and "Retry-After" not in response.headers
        self._note_failure(request, host, f"status {response.status}" if is_down else "")
        if self.run.limits.note(host, blocked=response.status in REFUSED):
            logger.warning("Host %s paused for an hour: it refused requests repeatedly", host)
            later = self.run.clock.now() + timedelta(hours=PAUSE_HOURS)
            await self.session.pause_host(host, later)
            return response
        now = self.run.clock.now()
        until = retry_after(response, now) if response.status in BUSY else None
        if until is None:
            return response
        await self.session.pause_host(host, until)
        waits = request.meta.get("waits", 0) + 1
        seconds = (until - now).total_seconds()
        if seconds > self.patience_seconds or waits > MAX_WAITS:
            request.meta["dont_retry"] = True
            return response
        logger.info("Host %s paused for %.0f s (Retry-After)", host, seconds)
        # Scrapy's status counts do not include this response, because the spider never gets it.
        stat = f"freshet/asked_again_status_count/{response.status}"
        self.run.crawler.stats.inc_value(stat)
        return request.replace(meta=request.meta | {"waits": waits}, dont_filter=True)

    def process_exception(self, request: Request, exception: Exception) -> None:
        """Count a failed connection."""
        if isinstance(exception, UNREACHABLE):
            self._note_failure(request, host_of(request.url), " ".join(str(exception).split()))

    def _note_failure(self, request: Request, host: str, problem: str) -> None:
        """Count a failure, or with an empty `problem` a success; give up a host that is down."""
        limits = self.run.limits
        if limits.note_failure(host, has_failed=bool(problem)):
            logger.warning(
                "Host %s is unreachable, so this run visits no more of its pages: %s", host, problem
            )
            self.session.frontier.give_up(host)
        if limits.is_unreachable(host):
            request.meta["dont_retry"] = True


def retry_after(response: Response, now: datetime) -> datetime | None:
    """Return the time that the Retry-After header specifies; None if it is missing or invalid.

    The header contains seconds or an HTTP date. The result is at most MAX_PAUSE after `now`.
    """
    value = (response.headers.get("Retry-After") or b"").decode("latin-1").strip()
    if value.isascii() and value.isdigit():
        return min(now + timedelta(seconds=int(value[:9])), now + MAX_PAUSE)
    named = http_date(value)
    return min(named, now + MAX_PAUSE) if named is not None and named > now else None


class WrapperProxyMiddleware:
    """Sends requests without a proxy through the proxy of the site definition."""

    def __init__(self, proxy: str) -> None:
        self.proxy = proxy

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Create the middleware; raises NotConfigured if the site definition has no proxy."""
        wrapper = getattr(crawler.spider, "wrapper", None)
        if not isinstance(wrapper, Wrapper) or wrapper.proxy is None:
            raise NotConfigured
        return cls(wrapper.proxy)

    def process_request(self, request: Request) -> None:
        """Set the proxy, unless the request already has one."""
        request.meta.setdefault("proxy", self.proxy)
