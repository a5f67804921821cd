"""Base class of Scrapy's commands for single pages: `shell`, `fetch`, `view` and `parse`.

They fetch a page as a spider would, but start no crawl run and leave the database unchanged. URLs
that the user types may lead to private addresses, which are refused during a crawl.
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
INVALID_ARGUMENT = "invalid -a value. Use -a NAME=VALUE"


class Inspection(ScrapyCommand):
    """Base class of commands that show one page.

    Invalid arguments and failed requests are one-line errors with exit code 1.
    """

    @property
    def name(self) -> str:
        """Return the command's name."""
        return type(self).__module__.rpartition(".")[2]

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add Scrapy's options, and `-a` for spider arguments if Scrapy has not added it."""
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
        """Check the spider and its arguments before the crawler starts."""
        from spiders.wrapper import INSPECTS, WrapperSpider

        super().process_options(args, opts)
        assert self.settings is not None
        self.settings.set(INSPECTS, True, priority="cmdline")
        if not isinstance(opts.spargs, dict):
            try:
                opts.spargs = arglist_to_dict(opts.spargs)
            except ValueError:
                raise UsageError(INVALID_ARGUMENT, print_help=False) from None
        try:
            kind = self.spider_class(args, opts)
            if issubclass(kind, WrapperSpider):
                kind.read_wrapper(kind.read_arguments(opts.spargs))
        except FreshetError as error:
            complain(self.name, error)
            sys.exit(1)

    def spider_class(self, args: list[str], opts: argparse.Namespace) -> type[Spider]:
        """Return the spider that `--spider` names, else the only one that handles the URL.

        If no spider or several handle the URL, it returns Scrapy's default spider. Raises
        ConfigError for an unknown name or an invalid URL.
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
        """Return the request for a URL that the user typed.

        It has the headers and cookies of the site definition. Responses of any status are accepted.

        redirect: follow redirects
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
        """Print why the request failed, and set exit code 1."""
        from spiders.wrapper import failure_text

        request: Request = failure.request  # type: ignore[attr-defined]
        complain(self.name, f"{request.url}: {failure_text(failure)}")
        self.exitcode = 1


def spider_named(settings: BaseSettings, name: str) -> type[Spider]:
    """Return the spider class of a name; raises ConfigError with the available names."""
    loader: Any = get_spider_loader(settings)
    try:
        kind: type[Spider] = loader.load(name)
    except KeyError:
        names = ", ".join(sorted(loader.list()))
        raise ConfigError(f"spider not found: {name!r}. Available: {names}") from None
    return kind
