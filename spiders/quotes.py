"""quotes.toscrape.com, a practice blog; the items are its author pages."""

from __future__ import annotations

from crawler.extract.fields import date, text
from spiders.wrapper import WrapperSpider


class Quotes(WrapperSpider):
    """Collects authors, which the pages of quotes and of tags link to."""

    name = "quotes"
    is_example = True
    start_urls = ["https://quotes.toscrape.com/"]
    list_pages = [r"/tag/(?P<category>[^/]+)/page/\d+/$", r"\.com/page/\d+/$"]
    item_pages = r"/author/[^/]+/?$"
    fields = {
        "author": text("h3.author-title"),
        "born": date("span.author-born-date"),
        "birthplace": text("span.author-born-location"),
        "about": text("div.author-description"),
    }
