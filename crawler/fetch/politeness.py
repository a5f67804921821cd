"""Pause hosts that are busy, refuse requests or cannot be reached."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Self

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.exceptions import DownloadConnectionRefusedError
from scrapy.http import Response

from crawler.fetch.downloader import ENDED, UNREACHABLE, NotRequested, RunEnded
from crawler.frontier.session import Session
from crawler.utils.urls import host_of

logger = logging.getLogger(__name__)
BUSY = frozenset({429, 503})
REFUSED = frozenset({403, 429})
MAX_WAITS = 3
PAUSE_HOURS = 1.0
MAX_PAUSE = timedelta(days=30)


class PolitenessMiddleware:
    """Delays requests to a host as its Retry-After says; skips them if the delay is too long.

    If connections to a host fail repeatedly, the run gives it up: pages that it tried have failed,
    and all others stay due.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.patience_seconds = session.config.retry_after_seconds

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Create the middleware of a crawl."""
        return cls(Session.of(crawler))

    async def process_request(self, request: Request) -> None:
        """Wait while the host is paused, then count the request; raises NotRequested."""
        host, limits = host_of(request.url), self.session.limits
        while (seconds := limits.wait_seconds(host, self.session.clock.now())) > 0:
            if seconds > self.patience_seconds:
                raise NotRequested(f"requests to {host} are paused for another {seconds:.0f} s")
            if self.session.is_hurried:
                raise RunEnded(ENDED)
            await asyncio.sleep(min(seconds, 1.0))
        if limits.is_unreachable(host):
            if not request.meta.get("retry_times"):
                raise NotRequested(f"{host} cannot be reached")
            request.meta["dont_retry"] = True
            raise DownloadConnectionRefusedError("the host cannot be reached")
        if not await self.session.frontier.may_fetch(host):
            raise NotRequested(f"{host}: request limit reached ({limits.cap} per run)")

    async def process_response(self, request: Request, response: Response) -> Response | Request:
        """Retry a busy host after its Retry-After; pause a host that refuses repeatedly."""
        host = host_of(request.url)
        if self.session.limits.note(host, blocked=response.status in REFUSED):
            logger.warning("Host %s paused for an hour: it refused requests repeatedly", host)
            later = self.session.clock.now() + timedelta(hours=PAUSE_HOURS)
            await self.session.pause_host(host, later)
            return response
        if response.status not in BUSY:
            return response
        return await self._retried(request, response, host)

    def process_exception(self, request: Request, exception: Exception) -> None:
        """Give up a host to which connections fail repeatedly."""
        host, limits = host_of(request.url), self.session.limits
        if not isinstance(exception, UNREACHABLE):
            return
        if limits.note_failure(host):
            logger.warning(
                "Host %s is unreachable, so this run visits no more of its pages: %s",
                host, " ".join(str(exception).split()),
            )  # fmt: skip
            self.session.frontier.give_up(host)
        if limits.is_unreachable(host):
            request.meta["dont_retry"] = True

    async def _retried(self, request: Request, response: Response, host: str) -> Response | Request:
        now = self.session.clock.now()
        until = retry_after(response, now)
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
        self.session.crawler.stats.inc_value(stat)
        return request.replace(meta=request.meta | {"waits": waits}, dont_filter=True)


def retry_after(response: Response, now: datetime) -> datetime | None:
    """Return the time that the Retry-After header specifies; None if it is missing or invalid.

    The header contains seconds or an HTTP date. The result is at most MAX_PAUSE after `now`.
    """
    value = (response.headers.get("Retry-After") or b"").decode("latin-1").strip()
    if value.isascii() and value.isdigit():
        return min(now + timedelta(seconds=int(value[:9])), now + MAX_PAUSE)
    try:
        named = parsedate_to_datetime(value)
    except (ValueError, TypeError, OverflowError):
        return None
    named = named if named.tzinfo else named.replace(tzinfo=UTC)
    return min(named, now + MAX_PAUSE) if named > now else None
