"""`scrapy fetch`: Scrapy's command, without starting a crawl run.

Unlike Scrapy's, it exits with code 1 if the request fails.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from typing import Any

from scrapy import Request, Spider
from scrapy.commands import fetch
from scrapy.exceptions import UsageError
from w3lib.url import is_url

from crawler.cli.base import Inspection


class Command(Inspection, fetch.Command):
    """Print a page, or the headers of its request and response."""

    example = "scrapy fetch --nolog --headers https://books.toscrape.com/"

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Fetch and print the page.

        Scrapy's command sends a request without the spider's headers and cookies, and does not
        report failures.
        """
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
