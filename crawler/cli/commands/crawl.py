"""`scrapy crawl`: Scrapy's command, with checks before the start and one-line errors."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import getproxies

from scrapy import Spider
from scrapy.commands import crawl
from scrapy.spiderloader import SpiderLoaderProtocol, get_spider_loader

from crawler.cli.base import Help, check_log_level, refuse_left_over, with_database
from crawler.config import Config
from crawler.errors import Busy, ConfigError, FreshetError, suggestion_or_all
from crawler.utils.terminal import complain, print_line
from crawler.utils.urls import proxy_problem

if TYPE_CHECKING:
    from crawler.storage.client import Database

DEFAULT_LOG_LEVEL = "INFO"
ARGUMENT_HELP = (
    "set spider argument (may be repeated): full=1 fetches all targets, due or not; limit=N "
    "fetches at most N"
)

# Formats whose documents end: two of them in one file cannot be read.
CLOSED_FORMATS = ("json", "xml")


def _path_and_format(output: str) -> tuple[str, str]:
    """Return the file and the format of a value of `-o` or `-O`."""
    path, _, file_format = output.rpartition(":")
    if not path or not file_format.isalnum():
        return output, Path(output).suffix.removeprefix(".")
    return path, file_format


def refuse_proxies() -> None:
    """Raise ConfigError for a proxy in the environment that requests cannot use."""
    for scheme, url in getproxies().items():
        # Scrapy ignores other variables, and takes a URL without a scheme as one of this scheme.
        is_used = scheme in ("http", "https") and "://" in url
        if is_used and (problem := proxy_problem(url)) is not None:
            raise ConfigError(f"{scheme}_proxy: {problem}")


def refuse_unwritable(outputs: Iterable[str]) -> None:
    """Raise ConfigError if a file of `-o` or `-O` cannot be written; creates its folder."""
    for output in outputs:
        name, _ = _path_and_format(output)
        # Standard output, other storages, and names with placeholders.
        if name == "-" or "://" in name or "%(" in name:
            continue
        path = Path(name)
        exists = path.exists()
        if exists and not (path.is_file() or path.is_dir()):
            continue  # opening a pipe would wait for its reader
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.open("ab").close()
            if not exists:
                path.unlink()
        except OSError as error:
            # The folder is a file.
            number = errno.ENOTDIR if isinstance(error, FileExistsError) else error.errno
            cause = os.strerror(number) if number else error
            raise ConfigError(f"{name}: {cause}. Name a file that you can write") from None


def refuse_appending(outputs: Iterable[str]) -> None:
    """Raise ConfigError if `-o` would append to a JSON or XML file, which would make it invalid."""
    for output in outputs:
        path, file_format = _path_and_format(output)
        if file_format in CLOSED_FORMATS and Path(path).is_file() and Path(path).stat().st_size:
            raise ConfigError(
                f"{path} exists, and appending to it would make invalid {file_format.upper()}. "
                f"Use -O to overwrite it, or another format: -o {Path(path).with_suffix('.jsonl')}"
            )


class Command(crawl.Command):
    """Visit the targets of a site that are due."""

    _loaded: type[Spider] | None = None

    name = "crawl"

    def syntax(self) -> str:
        """Return the part of the usage line after the command's name."""
        return "[options] <spider>"

    def short_desc(self) -> str:
        """Return the description for `scrapy -h`."""
        return "Visit the targets of a site that are due"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add Scrapy's options and an example."""
        super().add_options(parser)
        parser.formatter_class = Help
        parser._option_string_actions["-a"].help = ARGUMENT_HELP
        parser.epilog = "Example: scrapy crawl books -o items.jsonl -a limit=100"
        self.options = parser._option_string_actions

    def process_options(self, args: list[str], opts: argparse.Namespace) -> None:
        """Check arguments and servers before the crawler starts.

        Expected errors are one line and exit code 1. If the site is already being crawled, the exit
        code is 0.
        """
        super().process_options(args, opts)
        refuse_left_over(args, ("SPIDER",), self.options)
        assert self.settings is not None
        if sys.stderr.isatty() and self.settings["LOG_LEVEL"] == DEFAULT_LOG_LEVEL:
            self.settings.set("LOG_LEVEL", "WARNING", priority="cmdline")
        if self.settings["LOG_LEVEL"] == DEFAULT_LOG_LEVEL:
            self.settings.set("LOG_VERSIONS", [], priority="default")

        try:
            check_log_level(self.settings)
            refuse_proxies()
            # Importing this module makes Twisted inspect all loaded modules three times. Imported
            # later, by Scrapy's engine, that takes 0.1 s; here few modules are loaded.
            import scrapy.core.downloader.contextfactory  # noqa: F401

            refuse_appending(opts.output or ())
            refuse_unwritable([*(opts.output or ()), *(opts.overwrite_output or ())])
            self._check(self._spider(args[0]), opts)
        except Busy as running:
            if opts.spargs.get("full"):
                complain(self.name, f"{running.without_ending}. Repeat -a full=1 after that run")
                sys.exit(1)
            print_line(f"scrapy {self.name}: {running}", error=True)
            sys.exit(0)
        except FreshetError as error:
            complain(self.name, error)
            sys.exit(1)

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Crawl; exit code 1 if the run failed or found no pages."""
        assert self.crawler_process is not None
        crawler = self._create_crawler(self._spider(args[0]))
        self.crawler_process.crawl(crawler, **opts.spargs)
        self.crawler_process.start()
        from crawler.frontier.session import Session

        session = getattr(crawler.spider, "session", None)
        if self.crawler_process.bootstrap_failed:
            self.exitcode = 1
        elif isinstance(session, Session):
            state = session.run.state
            if isinstance(state.error, Busy):
                # Another run of the site started after the check.
                print_line(f"scrapy {self.name}: {state.error}", error=True)
            elif session.failure is not None or state.found_nothing:
                self.exitcode = 1

    def _check(self, spider: type[Spider], opts: argparse.Namespace) -> None:
        """Check the spider's arguments and name, and that the database can be reached.

        Raises Busy if the site is already being crawled.
        """
        from spiders.wrapper import WrapperSpider

        assert self.settings is not None
        config = Config.of(self.settings)
        if not issubclass(spider, WrapperSpider):
            print_line(
                f"scrapy {self.name}: {spider.name} is a plain Scrapy spider: Freshet stores "
                "nothing. Site definitions are classes with the base WrapperSpider, or TOML files",
                error=True,
            )
            return
        wrapper = spider.read_wrapper(spider.read_arguments(opts.spargs))
        name = wrapper.name
        if name != spider.name and name in self._loader.list():
            raise ConfigError(
                f"the name {name!r} is taken by a spider class. Give this site another name"
            )
        # Slow to import. Most errors are reported before.
        from crawler.storage import leases, sites

        lease, busy = f"{leases.CRAWL}{name}", f"{name} is already being crawled"
        # With Redis, this process becomes another worker of the shared run.
        shares = config.redis_url is not None

        async def check(db: Database) -> None:
            await leases.refuse_second(db, lease, busy, shares=shares)
            if wrapper.definition is not None:
                await sites.refuse_second_file(db, wrapper.definition)

        with_database(config, check)

    @cached_property
    def _loader(self) -> SpiderLoaderProtocol:
        assert self.settings is not None
        # Each loader copies all settings.
        return get_spider_loader(self.settings)

    def _spider(self, name: str) -> type[Spider]:
        """Return the spider class of a name, which may be that of a stored site definition."""
        from spiders.site import Loader, lacks_file, stored_definitions

        assert self.settings is not None
        if self._loaded is not None and self._loaded.name == name:
            return self._loaded
        loader = self._loader
        try:
            spider = loader.load(name)
        except KeyError:
            if name.endswith(".toml"):
                hint = f"To crawl a file: scrapy crawl site -a wrapper={name}"
                raise ConfigError(f"spider not found: {name!r}. {hint}") from None
            stored = stored_definitions(Config.of(self.settings))
            ending = suggestion_or_all(name, sorted({*loader.list(), *stored}))
            raise ConfigError(f"spider not found: {name!r}{ending}") from None
        if isinstance(loader, Loader) and lacks_file(spider):
            spider = loader.load_stored(name) or spider
        self._loaded = spider
        return spider
