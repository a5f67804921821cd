"""`scrapy refresh`: the service that crawls, replans, prunes and notifies, instead of cron."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import ClassVar

from crawler.cli.base import Action, ActionsCommand, print_json
from crawler.config import Config
from crawler.utils.terminal import print_line


class Command(ActionsCommand):
    """Run the refresh service."""

    summary = "Run crawls, replans and notifications as a service, instead of by cron"
    example = "scrapy refresh run"
    documents: ClassVar = {
        "scrapy refresh run --for 1h --json": "crawler.ops.service_report.ServiceReport",
    }

    @property
    def actions(self) -> Mapping[str, Action]:
        """Return the action."""
        from crawler.ops.schedule import add_options

        return {
            "run": Action(
                "Run as a service: fetch targets as they become due; replan, prune and notify",
                "scrapy refresh run --replan 12h", self.serve, add_options,
            ),
        }  # fmt: skip

    def serve(self, config: Config, opts: argparse.Namespace) -> None:
        """Run the service until SIGTERM, SIGINT or the end of `--for`; raises FreshetError.

        Each crawl run is logged as one line on stderr. A summary is printed on stdout at the end.
        """
        from crawler.ops import jobs
        from crawler.ops.schedule import options_of

        options = options_of(config, opts)
        spiders = jobs.spiders_of(opts.settings)
        names = list(jobs.with_files(options.names))
        needs_database = jobs.needs_database(names, spiders)
        stored = jobs.stored_sites(config) if needs_database else jobs.StoredSites()
        chosen = jobs.jobs_of(names, spiders, stored) if names else jobs.initial_jobs(spiders)
        # Slow to import. Invalid options are reported before.
        from crawler.ops.service import serve
        from crawler.ops.service_report import summary_lines

        done = serve(config, opts.settings, chosen, options)
        if opts.json:
            print_json(done)
        else:
            print_line("\n".join(summary_lines(done)))
