"""`scrapy shell`: Scrapy's own, with a spider from the beginning and without a crawl run."""

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

from crawler.cli.inspection import Inspection


class Command(Inspection, shell.Command):
    """An interactive console with the page of a URL or a file."""

    def spider_class(self, args: list[str], opts: argparse.Namespace) -> type[Spider]:
        """The spider of the page; the shell takes files, and URLs without a scheme."""
        return super().spider_class([guess_scheme(url) for url in args[:1]], opts)

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Open the shell; Scrapy's own has no spider yet when middlewares ask for it."""
        assert self.crawler_process is not None
        crawler = self.crawler_process._create_crawler(self.spider_class(args, opts))
        crawler.spider = crawler._create_spider(**opts.spargs)
        crawler._apply_settings()
        self._init_with_reactor(crawler)
        url = guess_scheme(args[0]) if args else None
        TypedShell(self, crawler, opts.code).start(url, redirect=not opts.no_redirect)
        if opts.code is None:
            # A mistake at the prompt is not the command's.
            self.exitcode = 0


class TypedShell(Shell):
    """A shell in which `fetch` takes what the user types, and prints why there is no answer."""

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
        """Fetch a page and fill the shell's variables; without an answer `response` is None."""
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
        """Fill the shell's variables; the spider is there before the first page."""
        super().populate_vars(response, request, spider or self.crawler.spider)
