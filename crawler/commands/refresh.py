"""`scrapy refresh`: the service that takes cron's place."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import ClassVar

from crawler.cli.base import Action, ActionsCommand, Functions, print_json
from crawler.config import Config
from crawler.utils.terminal import print_line


class Command(ActionsCommand):
    """Keep all sites fresh by their plans."""

    actions: ClassVar[Mapping[str, Action]] = {
        "run": Action(
            "stay at work: visit what is due of all spiders, replan and prune at their times",
            "scrapy refresh run --replan 12h",
        ),
    }
    example = "scrapy refresh run"

    def short_desc(self) -> str:
        """One line for `scrapy -h`."""
        return "Keep all spiders fresh by their plans, as a service instead of cron"

    def functions(self, action: str) -> Functions:
        """Import the functions of the action."""
        from crawler.ops.options import add_options

        return add_options, self.serve

    def serve(self, config: Config, opts: argparse.Namespace) -> None:
        """Refresh until SIGTERM, SIGINT or the end of `--for`; raises FreshetError.

        A line for each run is logged on stderr; a summary goes to stdout at the end.
        """
        from crawler.ops import jobs
        from crawler.ops.options import options_of

        options = options_of(config, opts)
        spiders = jobs.spiders_of(opts.settings)
        names = list(jobs.with_files(options.names))
        needs_database = jobs.needs_database(names, spiders)
        stored = jobs.stored_sites(config) if needs_database else jobs.StoredSites()
        chosen = jobs.jobs_of(names, spiders, stored) if names else jobs.initial_jobs(spiders)
        # Slow to import: not before the options are right.
        from crawler.ops.service import serve, summary_lines

        done = serve(config, opts.settings, chosen, options)
        if opts.json:
            print_json(done)
        else:
            print_line("\n".join(summary_lines(done)))
