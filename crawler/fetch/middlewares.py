"""Downloader middlewares for politeness, conditional requests and proxies."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Self

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.exceptions import IgnoreRequest, NotConfigured
from scrapy.http import Response

from crawler.extract.site_definition import Wrapper
from crawler.frontier.session import Session
from crawler.items import Target
from crawler.utils.urls import host_of

logger = logging.getLogger(__name__)
BUSY = frozenset({429, 503})
REFUSED = frozenset({403, 429})
MAX_WAITS = 3
ENDED = "the run has ended"
PAUSE_HOURS = 1.0
MAX_PAUSE = timedelta(days=30)


class NotAsked(IgnoreRequest):
    """Raised for a request that is not sent: its host is paused, or the host's cap is reached."""


class Ended(NotAsked):
    """Raised for a request that is not sent because this process is stopping."""


class PolitenessMiddleware:
    """Delays requests to a host as its Retry-After asks; skips them if the delay is too long."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.patience_seconds = session.config.retry_after_seconds

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Create the middleware of a crawl."""
        return cls(Session.of(crawler))

    async def process_request(self, request: Request) -> None:
        """Wait while the host is paused, then count the request; raises NotAsked."""
        host, limits = host_of(request.url), self.session.limits
        while (seconds := limits.wait_seconds(host, self.session.clock.now())) > 0:
            if seconds > self.patience_seconds:
                raise NotAsked(f"requests to {host} are paused for another {seconds:.0f} s")
            if self.session.is_hurried:
                raise Ended(ENDED)
            await asyncio.sleep(min(seconds, 1.0))
        if not await self.session.frontier.may_fetch(host):
            raise NotAsked(f"{host}: request limit reached ({limits.cap} per run)")

    async def process_response(self, request: Request, response: Response) -> Response | Request:
        """Retry a busy host after its Retry-After; pause a host that refuses repeatedly."""
        host = host_of(request.url)
        if self.session.limits.note(host, blocked=response.status in REFUSED):
            logger.warning("Host %s paused for an hour: it refused requests repeatedly", host)
            later = self.session.clock.now() + timedelta(hours=PAUSE_HOURS)
            await self.session.leave_alone(host, later)
            return response
        if response.status not in BUSY:
            return response
        return await self._retried(request, response, host)

    async def _retried(self, request: Request, response: Response, host: str) -> Response | Request:
        now = self.session.clock.now()
        until = retry_after(response, now)
        if until is None:
            return response
        await self.session.leave_alone(host, until)
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
    except (ValueError, TypeError):
        return None
    named = named if named.tzinfo else named.replace(tzinfo=UTC)
    return min(named, now + MAX_PAUSE) if named > now else None


class ConditionalGetMiddleware:
    """Adds If-None-Match and If-Modified-Since to requests for targets."""

    def __init__(self, session: Session) -> None:
        self.wrapper = session.wrapper

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Create the middleware of a crawl."""
        return cls(Session.of(crawler))

    def process_request(self, request: Request) -> None:
        """Set the headers, or remove them if a redirect led to a different URL."""
        target = request.meta.get("target")
        if not isinstance(target, Target):
            return
        is_same = not request.meta.get("redirect_urls") or target.final_url == request.url
        if not is_same or not self._can_share([target, *request.meta.get("shared_fetch", ())]):
            request.headers.pop("If-None-Match", None)
            request.headers.pop("If-Modified-Since", None)
            return
        if target.validators.etag:
            request.headers["If-None-Match"] = target.validators.etag
        if target.validators.last_modified:
            request.headers["If-Modified-Since"] = target.validators.last_modified

    def _can_share(self, targets: list[Target]) -> bool:
        """Return whether a 304 response would apply to one target, or to all cells of a page."""
        return len({target.validators for target in targets}) == 1 and all(
            target.content_hash
            and target.selector_digest == self.wrapper.selector_digest_of(target)
            and not target.again
            for target in targets
        )


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
