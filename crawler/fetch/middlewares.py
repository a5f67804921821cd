"""Downloader middlewares: politeness towards each host, conditional requests, the proxy."""

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

from crawler.extract.wrapper import Wrapper
from crawler.frontier.session import Session
from crawler.items import Target
from crawler.utils.urls import host_of

logger = logging.getLogger(__name__)
BUSY = frozenset({429, 503})
REFUSED = frozenset({403, 429})
MOST_WAITS = 3
ENDED = "the pass has ended"
ALONE_HOURS = 1.0
LONGEST_HOLD = timedelta(days=30)


class NotAsked(IgnoreRequest):
    """The request was not sent: the host's cap is used up, or it asked to be left alone."""


class Ended(NotAsked):
    """The request was not sent: this process ends."""


class PolitenessMiddleware:
    """Waits where a host asks for it, and gives up for this run where it asks for long."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.patience_seconds = session.config.retry_after_seconds

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """The middleware of a crawl."""
        return cls(Session.of(crawler))

    async def process_request(self, request: Request) -> None:
        """Count the request, and let it wait while its host is on hold; raises NotAsked."""
        host, limits = host_of(request.url), self.session.limits
        while (seconds := limits.wait_seconds(host, self.session.clock.now())) > 0:
            if seconds > self.patience_seconds:
                raise NotAsked(f"{host} asked to be left alone for {seconds:.0f} s")
            if self.session.is_hurried:
                raise Ended(ENDED)
            await asyncio.sleep(min(seconds, 1.0))
        if not await self.session.frontier.may_fetch(host):
            raise NotAsked(f"{host}: the cap of {limits.cap} requests in one run is used up")

    async def process_response(self, request: Request, response: Response) -> Response | Request:
        """A busy host is asked again after the time it named, if that is short."""
        host = host_of(request.url)
        if self.session.limits.note(host, blocked=response.status in REFUSED):
            logger.warning("%s refused repeatedly and is left alone for an hour", host)
            later = self.session.clock.now() + timedelta(hours=ALONE_HOURS)
            await self.session.leave_alone(host, later)
            return response
        if response.status not in BUSY:
            return response
        return await self._again(request, response, host)

    async def _again(self, request: Request, response: Response, host: str) -> Response | Request:
        now = self.session.clock.now()
        until = retry_after(response, now)
        if until is None:
            return response
        await self.session.leave_alone(host, until)
        waits = request.meta.get("waits", 0) + 1
        seconds = (until - now).total_seconds()
        if seconds > self.patience_seconds or waits > MOST_WAITS:
            request.meta["dont_retry"] = True
            return response
        logger.info("%s asked to wait for %.0f s", host, seconds)
        # Scrapy's own count of statuses never hears of this one.
        stat = f"freshet/asked_again_status_count/{response.status}"
        self.session.crawler.stats.inc_value(stat)
        return request.replace(meta=request.meta | {"waits": waits}, dont_filter=True)


def retry_after(response: Response, now: datetime) -> datetime | None:
    """When the Retry-After header ends, seconds or HTTP date; None without a readable one."""
    value = (response.headers.get("Retry-After") or b"").decode("latin-1").strip()
    if value.isascii() and value.isdigit():
        return min(now + timedelta(seconds=int(value[:9])), now + LONGEST_HOLD)
    try:
        named = parsedate_to_datetime(value)
    except (ValueError, TypeError):
        return None
    named = named if named.tzinfo else named.replace(tzinfo=UTC)
    return min(named, now + LONGEST_HOLD) if named > now else None


class ConditionalGetMiddleware:
    """Adds If-None-Match and If-Modified-Since to requests for targets."""

    def __init__(self, session: Session) -> None:
        self.wrapper = session.wrapper

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """The middleware of a crawl."""
        return cls(Session.of(crawler))

    def process_request(self, request: Request) -> None:
        """Set or remove the headers; validators of one URL are never sent to another."""
        target = request.meta.get("target")
        if not isinstance(target, Target):
            return
        is_same = not request.meta.get("redirect_urls") or target.final_url == request.url
        if not is_same or not self._have_the_same([target, *request.meta.get("along", ())]):
            request.headers.pop("If-None-Match", None)
            request.headers.pop("If-Modified-Since", None)
            return
        if target.validators.etag:
            request.headers["If-None-Match"] = target.validators.etag
        if target.validators.last_modified:
            request.headers["If-Modified-Since"] = target.validators.last_modified

    def _have_the_same(self, targets: list[Target]) -> bool:
        """Whether "not modified" is true of them all: one target, or all cells of a page."""
        return len({target.validators for target in targets}) == 1 and all(
            target.content_hash
            and target.scheme == self.wrapper.scheme_of(target)
            and not target.again
            for target in targets
        )


class WrapperProxyMiddleware:
    """Sends requests that name no proxy through the wrapper's."""

    def __init__(self, proxy: str) -> None:
        self.proxy = proxy

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """The middleware of a crawl; NotConfigured where the wrapper has no proxy."""
        wrapper = getattr(crawler.spider, "wrapper", None)
        if not isinstance(wrapper, Wrapper) or wrapper.proxy is None:
            raise NotConfigured
        return cls(wrapper.proxy)

    def process_request(self, request: Request) -> None:
        """Set the proxy."""
        request.meta.setdefault("proxy", self.proxy)
