"""`scrapy refresh run`: stays at work and keeps all spiders fresh by their plans."""

from __future__ import annotations

import argparse

from crawler.command import print_json
from crawler.config import Config
from crawler.refreshing.jobs import jobs_of, spiders_of
from crawler.refreshing.options import add_options, order_of
from crawler.refreshing.report import lines_at_the_end

__all__ = ["add_options", "run"]


def run(config: Config, opts: argparse.Namespace) -> None:
    """Refresh until SIGTERM, SIGINT or the end of `--for`; raises FreshetError.

    A line for each pass is logged on stderr; a summary goes to stdout at the end.
    """
    order = order_of(config, opts)
    jobs = jobs_of(order.names, spiders_of(opts.settings))
    # Slow to import: not for --help.
    from crawler.refreshing.running import serve

    done = serve(config, opts.settings, jobs, order)
    if opts.json:
        print_json(done)
    else:
        print("\n".join(lines_at_the_end(done)))
