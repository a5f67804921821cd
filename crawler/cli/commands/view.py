"""`scrapy view`: Scrapy's command, without starting a crawl run.

If the page cannot be shown, it prints the reason and exits with code 1.
"""

from __future__ import annotations

import argparse

from scrapy.commands import view
from scrapy.http import Response, TextResponse
from scrapy.utils.response import open_in_browser

from crawler.cli.commands import fetch
from crawler.utils.terminal import complain


class Command(fetch.Command, view.Command):
    """Open a page in the browser as Freshet receives it."""

    example = "scrapy view https://books.toscrape.com/"

    def _print_response(self, response: Response, opts: argparse.Namespace) -> None:
        if not isinstance(response, TextResponse):
            complain("view", f"{response.url}: not a text response, cannot be shown in a browser")
            self.exitcode = 1
        elif not open_in_browser(response):
            complain("view", "no browser found. Set BROWSER, or use `scrapy fetch`")
            self.exitcode = 1
