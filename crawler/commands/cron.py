"""`scrapy cron`: the lines of a crontab, or the unit of systemd, that keep this project at work."""

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
        """Cron's lines, or a unit of systemd."""
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
        """Print them."""
        from crawler.ops.jobs import (
            StoredSites,
            needs_database,
            spiders_of,
            stored_sites,
            with_files,
        )
        from crawler.ops.systemd import SERVICE, WORKER, unit

        assert self.settings is not None
        if opts.worker:
            _check_worker(self.config, opts)
        spiders = spiders_of(self.settings)
        names = [*with_files(args)]
        # Without names a service finds out by itself what there is.
        is_usual = not names and not opts.systemd
        asks = is_usual or needs_database(names, spiders)
        known = stored_sites(self.config) if asks else StoredSites()
        remarks: list[str] = []
        if is_usual:
            names, remarks = _usual(spiders, known)
        lines = _lines(names, spiders, known, self.config)
        if opts.systemd:
            print_line(unit(self.config, args, WORKER if opts.worker else SERVICE).rstrip("\n"))
            return
        _make_folder(self.config)
        if opts.json:
            print_json([{"schedule": when, "command": command} for when, command in lines])
            return
        for remark in [*remarks, *_remarks()]:
            print_line(f"# {remark}")
        for when, command in lines:
            print_line(f"{when:<15} {command}")


def _usual(spiders: Spiders, known: StoredSites) -> tuple[list[str], list[str]]:
    """The sites to schedule where none are named, and remarks; raises ConfigError if none."""
    from crawler.ops.jobs import undefined_words, usual

    found = usual(spiders, known)
    remarks = [f"not scheduled: {name}: {undefined_words(name)}" for name in found.undefined]
    others = ", ".join(found.unwatched)
    if others:
        remarks.append(f"not scheduled, as they have never run: {others} (scrapy cron NAME ...)")
    if not found.jobs:
        ready = f" ({others})" if others else ""
        raise ConfigError(
            f"no site has targets yet. Run scrapy crawl NAME{ready} or scrapy feeds import FILE "
            "first, or name sites: scrapy cron NAME|FILE.toml"
        )
    return [job.word for job in found.jobs], remarks


def _check_worker(config: Config, opts: argparse.Namespace) -> None:
    if not opts.systemd:
        raise UsageError("--worker goes with --systemd", print_help=False)
    if config.redis_url is None:
        raise ConfigError(
            f"--worker: workers share a pass through Redis: set REDIS_URL in {PROJECT / '.env'}"
        )


def _lines(
    names: list[str], spiders: Spiders, known: StoredSites, config: Config
) -> list[tuple[str, str]]:
    """Times and commands, crawls first."""
    from crawler.ops.schedule import prune_words

    minute = int(sha256(str(PROJECT).encode()).hexdigest(), 16)
    every = [
        (_every(minute + number), _command(config, "crawl", *_what(name, spiders, known), *QUIET))
        for number, name in enumerate(names)
    ]
    replan, prune = (f"{(minute + 7 * k) % 60} {hour} * * *" for k, hour in enumerate(NIGHT_HOURS))
    return [
        *every,
        (replan, _command(config, "replan")),
        (prune, _command(config, *prune_words(config))),
    ]


def _every(minute: int) -> str:
    """Each ten minutes; not all spiders in the same one."""
    first = minute % CRAWL_MINUTES
    return f"{first}-59/{CRAWL_MINUTES} * * * *" if first else f"*/{CRAWL_MINUTES} * * * *"


def _what(name: str, spiders: Spiders, known: StoredSites) -> list[str]:
    """What follows `scrapy crawl` for a spider class, a stored site or a file."""
    from crawler.extract.list_wrappers import load_any
    from crawler.ops.jobs import ANY_SITE, check_name

    if name.endswith(".toml"):
        path = Path(name).resolve()
        load_any(path)
        return [ANY_SITE, "-a", f"wrapper={path}"]
    check_name(name, spiders, known)
    return [name]


def _command(config: Config, *words: str) -> str:
    """A command as cron runs it: in the project folder, by this interpreter, with a log.

    In a crontab `%` ends a line, so it is escaped.
    """
    log = config.data_dir.resolve() / LOG
    run = shlex.join([sys.executable, "-m", "scrapy", *words])
    line = f"cd {shlex.quote(str(PROJECT))} && {run} >>{shlex.quote(str(log))} 2>&1"
    return line.replace("%", r"\%")


def _make_folder(config: Config) -> None:
    """A shell runs nothing whose log it cannot open, so the folder has to be there."""
    try:
        config.data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ServerError(f"data folder {config.data_dir}: {error.strerror or error}") from None


def _remarks() -> list[str]:
    """What a crontab does not know by itself."""
    names = sorted(name for name in os.environ if name in UNPREFIXED or name.startswith(PREFIX))
    if not names:
        return []
    return [f"cron does not see {', '.join(names)} of this shell: put them into {PROJECT / '.env'}"]
