"""`scrapy list`: Scrapy's command, extended by sites whose definitions are in the database."""

from __future__ import annotations

import argparse

from scrapy.commands import list as scrapy_list
from scrapy.spiderloader import get_spider_loader

from crawler.config import Config
from crawler.errors import FreshetError
from crawler.utils.terminal import complain, print_line


class Command(scrapy_list.Command):
    """List the names that `scrapy crawl` accepts."""

    def short_desc(self) -> str:
        """Return the description for `scrapy -h`."""
        return "List all spiders: spider classes, and sites with a stored definition"

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Print one name per line; only spider classes if the database cannot be reached."""
        from spiders.site import stored_definitions

        assert self.settings is not None
        try:
            names = set(get_spider_loader(self.settings).list())
        except FreshetError as error:
            complain("list", error)
            self.exitcode = 1
            return
        try:
            names |= stored_definitions(Config.of(self.settings)).keys()
        except FreshetError as error:
            complain("list", f"stored sites are missing from this list: {error}")
        for name in sorted(names):
            print_line(name)
