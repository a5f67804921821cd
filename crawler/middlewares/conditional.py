"""Conditional GET: asks with the validators of the last good visit, so that "no" costs no body.

Scrapy's own RFC 2616 cache answers from heuristics and hides changes; here every visit asks.
"""

from __future__ import annotations

from typing import Self

from scrapy import Request
from scrapy.crawler import Crawler

from crawler.items import Target
from crawler.session import Session


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
        known = not request.meta.get("redirect_urls") or target.final_url == request.url
        if not known or not self._have_the_same([target, *request.meta.get("along", ())]):
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
