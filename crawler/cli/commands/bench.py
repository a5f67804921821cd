"""`scrapy bench`: Scrapy's benchmark of its own speed on this machine."""

from __future__ import annotations

import argparse

from scrapy.commands import bench

# The benchmark crawls its own server on this machine, at full speed.
SETTINGS = {
    "FRESHET_PRIVATE_ADDRESSES": True,
    "AUTOTHROTTLE_ENABLED": False,
    "ROBOTSTXT_OBEY": False,
}


class Command(bench.Command):
    """Run Scrapy's benchmark with Freshet's politeness settings disabled."""

    def process_options(self, args: list[str], opts: argparse.Namespace) -> None:
        """Apply the settings that the benchmark's local server needs."""
        super().process_options(args, opts)
        assert self.settings is not None
        self.settings.setdict(SETTINGS, priority="cmdline")
