"""books.toscrape.com, a practice shop."""

from __future__ import annotations

from crawler.extract.fields import number, price, text
from spiders.wrapper import WrapperSpider


class Books(WrapperSpider):
    """Collects 1,000 books in 50 categories."""

    name = "books"
    is_example = True
    start_urls = ["https://books.toscrape.com/"]
    list_pages = [
        r"/catalogue/category/books/(?P<category>[^/]+)_\d+/",
        r"/catalogue/page-\d+\.html$",
    ]
    item_pages = r"/catalogue/[^/]+_\d+/index\.html$"
    timezone = "Europe/London"
    fields = {
        "title": text("h1"),
        "price": price("p.price_color"),
        "stock": number("p.availability"),
        "rating": text("p.star-rating::attr(class)"),
        "description": text("#product_description + p"),
        "upc": text(xpath="//th[.='UPC']/following-sibling::td"),
    }
