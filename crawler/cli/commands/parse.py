"""`scrapy parse`: Scrapy's command, without starting a crawl run.

Unlike Scrapy's, it exits with code 1 if the spider finds neither items nor links on the page.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import AsyncIterator
from typing import Any

from scrapy import Request, Spider
from scrapy.commands import parse
from scrapy.exceptions import ScrapyDeprecationWarning, UsageError
from scrapy.utils.spider import DefaultSpider
from w3lib.url import is_url

from crawler.cli.base import Inspection
from crawler.errors import ConfigError
from crawler.utils.terminal import complain


class Command(Inspection, parse.Command):
    """Print the items and requests that a spider extracts from a page."""

    example = "scrapy parse --nolog --spider books https://books.toscrape.com/"

    def spider_class(self, args: list[str], opts: argparse.Namespace) -> type[Spider]:
        """Return the spider that handles the URL; raises ConfigError if there is none."""
        kind = super().spider_class(args, opts)
        if kind is DefaultSpider and args and is_url(args[0]):
            raise ConfigError(f"no spider for {args[0]}. Name one with --spider NAME")
        return kind

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Fetch and parse the page, and print the results."""
        if len(args) != 1 or not is_url(args[0]):
            raise UsageError
        # Scrapy's command returns Deferreds from callbacks, although Scrapy warns about that.
        warnings.filterwarnings("ignore", ".*returned a Deferred", ScrapyDeprecationWarning)
        super().run(args, opts)
        if self.exitcode == 0 and not any((*self.items.values(), *self.requests.values())):
            name = self.pcrawler.spidercls.name
            complain("parse", f"{args[0]}: {name} found neither items nor links to follow")
            self.exitcode = 1

    def set_spidercls(self, url: str, opts: argparse.Namespace) -> None:
        """Choose the spider, and limit its start requests to this page."""
        kind: Any = self.spider_class([url], opts)

        async def start(spider: Spider) -> AsyncIterator[Request]:
            yield self.prepare_request(spider, self.typed_request(spider, url), opts)

        kind.start = start
        self.spidercls = kind
