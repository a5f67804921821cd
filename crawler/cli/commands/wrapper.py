"""`scrapy wrapper check`: test a site definition on URLs, without storing anything."""

from __future__ import annotations

import argparse
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from scrapy.crawler import AsyncCrawlerProcess
from scrapy.spiderloader import get_spider_loader

from crawler.cli.base import FreshetCommand, print_json, spider_arguments, usage_error
from crawler.errors import ConfigError, suggestion_or_all
from crawler.utils.terminal import stdout
from crawler.utils.text import count, is_price, price
from crawler.utils.urls import Shape, is_http, scheme_hint, shapes

if TYPE_CHECKING:
    from rich.console import Console

    from crawler.extract.site_definition import Wrapper
    from spiders.probe import Page, WrapperReport
    from spiders.wrapper import WrapperSpider

SHOWN_CHARACTERS = 200
SHOWN_SHAPES = 20
TIMES = "\u00d7"


class Command(FreshetCommand):
    """Check a site definition before the first crawl."""

    arguments = ("check", "FILE|NAME", "[URL…]")
    summary = "Check a site definition: show matching patterns and extracted fields of URLs"
    example = "scrapy wrapper check books https://books.toscrape.com/"
    documents: ClassVar = {
        "scrapy wrapper check FILE URL --json": "spiders.probe.WrapperReport",
    }

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the `-a` option."""
        super().add_options(parser)
        parser.add_argument(
            "-a", dest="spargs", action="append", default=[], metavar="NAME=VALUE",
            help="set spider argument, as for scrapy crawl (may be repeated)",
        )  # fmt: skip

    def process_options(self, args: list[str], opts: argparse.Namespace) -> None:
        """Parse the spider arguments."""
        super().process_options(args, opts)
        opts.spargs = spider_arguments(opts.spargs)

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Load the definition, fetch the URLs, and print the extracted data and problems."""
        from crawler.frontier.lifecycle import never_found

        if args[0] != "check":
            raise usage_error(f"unknown action {args[0]!r}. Available: check")
        for url in args[2:]:
            if not is_http(url):
                raise ConfigError(f"{url}: not an absolute http or https URL{scheme_hint(url)}")
        spider, arguments = self._load(args[1], opts.spargs)
        wrapper = spider.read_wrapper(spider.read_arguments(arguments))
        pages, sitemaps = self._fetch(spider, arguments, args[2:]) if args[2:] else ([], [])
        of_pages = [f"{page['url']}: {page['problem']}" for page in pages if page["problem"]]
        problems: list[str] = []
        assert self.settings is not None
        classes = get_spider_loader(self.settings).list()
        if spider.name != wrapper.name and wrapper.name in classes:
            problems.append(
                f"name: {wrapper.name!r} is taken by a spider class. Choose another name"
            )
        # After Ctrl-C, for example.
        read = {page["url"] for page in pages}
        problems += [f"{url}: not read" for url in args[2:] if url not in read]
        # Fields that are empty on all item pages.
        empty = [set(page["empty_fields"]) for page in pages if page["empty_fields"] is not None]
        never = set.intersection(*empty) if empty else set()
        missing = [never_found(wrapper, f, len(empty)) for f in wrapper.field_names if f in never]
        # The lines of a single item page say so already.
        problems += missing if len(empty) > 1 else ()
        all_problems = [*of_pages, *problems, *(missing if len(empty) == 1 else ())]
        # Distinct links that match none of the patterns.
        links = dict.fromkeys(url for page in pages for url in page["unmatched_links"])
        unmatched = shapes(links)
        if all_problems:
            self.exitcode = 1
        if opts.json:
            report: WrapperReport = {
                "wrapper": wrapper.name,
                "fields": list(wrapper.fields),
                "pages": pages,
                "unmatched": [
                    {"text": shape.text, "count": shape.count, "example": shape.example}
                    for shape in unmatched[:SHOWN_SHAPES]
                ],
                "sitemaps": sitemaps,
                "problems": all_problems,
            }
            print_json(report)
        else:
            self._show(wrapper, pages, unmatched, len(links), problems)
            for url in sitemaps:
                stdout(soft_wrap=True).print(
                    f"robots.txt names a sitemap, which you can add to start_urls: {url}"
                )
            if pages and not all_problems:
                stdout().print("no problems found")

    def _load(self, name: str, given: dict[str, str]) -> tuple[type[WrapperSpider], dict[str, str]]:
        """Return the spider class for a definition, and the spider's arguments.

        Raises ConfigError if the name is neither a file nor a spider with a site definition.

        name:  of a file or spider
        given: arguments given by `-a`
        """
        from spiders.site import SiteSpider
        from spiders.wrapper import WrapperSpider

        if name.endswith(".toml") or Path(name).is_file():
            return SiteSpider, {"wrapper": name} | given
        assert self.settings is not None
        loader = get_spider_loader(self.settings)
        try:
            spider = loader.load(name)
        except KeyError:
            ending = suggestion_or_all(name, sorted(loader.list()), "Available spiders")
            raise ConfigError(f"no file or spider with this name: {name!r}{ending}") from None
        if not issubclass(spider, WrapperSpider):
            raise ConfigError(f"{name}: this spider has no site definition")
        return spider, given

    def _fetch(
        self, spider: type[WrapperSpider], arguments: dict[str, str], urls: list[str]
    ) -> tuple[list[Page], list[str]]:
        from spiders.probe import check_spider

        assert self.settings is not None
        pages: list[Page] = []
        sitemaps: list[str] = []
        process = AsyncCrawlerProcess(self.settings)
        process.crawl(check_spider(spider, urls, pages, sitemaps), **arguments)
        process.start()
        return sorted(pages, key=lambda page: urls.index(page["url"])), sitemaps

    def _show(
        self,
        wrapper: Wrapper,
        pages: list[Page],
        unmatched: list[Shape],
        n_links: int,
        problems: list[str],
    ) -> None:
        """Print the definition, the pages, and the links that match no pattern.

        n_links:  number of distinct links that match no pattern
        problems: those that are not of a single page
        """
        console = stdout(soft_wrap=True)
        fields = f"fields: {', '.join(wrapper.fields) or 'none (main text)'}"
        parts = [f"cells: {', '.join(wrapper.cells)}"] if wrapper.cells else []
        if not parts or wrapper.item_pages:
            parts.insert(0, fields)
        console.print(f"{wrapper.name}: definition is valid; {'; '.join(parts)}")
        for page in pages:
            _show_page(console, wrapper, page)
        if n_links:
            left_out = sum(
                max(0, page["counts"].get("unmatched", 0) - len(page["unmatched_links"]))
                for page in pages
            )
            more_links = f", {left_out:,} more not examined" if left_out else ""
            console.print(f"{count(n_links, 'link')} matched no pattern{more_links}:", style="bold")
            width = max(len(shape.text) for shape in unmatched[:SHOWN_SHAPES])
            for shape in unmatched[:SHOWN_SHAPES]:
                console.print(
                    f"  {shape.text:<{min(width, SHOWN_CHARACTERS)}}  {TIMES}{shape.count:,}  "
                    f"for example {shape.example}"
                )
            if more := unmatched[SHOWN_SHAPES:]:
                links = count(sum(shape.count for shape in more), "link")
                console.print(f"  and {links} of {count(len(more), 'other shape')}")
        for problem in problems:
            console.print(f"problem: {problem}", style="red")


def _show_page(console: Console, wrapper: Wrapper, page: Page) -> None:
    """Print the pattern that matches a page, its fields, and numbers of links."""
    console.print(page["url"], style="bold")
    category = f", category {page['category']}" if page["category"] else ""
    if page["matches"]:
        console.print(f"  matches {page['matches']}{category}")
    if page["redirected_to"]:
        console.print(f"  redirected to {page['redirected_to']}")
    if page["problem"]:
        console.print(f"  problem: {page['problem']}", style="red")
    _show_content(console, wrapper, page)
    for kind, links in (page["links"] or {}).items():
        if links or kind in ("list", "item"):
            first = f", first {links[0]}" if links else ""
            console.print(f"  {count(len(links), f'{kind} link')}{first}")
    counts = page["counts"]
    if n := counts.get("ambiguous"):
        console.print(f"  {count(n, 'link')} left out: matched by both list_pages and item_pages")
    if n := counts.get("foreign"):
        console.print(f"  {count(n, 'link')} to other hosts")
    if n := counts.get("unfollowed"):
        console.print(
            f"  {count(n, 'matching link')} not followed, because this is an item page; "
            "if it is a list page, list_pages must match it",
            style="yellow",
        )


def _show_content(console: Console, wrapper: Wrapper, page: Page) -> None:
    """Print the fields of a page."""
    for name, value in (page["content"] or {}).items():
        if name in (page["empty_fields"] or ()):
            field = wrapper.fields.get(name)
            selector = f" (selector {field.selector})" if field else ""
            console.print(f"  {name}: nothing found{selector}", style="yellow")
        else:
            if isinstance(value, datetime):
                shown = value.isoformat()
            else:
                shown = price(value) if is_price(value) else repr(value)
            is_cut = len(shown) > SHOWN_CHARACTERS
            console.print(f"  {name} = {shown[:SHOWN_CHARACTERS]}{'…' if is_cut else ''}")
