"""`scrapy check`: Scrapy's command, without starting crawl runs.

Unlike Scrapy's, it rejects unknown spiders, and prints a hint if no spider has contracts.
"""

from __future__ import annotations

import argparse
import sys

from scrapy.commands import check
from scrapy.contracts import ContractsManager
from scrapy.spiderloader import get_spider_loader
from scrapy.utils.conf import build_component_list
from scrapy.utils.misc import load_object

from crawler.cli.base import spider_named
from crawler.errors import FreshetError
from crawler.utils.terminal import complain, print_line


class Command(check.Command):
    """Check the contracts in the docstrings of callbacks."""

    def process_options(self, args: list[str], opts: argparse.Namespace) -> None:
        """Check the names of the spiders before the crawler starts."""
        from spiders.wrapper import INSPECTS

        super().process_options(args, opts)
        assert self.settings is not None
        self.settings.set(INSPECTS, True, priority="cmdline")
        try:
            # Scrapy would report a module that cannot be imported with a traceback.
            get_spider_loader(self.settings)
            for name in args:
                spider_named(self.settings, name)
        except FreshetError as error:
            complain("check", error)
            sys.exit(1)

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Check the contracts; print a hint if there are none."""
        super().run(args, opts)
        if not self._count_contracts(args):
            print_line(
                "scrapy check: no spider has contracts in its docstrings. To test a site "
                "definition, run scrapy wrapper check NAME URL",
                error=True,
            )

    def _count_contracts(self, names: list[str]) -> int:
        """Return the number of callbacks with contracts, of these spiders or of all."""
        assert self.settings is not None
        kinds = self.settings.get_component_priority_dict_with_base("SPIDER_CONTRACTS")
        manager = ContractsManager(map(load_object, build_component_list(kinds)))
        loader = get_spider_loader(self.settings)
        spiders = map(loader.load, names or loader.list())
        return sum(len(manager.tested_methods_from_spidercls(spider)) for spider in spiders)
