"""`scrapy bench`: Scrapy's own, which measures how fast Scrapy is on this machine."""

from __future__ import annotations

import argparse

from scrapy.commands import bench

# Its server is on this machine, and answers as fast as it can.
SETTINGS = {
    "FRESHET_PRIVATE_ADDRESSES": True,
    "AUTOTHROTTLE_ENABLED": False,
    "ROBOTSTXT_OBEY": False,
}


class Command(bench.Command):
    """Scrapy's benchmark, without a crawl's politeness."""

    def process_options(self, args: list[str], opts: argparse.Namespace) -> None:
        """Let the benchmark reach its own server."""
        super().process_options(args, opts)
        assert self.settings is not None
        self.settings.setdict(SETTINGS, priority="cmdline")
