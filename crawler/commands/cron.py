"""`scrapy cron`: the lines of a crontab that keep this project at work."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from hashlib import sha256
from pathlib import Path

from scrapy import Spider
from scrapy.settings import BaseSettings
from scrapy.spiderloader import get_spider_loader

from crawler.command import FreshetCommand, print_json
from crawler.config import PREFIX, PROJECT, UNPREFIXED, Config
from crawler.errors import ConfigError, ServerError
from crawler.wrapper import load_toml

CRAWL_MINUTES = 10
NIGHT_HOURS = 2, 3
LOG = "cron.log"
KEEP = "--keep-versions 20 --keep-days 180"
# The spider of sites that have a file instead of a class.
ANY_SITE = "site"
QUIET = ("-L", "WARNING")


class Command(FreshetCommand):
    """Lines for `crontab`."""

    arguments = ("[NAME|FILE.toml…]",)
    example = "(crontab -l; scrapy cron books shop.toml) | crontab -"

    def short_desc(self) -> str:
        """One line for `scrapy -h`."""
        return "Print the lines of a crontab: crawl, replan, prune"

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Print them."""
        assert self.settings is not None
        spiders = _spiders(self.settings)
        _make_folder(self.config)
        lines = _lines(args or _named(spiders), spiders, self.config)
        if opts.json:
            print_json([{"schedule": when, "command": command} for when, command in lines])
            return
        for remark in _remarks():
            print(f"# {remark}")
        for when, command in lines:
            print(f"{when:<15} {command}")


def _spiders(settings: BaseSettings) -> dict[str, type[Spider]]:
    loader = get_spider_loader(settings)
    return {name: loader.load(name) for name in sorted(loader.list())}


def _named(spiders: dict[str, type[Spider]]) -> list[str]:
    names = [name for name in spiders if name != ANY_SITE]
    if not names:
        raise ConfigError("no spiders in this project: name the files of your wrappers")
    return names


def _lines(
    names: list[str], spiders: dict[str, type[Spider]], config: Config
) -> list[tuple[str, str]]:
    """Times and commands, crawls first."""
    minute = int(sha256(str(PROJECT).encode()).hexdigest(), 16)
    every = [
        (_every(minute + number), _command(config, "crawl", *_what(name, spiders), *QUIET))
        for number, name in enumerate(names)
    ]
    replan, prune = (f"{(minute + 7 * k) % 60} {hour} * * *" for k, hour in enumerate(NIGHT_HOURS))
    keeps = config.keep_versions or config.keep_visits_days
    return [
        *every,
        (replan, _command(config, "replan")),
        (prune, _command(config, "prune", *([] if keeps else KEEP.split()))),
    ]


def _every(minute: int) -> str:
    """Each ten minutes; not all spiders in the same one."""
    first = minute % CRAWL_MINUTES
    return f"{first}-59/{CRAWL_MINUTES} * * * *" if first else f"*/{CRAWL_MINUTES} * * * *"


def _what(name: str, spiders: dict[str, type[Spider]]) -> list[str]:
    """What follows `scrapy crawl` for a spider or a wrapper's file."""
    if name.endswith(".toml"):
        path = Path(name).resolve()
        load_toml(path)
        return [ANY_SITE, "-a", f"wrapper={path}"]
    if name not in spiders or name == ANY_SITE:
        known = ", ".join(other for other in spiders if other != ANY_SITE) or "none"
        raise ConfigError(f"no spider {name!r}; there are: {known}; or name a .toml file")
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
