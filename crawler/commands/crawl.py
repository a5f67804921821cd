"""`scrapy crawl`: Scrapy's own, with checks before it starts and errors in one line."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING

from scrapy import Spider
from scrapy.commands import crawl
from scrapy.crawler import Crawler
from scrapy.spiderloader import get_spider_loader

from crawler.command import complain, refuse_left_over
from crawler.config import Config
from crawler.errors import ConfigError, FreshetError
from crawler.locks import Busy, only_one
from crawler.terminal import print_line

if TYPE_CHECKING:
    from spiders.wrapper import WrapperSpider

DEFAULT_LOG_LEVEL = "INFO"


class Command(crawl.Command):
    """One run over what is due."""

    _found: type[Spider] | None = None

    name = "crawl"

    def syntax(self) -> str:
        """The usage line."""
        return "[options] <spider>"

    def short_desc(self) -> str:
        """One line for `scrapy -h`."""
        return "Visit what is due of a site, by its name"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Scrapy's options and an example."""
        super().add_options(parser)
        parser.epilog = "Example: scrapy crawl books -o items.jsonl -a limit=100"

    def process_options(self, args: list[str], opts: argparse.Namespace) -> None:
        """Check before Scrapy starts: the user's mistakes are one line and exit code 1."""
        super().process_options(args, opts)
        refuse_left_over(args, ("SPIDER",))
        assert self.settings is not None
        if sys.stderr.isatty() and self.settings["LOG_LEVEL"] == DEFAULT_LOG_LEVEL:
            self.settings.set("LOG_LEVEL", "WARNING", priority="cmdline")
        try:
            self._check(self._spider(args[0]), opts)
        except Busy as running:
            print_line(f"scrapy {self.name}: {running}", error=True)
            sys.exit(0)
        except FreshetError as error:
            complain(self.name, error)
            sys.exit(1)

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Crawl; exit code 1 if anything failed, or nothing was found."""
        # Scrapy reads the source of the whole stack three times as this module is imported: 0.1 s
        # from inside of its engine, next to nothing from here.
        import scrapy.core.downloader.contextfactory  # noqa: F401

        assert self.crawler_process is not None
        crawler = self._create_crawler(self._spider(args[0]))
        self.crawler_process.crawl(crawler, **opts.spargs)
        self.crawler_process.start()
        if self.crawler_process.bootstrap_failed or _failed(crawler):
            self.exitcode = 1

    def _check(self, spider: type[Spider], opts: argparse.Namespace) -> None:
        from spiders.wrapper import WrapperSpider

        assert self.settings is not None
        config = Config.of(self.settings)
        if issubclass(spider, WrapperSpider):
            name = _check_arguments(spider, opts.spargs)
            self._check_name(name, spider)
            asyncio.run(_check_storage(config))
            busy = f"{name} is being crawled already, nothing to do"
            # With Redis it is one more worker.
            if config.redis_url is None:
                self._lock = only_one(config, f"crawl-{name}", busy)

    def _check_name(self, name: str, spider: type[Spider]) -> None:
        """Raise ConfigError where a site would share its name with a spider class."""
        assert self.settings is not None
        if name != spider.name and name in get_spider_loader(self.settings).list():
            raise ConfigError(
                f"the name {name!r} is taken by a spider class. Give this site another name"
            )

    def _spider(self, name: str) -> type[Spider]:
        """The spider class of this name, or one for the site whose definition is stored."""
        from crawler.refreshing.jobs import lacks_file
        from spiders.stored import Loader, stored_definitions

        assert self.settings is not None
        if self._found is not None and self._found.name == name:
            return self._found
        loader = get_spider_loader(self.settings)
        try:
            found = loader.load(name)
        except KeyError:
            stored = stored_definitions(Config.of(self.settings))
            known = ", ".join(sorted({*loader.list(), *stored}))
            raise ConfigError(f"spider not found: {name!r}. Available: {known}") from None
        if isinstance(loader, Loader) and lacks_file(found):
            found = loader.load_stored(name) or found
        self._found = found
        return found


def _check_arguments(spider: type[WrapperSpider], spargs: dict[str, str]) -> str:
    """The name that the spider has in the database; raises ConfigError or WrapperError."""
    return spider.read_wrapper(spider.read_arguments(spargs)).name


async def _check_storage(config: Config) -> None:
    """Reach and prepare the database."""
    from crawler.storage.store import Store

    await (await Store.open(config)).close()


def _failed(crawler: Crawler) -> bool:
    from crawler.session import Session

    session = getattr(crawler.spider, "session", None)
    if not isinstance(session, Session):
        return False
    return session.failure is not None or session.warnings.found_nothing
