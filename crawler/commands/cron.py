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

from crawler.command import FreshetCommand, print_json
from crawler.config import PREFIX, PROJECT, UNPREFIXED, Config
from crawler.errors import ConfigError, ServerError

if TYPE_CHECKING:
    from crawler.refreshing.jobs import Spiders

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
        from crawler.refreshing.jobs import spiders_of, usual, with_files
        from crawler.refreshing.systemd import SERVICE, WORKER, unit

        assert self.settings is not None
        spiders = spiders_of(self.settings)
        lines = _lines([*with_files(args)] or usual(spiders), spiders, self.config)
        if opts.worker:
            _check_worker(self.config, opts)
        if opts.systemd:
            print(unit(self.config, args, WORKER if opts.worker else SERVICE), end="")
            return
        _make_folder(self.config)
        if opts.json:
            print_json([{"schedule": when, "command": command} for when, command in lines])
            return
        for remark in _remarks():
            print(f"# {remark}")
        for when, command in lines:
            print(f"{when:<15} {command}")


def _check_worker(config: Config, opts: argparse.Namespace) -> None:
    if not opts.systemd:
        raise UsageError("--worker goes with --systemd", print_help=False)
    if config.redis_url is None:
        raise ConfigError(
            f"--worker: workers share a pass through Redis: set REDIS_URL in {PROJECT / '.env'}"
        )


def _lines(names: list[str], spiders: Spiders, config: Config) -> list[tuple[str, str]]:
    """Times and commands, crawls first."""
    from crawler.refreshing.chores import prune_words

    minute = int(sha256(str(PROJECT).encode()).hexdigest(), 16)
    every = [
        (_every(minute + number), _command(config, "crawl", *_what(name, spiders), *QUIET))
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


def _what(name: str, spiders: Spiders) -> list[str]:
    """What follows `scrapy crawl` for a spider or a wrapper's file."""
    from crawler.cells.wrapper import load_any
    from crawler.refreshing.jobs import ANY_SITE, known

    if name.endswith(".toml"):
        path = Path(name).resolve()
        load_any(path)
        return [ANY_SITE, "-a", f"wrapper={path}"]
    return [known(name, spiders)]


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
