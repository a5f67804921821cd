"""The spiders included with Freshet, on copies of the two practice sites behind a proxy."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.integration.harness import Db, Freshet
from tests.site.practice_books import BOOKS, CATEGORIES
from tests.site.practice_quotes import AUTHORS
from tests.site.running import RunningSite

# The copies support only http.
OVER_HTTP = """
from spiders.{name} import {spider} as Original

class {spider}(Original):
    start_urls = ["http://{name}.toscrape.com/"]
    custom_settings = {{"AUTOTHROTTLE_ENABLED": False}}
"""


@pytest.fixture
def practice() -> RunningSite:
    return RunningSite("--practice")


def crawl(freshet: Freshet, practice: RunningSite, name: str) -> None:
    code = OVER_HTTP.format(name=name, spider=name.title())
    freshet.crawl_spider(code, name, http_proxy=practice.url)


def test_every_book_is_read_with_its_price(
    freshet: Freshet, database: Db, practice: RunningSite
) -> None:
    with practice:
        crawl(freshet, practice, "books")
    fields_of = {post["url"].partition(".com")[2]: post["fields"] for post in database.posts.find()}
    assert len(fields_of) == 45
    for book in BOOKS:
        fields = fields_of[book.path]
        assert fields["title"] == book.title
        assert fields["price"] == {"amount": book.pence / 100, "currency": "£"}
        assert (fields["stock"], fields["upc"]) == (book.stock, book.upc)
        assert fields["rating"] == f"star-rating {book.stars}"
        assert fields["description"] == book.description


def test_every_book_has_its_category(freshet: Freshet, database: Db, practice: RunningSite) -> None:
    with practice:
        crawl(freshet, practice, "books")
    found = {
        target["url"].partition(".com")[2]: set(target["categories"])
        for target in database.targets.find({"kind": "item"})
    }
    assert {book.path: {CATEGORIES[book.category].lower()} for book in BOOKS} == found
    assert database.visits.count_documents({"outcome": {"$ne": "new"}}) == 0


def test_every_author_is_read_with_the_date_of_birth(
    freshet: Freshet, database: Db, practice: RunningSite
) -> None:
    with practice:
        crawl(freshet, practice, "quotes")
    fields_of = {post["fields"]["author"]: post["fields"]["born"] for post in database.posts.find()}
    assert fields_of == {
        name: datetime.strptime(born, "%B %d, %Y").replace(tzinfo=UTC)
        for name, (born, _) in AUTHORS.items()
    }
