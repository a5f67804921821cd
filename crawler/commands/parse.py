"""`scrapy parse`: Scrapy's own, without a crawl run; exit code 1 where nothing could be read."""

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

from crawler.cli.inspection import Inspection
from crawler.errors import ConfigError
from crawler.utils.terminal import complain


class Command(Inspection, parse.Command):
    """Print the items and the requests that a spider makes of a page."""

    def spider_class(self, args: list[str], opts: argparse.Namespace) -> type[Spider]:
        """The spider of the page; raises ConfigError where no site has it."""
        kind = super().spider_class(args, opts)
        if kind is DefaultSpider and args and is_url(args[0]):
            raise ConfigError(f"no spider for {args[0]}. Name one with --spider NAME")
        return kind

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Parse the page."""
        if len(args) != 1 or not is_url(args[0]):
            raise UsageError
        # Scrapy's own way of parsing returns Deferreds, which Scrapy warns of.
        warnings.filterwarnings("ignore", ".*returned a Deferred", ScrapyDeprecationWarning)
        super().run(args, opts)
        if self.exitcode == 0 and not any((*self.items.values(), *self.requests.values())):
            name = self.pcrawler.spidercls.name
            complain("parse", f"{args[0]}: {name} found neither items nor links to follow")
            self.exitcode = 1

    def set_spidercls(self, url: str, opts: argparse.Namespace) -> None:
        """Choose the spider, and let it ask for this page only."""
        kind: Any = self.spider_class([url], opts)

        async def start(spider: Spider) -> AsyncIterator[Request]:
            yield self.prepare_request(spider, self.typed_request(spider, url), opts)

        kind.start = start
        self.spidercls = kind
