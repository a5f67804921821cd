"""`scrapy doctor`: find what keeps Freshet from working, and what to do about it."""

from __future__ import annotations

import argparse

from crawler.cli.base import FreshetCommand, print_json
from crawler.config import Config
from crawler.errors import ConfigError
from crawler.ops.findings import Status, as_json, lines
from crawler.ops.progress import working
from crawler.utils.terminal import stdout

STYLES = {Status.WARNING: "yellow", Status.FAILED: "red"}


class Command(FreshetCommand):
    """Examine everything that Freshet needs."""

    example = "scrapy doctor --spider books --spider shop.toml"

    def short_desc(self) -> str:
        """One line for `scrapy -h`."""
        return "Look at everything that Freshet needs, and say what to do"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add what to examine."""
        super().add_options(parser)
        parser.add_argument(
            "--spider", action="append", default=[], metavar="NAME|FILE.toml",
            help="only this one (may be repeated); all spiders of the project",
        )  # fmt: skip
        parser.add_argument(
            "--quick", action="store_true", help="start no server and ask no site for robots.txt"
        )
        parser.add_argument(
            "--deep", action="store_true",
            help="read all of the database: do targets, log, versions, posts and clusters agree?",
        )  # fmt: skip
        parser.add_argument(
            "--repair", action="store_true",
            help="with --deep: repair the log, and make due what the next run has to store again",
        )  # fmt: skip

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Examine and print; exit code 1 if something keeps Freshet from working."""
        # Slow to import: not for --help.
        from crawler.ops.doctor import Asked, Examination

        assert self.settings is not None
        if opts.repair and not opts.deep:
            raise ConfigError("--repair is ignored without --deep: scrapy doctor --deep --repair")
        try:
            config = self.config
        except ConfigError:
            # One of the findings is about bad settings; until then only progress needs some.
            config = Config.model_construct()
        options = Asked(opts.spider, quick=opts.quick, deep=opts.deep, repair=opts.repair)
        with working(config, "looking at this machine") as say:
            findings = Examination(self.settings, options, say).run()
        if any(finding.status is Status.FAILED for finding in findings):
            self.exitcode = 1
        if opts.json:
            print_json(as_json(findings))
            return
        console = stdout()
        *rows, total = lines(findings, console.width)
        for finding, row in zip(findings, rows, strict=True):
            console.print(row, style=STYLES.get(finding.status), soft_wrap=True)
        console.print(total)
