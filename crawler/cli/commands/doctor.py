"""`scrapy doctor`: find problems that keep Freshet from working, and suggest fixes."""

from __future__ import annotations

import argparse
from typing import ClassVar

from crawler.cli.base import FreshetCommand, print_json
from crawler.config import Config
from crawler.errors import ConfigError
from crawler.ops.findings import DoctorReport, Status, doctor_report, lines
from crawler.utils.terminal import stdout, working

STYLES = {Status.WARNING: "yellow", Status.FAILED: "red"}


class Command(FreshetCommand):
    """Check the settings, servers, sites and data that Freshet needs."""

    summary = "Check settings, servers, sites and data, and suggest fixes"
    example = "scrapy doctor --spider books --spider shop.toml"
    documents: ClassVar = {
        "scrapy doctor --json": DoctorReport,
    }

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add options that select and extend the checks."""
        super().add_options(parser)
        parser.add_argument(
            "--spider", action="append", default=[], metavar="NAME|FILE.toml",
            help="check only this site (may be repeated; default: all spiders of the project)",
        )  # fmt: skip
        parser.add_argument(
            "--quick", action="store_true",
            help="skip checks that start a server or fetch robots.txt",
        )  # fmt: skip
        parser.add_argument(
            "--deep", action="store_true",
            help="read the whole database to check that targets, change log, versions, posts and "
            "clusters are consistent",
        )  # fmt: skip
        parser.add_argument(
            "--repair", action="store_true",
            help="with --deep: repair the change log, and make targets due if the next run has to "
            "store them again",
        )  # fmt: skip

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Run the checks and print the findings; exit code 1 if a check failed."""
        # Slow to import, and --help does not need it.
        from crawler.ops.doctor import Examination

        assert self.settings is not None
        if opts.repair and not opts.deep:
            raise ConfigError("--repair is ignored without --deep: scrapy doctor --deep --repair")
        try:
            config = self.config
        except ConfigError:
            # Invalid settings are reported as a finding. Here the settings are needed only for the
            # progress line.
            config = Config.model_construct()
        with working(config.progress, "checking this machine") as progress:
            findings = Examination(
                self.settings, progress, opts.spider,
                quick=opts.quick, deep=opts.deep, repair=opts.repair,
            ).run()  # fmt: skip
        if any(finding.status is Status.FAILED for finding in findings):
            self.exitcode = 1
        if opts.json:
            print_json(doctor_report(findings))
            return
        console = stdout()
        *rows, total = lines(findings, console.width)
        for finding, row in zip(findings, rows, strict=True):
            console.print(row, style=STYLES.get(finding.status), soft_wrap=True)
        console.print(total)
