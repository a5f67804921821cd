"""The wrapper's proxy, for robots.txt and everything else that a crawl asks for."""

from __future__ import annotations

from typing import Self

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured

from crawler.extract.wrapper import Wrapper


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
