"""`scrapy refresh run`: stays at work and keeps all spiders fresh by their plans."""

from __future__ import annotations

import argparse

from crawler.cli.base import print_json
from crawler.config import Config
from crawler.ops.jobs import (
    StoredSites,
    jobs_of,
    needs_database,
    spiders_of,
    stored_sites,
    to_serve,
    with_files,
)
from crawler.ops.options import add_options, order_of
from crawler.utils.terminal import print_line

__all__ = ["add_options", "run"]


def run(config: Config, opts: argparse.Namespace) -> None:
    """Refresh until SIGTERM, SIGINT or the end of `--for`; raises FreshetError.

    A line for each pass is logged on stderr; a summary goes to stdout at the end.
    """
    order = order_of(config, opts)
    spiders = spiders_of(opts.settings)
    names = list(with_files(order.names))
    stored = stored_sites(config) if needs_database(names, spiders) else StoredSites()
    jobs = jobs_of(names, spiders, stored) if names else to_serve(spiders)
    # Slow to import: not for --help.
    from crawler.ops.service import serve, summary_lines

    done = serve(config, opts.settings, jobs, order)
    if opts.json:
        print_json(done)
    else:
        print_line("\n".join(summary_lines(done)))
