"""`scrapy wrapper check`: what a wrapper makes of URLs, without storing anything."""

from __future__ import annotations

import argparse
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from scrapy.crawler import AsyncCrawlerProcess
from scrapy.exceptions import UsageError
from scrapy.spiderloader import get_spider_loader

from crawler.command import FreshetCommand, print_json
from crawler.errors import ConfigError
from crawler.urls import is_http

if TYPE_CHECKING:
    from crawler.wrapper import Wrapper
    from spiders.wrapper import WrapperSpider

Page = dict[str, Any]
SHOWN_CHARACTERS = 200


class Command(FreshetCommand):
    """Check a wrapper before it is let loose."""

    arguments = ("check", "FILE|NAME", "[URL…]")
    example = "scrapy wrapper check books https://books.toscrape.com/"

    def short_desc(self) -> str:
        """One line for `scrapy -h`."""
        return "Check a wrapper: which pattern each URL meets and what fields it yields"

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Load the wrapper, fetch the URLs, say what it makes of them."""
        if args[0] != "check":
            raise UsageError(f"{args[0]!r} is not a thing to do: check", print_help=False)
        for url in args[2:]:
            if not is_http(url):
                raise ConfigError(f"{url}: not an absolute http or https URL")
        spider, arguments = self._load(args[1])
        wrapper = spider.read_wrapper(spider.read_arguments(arguments))
        pages = self._fetch(spider, arguments, args[2:]) if args[2:] else []
        if any(page["problem"] for page in pages):
            self.exitcode = 1
        if opts.json:
            print_json({"wrapper": wrapper.name, "fields": list(wrapper.fields), "pages": pages})
        else:
            _show(wrapper, pages)

    def _load(self, name: str) -> tuple[type[WrapperSpider], dict[str, str]]:
        """The spider class that reads for this wrapper, and its arguments."""
        from spiders.site import SiteSpider
        from spiders.wrapper import WrapperSpider

        if name.endswith(".toml") or Path(name).is_file():
            return SiteSpider, {"wrapper": name}
        assert self.settings is not None
        loader = get_spider_loader(self.settings)
        if name not in loader.list():
            known = ", ".join(sorted(loader.list()))
            raise ConfigError(f"{name}: neither a file nor a spider; there are: {known}")
        spider = loader.load(name)
        if not issubclass(spider, WrapperSpider):
            raise ConfigError(f"{name} is a spider, but not a wrapper")
        return spider, {}

    def _fetch(
        self, spider: type[WrapperSpider], arguments: dict[str, str], urls: list[str]
    ) -> list[Page]:
        from spiders.check import checking

        assert self.settings is not None
        pages: list[Page] = []
        process = AsyncCrawlerProcess(self.settings)
        process.crawl(checking(spider, urls, pages), **arguments)
        process.start()
        return sorted(pages, key=lambda page: urls.index(page["url"]))


def _parts(wrapper: Wrapper) -> str:
    """What is read, by name."""
    fields = ", ".join(wrapper.fields) or "none (main text)"
    cells = f"cells: {', '.join(wrapper.cells)}" if wrapper.cells else ""
    if cells and not wrapper.item_pages:
        return cells
    return "; ".join(filter(None, [f"fields: {fields}", cells]))


def _show(wrapper: Wrapper, pages: list[Page]) -> None:
    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print(f"{wrapper.name}: fine; {_parts(wrapper)}")
    for page in pages:
        console.print(page["url"], style="bold")
        category = f", category {page['category']}" if page["category"] else ""
        console.print(f"  meets {page['meets']}{category}")
        if page["problem"]:
            console.print(f"  {page['problem']}", style="red")
        for name, value in (page["content"] or {}).items():
            console.print(f"  {name} = {_short(value)}")
        for kind, links in (page["links"] or {}).items():
            console.print(f"  {len(links)} {kind} links" + (f", first {links[0]}" if links else ""))


def _short(value: Any) -> str:
    shown = value.isoformat() if isinstance(value, datetime) else repr(value)
    return shown if len(shown) <= SHOWN_CHARACTERS else shown[:SHOWN_CHARACTERS] + "…"
