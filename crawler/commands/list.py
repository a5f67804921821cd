"""`scrapy list`: Scrapy's own, with the sites whose definitions are stored."""

from __future__ import annotations

import argparse

from scrapy.commands import list as scrapy_list
from scrapy.spiderloader import get_spider_loader

from crawler.config import Config
from crawler.errors import FreshetError
from crawler.utils.terminal import complain, print_line


class Command(scrapy_list.Command):
    """Names for `scrapy crawl`."""

    def short_desc(self) -> str:
        """One line for `scrapy -h`."""
        return "List what can be crawled: spider classes, and sites whose definitions are stored"

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Print one name a line; the spider classes also where the database cannot be reached."""
        from spiders.site import stored_definitions

        assert self.settings is not None
        names = set(get_spider_loader(self.settings).list())
        try:
            names |= stored_definitions(Config.of(self.settings)).keys()
        except FreshetError as error:
            complain("list", f"only spider classes: {error}")
        for name in sorted(names):
            print_line(name)
