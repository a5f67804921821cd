"""`scrapy crawl`: Scrapy's own, with checks before it starts and errors in one line."""

from __future__ import annotations

import argparse
import sys

from scrapy import Spider
from scrapy.commands import crawl
from scrapy.spiderloader import get_spider_loader

from crawler.cli.base import refuse_left_over, with_database
from crawler.config import Config
from crawler.errors import Busy, ConfigError, FreshetError
from crawler.utils.terminal import complain, print_line

DEFAULT_LOG_LEVEL = "INFO"


class Command(crawl.Command):
    """Crawl the pages that are due."""

    _loaded: type[Spider] | None = None

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
        # The import of this module reads the source of every caller and every module three times.
        # From inside of Scrapy's engine that takes 0.1 s; here few modules are loaded.
        import scrapy.core.downloader.contextfactory  # noqa: F401

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
        assert self.crawler_process is not None
        crawler = self._create_crawler(self._spider(args[0]))
        self.crawler_process.crawl(crawler, **opts.spargs)
        self.crawler_process.start()
        from crawler.frontier.session import Session

        session = getattr(crawler.spider, "session", None)
        if self.crawler_process.bootstrap_failed:
            self.exitcode = 1
        elif isinstance(session, Session):
            if isinstance(session.error, Busy):
                # Another run of the site began after the check.
                print_line(f"scrapy {self.name}: {session.error}", error=True)
            elif session.failure is not None or session.warnings.found_nothing:
                self.exitcode = 1

    def _check(self, spider: type[Spider], opts: argparse.Namespace) -> None:
        """Check arguments and name, reach the database; raises Busy while the site is crawled."""
        from spiders.wrapper import WrapperSpider

        assert self.settings is not None
        config = Config.of(self.settings)
        if not issubclass(spider, WrapperSpider):
            return
        name = spider.read_wrapper(spider.read_arguments(opts.spargs)).name
        if name != spider.name and name in get_spider_loader(self.settings).list():
            raise ConfigError(
                f"the name {name!r} is taken by a spider class. Give this site another name"
            )
        # The slow imports come only now, as most mistakes are found before.
        from crawler.storage import leases

        lease, busy = f"{leases.CRAWL}{name}", f"{name} is already being crawled"
        # With Redis this is one more worker of a shared run.
        shares = config.redis_url is not None
        with_database(config, lambda db: leases.refuse_second(db, lease, busy, shares=shares))

    def _spider(self, name: str) -> type[Spider]:
        """The spider class of this name, or one for the site whose definition is stored."""
        from crawler.ops.jobs import lacks_file
        from spiders.site import Loader, stored_definitions

        assert self.settings is not None
        if self._loaded is not None and self._loaded.name == name:
            return self._loaded
        loader = get_spider_loader(self.settings)
        try:
            spider = loader.load(name)
        except KeyError:
            stored = stored_definitions(Config.of(self.settings))
            names = ", ".join(sorted({*loader.list(), *stored}))
            raise ConfigError(f"spider not found: {name!r}. Available: {names}") from None
        if isinstance(loader, Loader) and lacks_file(spider):
            spider = loader.load_stored(name) or spider
        self._loaded = spider
        return spider
