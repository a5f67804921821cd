"""`scrapy cron`: the lines of a crontab, or the unit of systemd, that run this project."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy.exceptions import UsageError

from crawler.cli.base import FreshetCommand, print_json
from crawler.config import PREFIX, PROJECT, UNPREFIXED, Config
from crawler.errors import ConfigError, ServerError
from crawler.utils.terminal import print_line

if TYPE_CHECKING:
    from crawler.ops.jobs import Spiders, StoredSites

CRAWL_MINUTES = 10
# Of the replan and of the prune.
NIGHT_HOURS = 2, 3
LOG = "cron.log"
QUIET = ("-L", "WARNING")


class Command(FreshetCommand):
    """Lines for `crontab`."""

    arguments = ("[NAME|FILE.toml|FOLDER/…]",)
    example = "(crontab -l; scrapy cron books shop.toml) | crontab -"

    def short_desc(self) -> str:
        """One line for `scrapy -h`."""
        return "Print the lines of a crontab: crawl, replan, prune"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add systemd's units."""
        super().add_options(parser)
        parser.add_argument(
            "--systemd", action="store_true", help="instead: a unit that runs `scrapy refresh run`"
        )
        parser.add_argument(
            "--worker",
            action="store_true",
            help="with --systemd: the unit of further workers, freshet@.service",
        )

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Print the lines, or the unit."""
        from crawler.ops.jobs import (
            StoredSites,
            needs_database,
            spiders_of,
            stored_sites,
            with_files,
        )
        from crawler.ops.schedule import SERVICE, WORKER, unit

        assert self.settings is not None
        config = self.config
        if opts.worker:
            if not opts.systemd:
                raise UsageError("--worker goes with --systemd", print_help=False)
            if config.redis_url is None:
                env = PROJECT / ".env"
                raise ConfigError(
                    f"--worker: workers share a pass through Redis: set REDIS_URL in {env}"
                )
        spiders = spiders_of(self.settings)
        names = [*with_files(args)]
        # Without names the service finds the sites on its own.
        is_usual = not names and not opts.systemd
        is_stored = is_usual or needs_database(names, spiders)
        stored = stored_sites(config) if is_stored else StoredSites()
        remarks: list[str] = []
        if is_usual:
            names, remarks = _usual(spiders, stored)
        lines = _lines(names, spiders, stored, config)
        if opts.systemd:
            print_line(unit(config, args, WORKER if opts.worker else SERVICE).rstrip("\n"))
            return
        self._print(lines, remarks, opts)

    def _print(
        self, lines: list[tuple[str, str]], remarks: list[str], opts: argparse.Namespace
    ) -> None:
        folder = self.config.data_dir
        try:
            # A shell runs nothing whose log it cannot open.
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ServerError(f"data folder {folder}: {error.strerror or error}") from None
        if opts.json:
            print_json([{"schedule": when, "command": command} for when, command in lines])
            return
        own = sorted(name for name in os.environ if name in UNPREFIXED or name.startswith(PREFIX))
        if own:
            env = PROJECT / ".env"
            remarks.append(f"cron does not see {', '.join(own)} of this shell: put them into {env}")
        for remark in remarks:
            print_line(f"# {remark}")
        for when, command in lines:
            print_line(f"{when:<15} {command}")


def _usual(spiders: Spiders, stored: StoredSites) -> tuple[list[str], list[str]]:
    """The sites to schedule where none are named, and remarks; raises ConfigError if none."""
    from crawler.ops.jobs import default_jobs, undefined_words

    sites = default_jobs(spiders, stored)
    remarks = [f"not scheduled: {name}: {undefined_words(name)}" for name in sites.undefined]
    never_run = ", ".join(sites.unwatched)
    if never_run:
        remarks.append(f"not scheduled, as they have never run: {never_run} (scrapy cron NAME ...)")
    if not sites.jobs:
        ready = f" ({never_run})" if never_run else ""
        raise ConfigError(
            f"no site has targets yet. Run scrapy crawl NAME{ready} or scrapy feeds import FILE "
            "first, or name sites: scrapy cron NAME|FILE.toml"
        )
    return [job.word for job in sites.jobs], remarks


def _lines(
    names: list[str], spiders: Spiders, stored: StoredSites, config: Config
) -> list[tuple[str, str]]:
    """Times and commands, crawls first: spider classes, stored sites or files."""
    from crawler.extract.list_wrappers import load_any
    from crawler.ops.jobs import ANY_SITE, check_name
    from crawler.ops.schedule import prune_words

    # Several projects on one machine begin at different minutes.
    minute = int(sha256(str(PROJECT).encode()).hexdigest(), 16)
    lines = []
    for number, name in enumerate(names):
        if name.endswith(".toml"):
            path = Path(name).resolve()
            load_any(path)
            words = [ANY_SITE, "-a", f"wrapper={path}"]
        else:
            check_name(name, spiders, stored)
            words = [name]
        lines.append((_every(minute + number), _command(config, "crawl", *words, *QUIET)))
    replan, prune = (f"{(minute + 7 * k) % 60} {hour} * * *" for k, hour in enumerate(NIGHT_HOURS))
    return [
        *lines,
        (replan, _command(config, "replan")),
        (prune, _command(config, *prune_words(config))),
    ]


def _every(minute: int) -> str:
    """Every ten minutes, from a minute on, as not all sites should begin in the same one."""
    first = minute % CRAWL_MINUTES
    return f"{first}-59/{CRAWL_MINUTES} * * * *" if first else f"*/{CRAWL_MINUTES} * * * *"


def _command(config: Config, *words: str) -> str:
    """A command as cron runs it: in the project folder, by this interpreter, with a log.

    In a crontab `%` ends a line, so it is escaped.
    """
    log = config.data_dir.resolve() / LOG
    run = shlex.join([sys.executable, "-m", "scrapy", *words])
    line = f"cd {shlex.quote(str(PROJECT))} && {run} >>{shlex.quote(str(log))} 2>&1"
    return line.replace("%", r"\%")
