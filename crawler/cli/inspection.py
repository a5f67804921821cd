"""What Scrapy's commands for single pages share: no crawl run, no database, the user's own URL.

`scrapy shell`, `fetch`, `view` and `parse` read a page as a spider would. A crawl run would count
as one in the database, and a URL that a user types may lead into their own network.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from scrapy import Request, Spider
from scrapy.commands import ScrapyCommand
from scrapy.exceptions import UsageError
from scrapy.settings import BaseSettings
from scrapy.spiderloader import get_spider_loader
from scrapy.utils.conf import arglist_to_dict
from scrapy.utils.datatypes import SequenceExclude
from scrapy.utils.spider import DefaultSpider, spidercls_for_request
from w3lib.url import is_url

from crawler.errors import ConfigError, FreshetError
from crawler.utils.terminal import complain

if TYPE_CHECKING:
    from twisted.python.failure import Failure

ALL_BUT_REDIRECTS = SequenceExclude(range(300, 400))


class Inspection(ScrapyCommand):
    """A command that shows one page; the user's mistakes and a failed request give exit code 1."""

    @property
    def name(self) -> str:
        """The command's name."""
        return type(self).__module__.rpartition(".")[2]

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Scrapy's options and, where Scrapy has none, `-a` for spiders that need arguments."""
        super().add_options(parser)
        if "-a" not in parser._option_string_actions:
            parser.add_argument(
                "-a",
                dest="spargs",
                action="append",
                default=[],
                metavar="NAME=VALUE",
                help="set spider argument (may be repeated)",
            )

    def process_options(self, args: list[str], opts: argparse.Namespace) -> None:
        """Check the spider and its arguments before Scrapy starts."""
        from spiders.wrapper import INSPECTS, WrapperSpider

        super().process_options(args, opts)
        assert self.settings is not None
        self.settings.set(INSPECTS, True, priority="cmdline")
        if not isinstance(opts.spargs, dict):
            try:
                opts.spargs = arglist_to_dict(opts.spargs)
            except ValueError:
                problem = "Invalid -a value, use -a NAME=VALUE"
                raise UsageError(problem, print_help=False) from None
        try:
            kind = self.spider_class(args, opts)
            if issubclass(kind, WrapperSpider):
                kind.read_wrapper(kind.read_arguments(opts.spargs))
        except FreshetError as error:
            complain(self.name, error)
            sys.exit(1)

    def spider_class(self, args: list[str], opts: argparse.Namespace) -> type[Spider]:
        """The spider that `--spider` names, else the only one whose site the URL is on.

        Scrapy's default spider where there is none. Raises ConfigError for an unknown name and for
        a URL that cannot be read.
        """
        assert self.settings is not None
        if opts.spider:
            return spider_named(self.settings, opts.spider)
        if not args or not is_url(args[0]):
            return DefaultSpider
        try:
            request = Request(args[0])
        except ValueError as error:
            raise ConfigError(f"{args[0]}: not a valid URL: {error}") from None
        return spidercls_for_request(get_spider_loader(self.settings), request, DefaultSpider)

    def typed_request(self, spider: Spider, url: str, *, redirect: bool = True) -> Request:
        """The request for a URL that the user typed, with a site definition's headers and cookies.

        No status is an error; with `redirect` off, redirects are not followed.
        """
        from crawler.fetch.guard import TYPED
        from crawler.items import Kind, Target
        from spiders.wrapper import WrapperSpider

        if isinstance(spider, WrapperSpider):
            request = spider.request(Target(spider.name, url, Kind.ITEM))
            request = request.replace(callback=None)
        else:
            request = Request(url, dont_filter=True)
        request.meta[TYPED] = url
        request.meta["handle_httpstatus_list"] = ALL_BUT_REDIRECTS
        request.meta["handle_httpstatus_all"] = not redirect
        request.errback = self.failed
        return request

    def failed(self, failure: Failure) -> None:
        """Print why there is no answer; the exit code becomes 1."""
        from spiders.wrapper import failure_text

        request: Request = failure.request  # type: ignore[attr-defined]
        complain(self.name, f"{request.url}: {failure_text(failure)}")
        self.exitcode = 1


def spider_named(settings: BaseSettings, name: str) -> type[Spider]:
    """The spider class of this name; raises ConfigError, which lists the names."""
    loader: Any = get_spider_loader(settings)
    try:
        kind: type[Spider] = loader.load(name)
    except KeyError:
        names = ", ".join(sorted(loader.list()))
        raise ConfigError(f"spider not found: {name!r}. Available: {names}") from None
    return kind
