"""The bundled spiders, including the site spider, which needs no Python code."""

from __future__ import annotations

from pathlib import Path

import pytest
from scrapy.crawler import Crawler
from scrapy.settings import Settings

from crawler.errors import ConfigError, WrapperError
from crawler.extract.fields import FieldType
from crawler.extract.site_definition import Match, Wrapper
from crawler.items import Kind
from spiders.books import Books
from spiders.probe import check_spider, robots_spider
from spiders.quotes import Quotes
from spiders.site import SiteSpider
from spiders.wrapper import WrapperSpider, politeness
from tests.unit.pages import page, wrapper

BOOKS = "https://books.toscrape.com/"
QUOTES = "https://quotes.toscrape.com/"


def read(spider: type[WrapperSpider], **given: str) -> Wrapper:
    """Return the site definition of a spider with these arguments."""
    return spider.read_wrapper(spider.read_arguments(dict(given)))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("", Match(Kind.LIST)),
        ("catalogue/page-2.html", Match(Kind.LIST)),
        ("catalogue/category/books/travel_2/index.html", Match(Kind.LIST, "travel")),
        ("catalogue/category/books/historical-fiction_4/page-2.html",
         Match(Kind.LIST, "historical-fiction")),
        ("catalogue/a-light-in-the-attic_1000/index.html", Match(Kind.ITEM)),
        ("static/oscar/favicon.ico", Match()),
    ],
)  # fmt: skip
def test_book_shop_urls_are_classified(path: str, expected: Match) -> None:
    assert read(Books).match(BOOKS + path) == expected


def test_book_fields_are_extracted() -> None:
    book = page("""<h1>A Light in the Attic</h1><p class="price_color">£51.77</p>
      <p class="instock availability"> In stock (22 available) </p>
      <p class="star-rating Three"></p>
      <div id="product_description"></div><p>It is hard to imagine</p>
      <table><tr><th>UPC</th><td>a897fe39b1053632</td></tr></table>""")
    assert Books().read_item(book) == {
        "title": "A Light in the Attic",
        "price": {"amount": 51.77, "currency": "£"},
        "stock": 22,
        "rating": "star-rating Three",
        "description": "It is hard to imagine",
        "upc": "a897fe39b1053632",
    }


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("", Match(Kind.LIST)),
        ("page/2/", Match(Kind.LIST)),
        ("tag/love/page/1/", Match(Kind.LIST, "love")),
        ("author/Albert-Einstein", Match(Kind.ITEM)),
        ("author/Albert-Einstein/", Match(Kind.ITEM)),
        ("login", Match()),
        ("tag/love/", Match()),
    ],
)
def test_quotes_urls_are_classified(path: str, expected: Match) -> None:
    assert read(Quotes).match(QUOTES + path) == expected


def test_author_fields_are_extracted() -> None:
    author = page("""<h3 class="author-title">Albert Einstein</h3>
      <span class="author-born-date">March 14, 1879</span>
      <span class="author-born-location">in Ulm, Germany</span>
      <div class="author-description"> In 1879 </div>""")
    content = Quotes().read_item(author)
    assert content["author"] == "Albert Einstein"
    assert content["born"].isoformat() == "1879-03-14T00:00:00+00:00"


def test_site_spider_is_named_by_its_argument() -> None:
    spider = SiteSpider(name="shop", start_urls="https://shop.example/", item_pages="/item/")
    assert spider.name == "shop"
    assert spider.start_urls == ["https://shop.example/"]


def test_start_urls_of_the_site_spider_are_separated_by_white_space() -> None:
    site = read(
        SiteSpider,
        name="shop",
        start_urls=" https://a.example/\n\thttps://b.example/  https://c.example/ ",
        item_pages="/item/",
    )
    assert site.start_urls == ("https://a.example/", "https://b.example/", "https://c.example/")


def test_site_spider_accepts_patterns_and_a_category() -> None:
    site = read(
        SiteSpider, name="shop", start_urls="https://a.example/", item_pages=r"/item/(\d+)",
        list_pages="/l/", category=r"/l/(\w+)", follow_item_links="1",
    )  # fmt: skip
    assert site.match("https://a.example/l/tea") == Match(Kind.LIST, "tea")
    assert site.match("https://a.example/item/5") == Match(Kind.ITEM)
    assert site.follow_item_links


def test_site_spider_accepts_a_file(tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    file.write_text("name='shop'\nstart_urls='https://a.example/'\nitem_pages='/item/'\n")
    assert read(SiteSpider, wrapper=str(file)).name == "shop"


@pytest.mark.parametrize(
    ("given", "cause"),
    [
        ({}, "missing argument: name. Set wrapper=FILE.toml, or name, start_urls, item_pages"),
        ({"name": "a", "item_pages": "b"}, "missing argument: start_urls"),
        ({"name": "a", "start_urls": "https://a.example"}, "missing argument: item_pages"),
        ({"wrapper": "a.toml", "name": "b"}, "wrapper=FILE and name= cannot be combined"),
        ({"wrapper": "a.toml", "category": "b"}, "wrapper=FILE and category= cannot"),
        ({"wrapper": "a.toml", "follow_item_links": "1"}, "follow_item_links= cannot"),
        ({"wrapper": "a.toml", "limit": "0"}, "-a limit: must be "),
        ({"wrapper": "a.toml", "limit": "many"}, "-a limit: "),
        ({"wrapper": "a.toml", "full": "perhaps"}, "-a full: "),
        ({"wraper": "a.toml"}, "-a wraper: unknown key"),
    ],
    ids=str,
)
def test_argument_error_is_one_line_with_its_cause(given: dict[str, str], cause: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SiteSpider.read_arguments(given)
    assert str(caught.value).startswith("-a ")
    assert ": :" not in str(caught.value)
    assert "-a : " not in str(caught.value)
    assert cause in str(caught.value)
    assert "\n" not in str(caught.value)


def test_invalid_pattern_argument_is_reported() -> None:
    with pytest.raises(WrapperError, match=r"^-a.*item_pages.*bad regular expression '\('"):
        read(SiteSpider, name="a", start_urls="https://a.example/", item_pages="(")


def test_blank_start_urls_count_as_missing() -> None:
    with pytest.raises((ConfigError, WrapperError), match="start_urls"):
        read(SiteSpider, name="a", start_urls="  ", item_pages="b")


def test_item_without_fields_has_title_and_main_text() -> None:
    spider = SiteSpider(name="shop", start_urls="https://shop.example/", item_pages="/item/")
    assert spider.read_item(page("<h1>Tea</h1><p>green</p>"))["title"] == "Tea"


def test_a_field_may_replace_the_title() -> None:
    class Own(Books):
        main_text = True
        fields = {"title": "h2"}

    content = Own().read_item(page("<h1>Tea</h1><h2>Green</h2><p>a leaf</p>"))
    assert content["title"] == "Green"
    assert "leaf" in content["main_text"]


def test_politeness_keys_become_scrapy_settings() -> None:
    assert politeness(wrapper(delay_seconds=2, concurrency=3, throttle=False)) == {
        "DOWNLOAD_DELAY": 2,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 3,
        "AUTOTHROTTLE_ENABLED": False,
    }
    assert politeness(wrapper()) == {}


def test_example_fields_have_types() -> None:
    assert read(Books).fields["price"].type is FieldType.PRICE
    assert read(Quotes).fields["born"].type is FieldType.DATE


def test_fetching_single_pages_needs_no_redis() -> None:
    settings = Settings({"FRESHET_REDIS_URL": "redis://127.0.0.1:1/0"})
    own = "crawler.frontier.scheduler.Scheduler"
    assert Crawler(Books, settings).settings["SCHEDULER"] == own
    for spider in (check_spider(Books, [], [], []), robots_spider(Books, [], 1.0, [])):
        assert Crawler(spider, settings).settings["SCHEDULER"] == Settings()["SCHEDULER"]
