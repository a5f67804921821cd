"""The project's own wrappers as readers of single pages."""

from __future__ import annotations

from scrapy.settings import BaseSettings
from scrapy.spiderloader import get_spider_loader

from crawler.errors import FreshetError
from crawler.items import Kind
from spiders.wrapper import WrapperSpider


def readers(settings: BaseSettings) -> list[WrapperSpider]:
    """A spider of each wrapper that needs no arguments and describes the pages of one site."""
    loader, found = get_spider_loader(settings), list[WrapperSpider]()
    for name in loader.list():
        kind = loader.load(name)
        if issubclass(kind, WrapperSpider):
            try:
                found.append(kind())
            except FreshetError:
                continue
    return [spider for spider in found if spider.wrapper.starts]


def reader_of(url: str, among: list[WrapperSpider]) -> WrapperSpider | None:
    """The first whose item pages the URL is one of; None where there is none."""
    for spider in among:
        try:
            if spider.wrapper.match(spider.wrapper.canonical(url)).kind is Kind.ITEM:
                return spider
        except ValueError:
            continue
    return None
