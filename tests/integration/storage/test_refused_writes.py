"""Rejected writes: a page's write fails only that page; any other write ends the run."""

from __future__ import annotations

import pytest

from tests.integration.harness import Db, Freshet, Pages, outcomes

BAD = "item-3.html"


@pytest.fixture
def words(freshet: Freshet, pages: Pages, database: Db) -> tuple[str, ...]:
    """Return the command of a crawl that finds ten changed items."""
    names = [f"item-{i}.html" for i in range(10)]
    pages.list("list.html", names)
    for name in names:
        pages.item(name, "before")
    path = freshet.wrapper(
        "pages",
        start_urls=[f"{pages.url}/list.html"],
        item_pages=r"/item-\d\.html$",
        fields={"title": "h1"},
    )
    freshet.crawl(path)
    for name in names:
        pages.item(name, "after")
    return ("crawl", "site", "-a", f"wrapper={path}", "-a", "full=1")


def refuse(db: Db, collection: str, **query: object) -> None:
    """Let the collection reject documents that do not match."""
    db.command("collMod", collection, validator=query, validationAction="error")


def test_page_that_cannot_be_stored_is_logged_as_error(
    freshet: Freshet, database: Db, pages: Pages, words: tuple[str, ...]
) -> None:
    refuse(database, "versions", target={"$ne": f"{pages.url}/{BAD}"})
    result = freshet(*words, hours=1)
    assert result.code == 0, result.err
    (error,) = database.visits.find({"outcome": "error"})
    assert error["target"] == f"{pages.url}/{BAD}"
    assert error["reason"].startswith("cannot be stored: BulkWriteError")
    assert outcomes(database)["changed"] == 9


def test_error_that_cannot_be_stored_ends_the_run(
    freshet: Freshet, database: Db, pages: Pages, words: tuple[str, ...]
) -> None:
    refuse(database, "visits", target={"$ne": f"{pages.url}/{BAD}"})
    before = database.targets.find_one({"url": f"{pages.url}/{BAD}"})

    result = freshet(*words, hours=1)

    assert result.code == 1
    lines = [
        line for line in result.err.splitlines() if f"{pages.url}/{BAD}: BulkWriteError" in line
    ]
    assert lines, result.err
    assert "Spider closed (storage)" in result.err
    assert database.runs.count_documents({"finished": None}) == 1
    assert before is not None

    database.command("collMod", "visits", validator={})
    assert freshet(*words, hours=2).code == 0
    assert database.visits.count_documents({"outcome": "error"}) <= 1
    assert outcomes(database)["new"] == 11


SPIDER = """
from spiders.wrapper import WrapperSpider

class Broken:
    def process_item(self, item):
        raise RuntimeError("no such thing")

class Shop(WrapperSpider):
    name = "shop"
    start_urls = ["{url}/list.html"]
    item_pages = "/item-"
"""
PIPELINE = """
    custom_settings = {"ITEM_PIPELINES": {Broken: 300}}
"""
CALLBACK = """
    def parse_target(self, response):
        raise RuntimeError("no such thing")
"""


@pytest.mark.parametrize("user_code", [PIPELINE, CALLBACK], ids=["pipeline", "callback"])
def test_exception_in_user_code_ends_the_run(
    freshet: Freshet, pages: Pages, user_code: str
) -> None:
    pages.list("/list.html", ["/item-a.html"])
    module = freshet.folder / "broken_spiders.py"
    module.write_text(SPIDER.format(url=pages.url) + user_code, encoding="utf-8")
    words = ("crawl", "shop", "-s", "SPIDER_MODULES=broken_spiders")
    result = freshet(*words, PYTHONPATH=str(freshet.folder))
    assert result.code == 1
    assert f"{pages.url}/list.html: RuntimeError: no such thing" in result.err
