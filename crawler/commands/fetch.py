"""`scrapy fetch`: Scrapy's own, without a crawl run; exit code 1 where there is no answer."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from typing import Any

from scrapy import Request, Spider
from scrapy.commands import fetch
from scrapy.exceptions import UsageError
from w3lib.url import is_url

from crawler.cli.inspection import Inspection


class Command(Inspection, fetch.Command):
    """Print a page, or the headers of both sides."""

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Fetch the page; Scrapy's own asks as no spider would, and fails silently."""
        if len(args) != 1 or not is_url(args[0]):
            raise UsageError

        async def start(spider: Spider) -> AsyncIterator[Request]:
            request = self.typed_request(spider, args[0], redirect=not opts.no_redirect)
            yield request.replace(callback=self._print_response, cb_kwargs={"opts": opts})

        kind: Any = self.spider_class(args, opts)
        kind.start = start
        assert self.crawler_process is not None
        self.crawler_process.crawl(kind, **opts.spargs)
        self.crawler_process.start()
        if self.crawler_process.bootstrap_failed:
            self.exitcode = 1
