"""`scrapy shell`: Scrapy's command, with the URL's spider and without starting a crawl run."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from scrapy import Request, Spider
from scrapy.commands import shell
from scrapy.crawler import Crawler
from scrapy.http import Response
from scrapy.shell import Shell
from scrapy.utils.url import guess_scheme
from w3lib.url import any_to_uri

from crawler.cli.base import Inspection


class Command(Inspection, shell.Command):
    """Open an interactive console with the page of a URL or file."""

    example = "scrapy shell https://books.toscrape.com/"

    def spider_class(self, args: list[str], opts: argparse.Namespace) -> type[Spider]:
        """Return the spider of the page, which may be a file or a URL without a scheme."""
        return super().spider_class([guess_scheme(url) for url in args[:1]], opts)

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Open the shell.

        Scrapy's command creates the spider later, but Freshet's middlewares need it at their start.
        """
        assert self.crawler_process is not None
        crawler = self.crawler_process._create_crawler(self.spider_class(args, opts))
        crawler.spider = crawler._create_spider(**opts.spargs)
        crawler._apply_settings()
        self._init_with_reactor(crawler)
        url = guess_scheme(args[0]) if args else None
        TypedShell(self, crawler, opts.code).start(url, redirect=not opts.no_redirect)
        if opts.code is None:
            # Requests that failed at the prompt do not make the command fail.
            self.exitcode = 0


class TypedShell(Shell):
    """A shell whose `fetch` allows private addresses, and prints why a request failed."""

    def __init__(self, command: Command, crawler: Crawler, code: str | None) -> None:
        super().__init__(crawler, command.update_vars, code)
        self._command = command

    def fetch(
        self,
        request_or_url: Request | str,
        spider: Spider | None = None,
        redirect: bool = True,
        **kwargs: Any,
    ) -> None:
        """Fetch a page and set the shell's variables; `response` is None if the request failed."""
        from crawler.fetch.guard import TYPED

        if isinstance(request_or_url, Request):
            request = request_or_url
            request.meta[TYPED] = request.url
            request.errback = request.errback or self._command.failed
        else:
            assert self.crawler.spider is not None
            url = any_to_uri(request_or_url)
            request = self._command.typed_request(self.crawler.spider, url, redirect=redirect)
            meta = request.meta | kwargs.pop("meta", {})
            request = request.replace(meta=meta, **kwargs)
        super().fetch(request, spider)
        if self.code and self.vars["response"] is None:
            sys.exit(1)

    def populate_vars(
        self,
        response: Response | None = None,
        request: Request | None = None,
        spider: Spider | None = None,
    ) -> None:
        """Set the shell's variables, including the spider before the first page."""
        super().populate_vars(response, request, spider or self.crawler.spider)
