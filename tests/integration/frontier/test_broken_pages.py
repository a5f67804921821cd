"""Pages that broke rather than changed: their visits, their alarms, and their recovery."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Databases
from tests.integration.harness import Db, Freshet, Pages, Row, target
from tests.integration.inside import in_json
from tests.integration.once import Left, left_by, put_into

ITEMS = range(12)
LOGIN = '<form><input name="user"><input name="key" type="password"></form>'


def write(pages: Pages, prices: dict[int, str], listed: Iterable[int] = ITEMS) -> None:
    """Write the list page, and each item with its price."""
    pages.list("/list.html", [f"/item-{i}.html" for i in listed])
    for i in ITEMS:
        pages.file(f"/item-{i}.html", f"<h1>Tea {i}</h1>{prices.get(i, '<b>3 EUR</b>')}")


FIELDS = {"fields": {"title": "h1", "price": {"css": "b", "type": "price"}}}


def crawl(freshet: Freshet, pages: Pages, day: int, content: Row = FIELDS) -> str:
    """Visit all pages; return the log. content: keys of the site definition for the content."""
    wrapper: Path = freshet.wrapper(
        "pages", start_urls=[f"{pages.url}/list.html"], item_pages=r"/item-\d+\.html$", **content
    )
    return freshet.crawl(wrapper, "-a", "full=1", hours=25 * day).err


@pytest.fixture(scope="module")
def served() -> Iterator[Pages]:
    with Pages() as pages:
        yield pages


@pytest.fixture(scope="module")
def left(served: Pages, databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Left:
    """Return the database contents after a crawl of the fields on the first day."""
    write(served, {})
    return left_by(lambda freshet: crawl(freshet, served, 0), databases, tmp_path_factory)


@pytest.fixture
def crawled(served: Pages, left: Left, stored: tuple[Db, str]) -> Pages:
    """Return the site after the first day."""
    write(served, {})
    put_into(*stored, left)
    return served


def last_visits(db: Db, pages: Pages) -> dict[str, Row]:
    """Return the last visit of each broken page by its path."""
    rows = db.targets.find({"broken": {"$exists": True}})
    return {row["url"].removeprefix(pages.url): row["last_visit"] for row in rows}


def changes(db: Db, url: str) -> int:
    """Return the number of changes in the history of a page, of 12 bytes each."""
    return len(target(db, url)["history"]["changes"]) // 12


def test_only_the_first_failures_with_the_same_problem_are_logged(
    freshet: Freshet, pages: Pages
) -> None:
    write(pages, {})
    fields = {"price": "b.no-such-class"}
    start, items = f"{pages.url}/list.html", r"/item-\d+\.html$"
    wrapper = freshet.wrapper("pages", start_urls=[start], item_pages=items, fields=fields)
    log = freshet.crawl(wrapper, code=1).err
    lines = [line for line in log.splitlines() if "error: none of the fields found" in line]
    assert len(lines) == 10
    assert lines[-1].endswith("(no more are logged; scrapy targets pages --errors lists all)")
    assert "12 item pages fetched, none read (12 failed)" in log


def test_broken_pages_have_a_reason_and_an_alarm_until_they_work_again(
    freshet: Freshet, database: Db, crawled: Pages
) -> None:
    assert last_visits(database, crawled) == {}
    assert database.alarms.count_documents({}) == 0

    write(crawled, {1: "<b>4 EUR</b>", 2: "<i>3 EUR</i>"}, listed=range(6))
    crawled.file("/item-3.html", LOGIN)
    crawl(freshet, crawled, 1)
    broken = last_visits(database, crawled)
    assert {path: row["broken"] for path, row in broken.items()} == {
        "/item-2.html": "selector", "/item-3.html": "login", "/list.html": "shrunk",
    }  # fmt: skip
    assert broken["/item-2.html"]["reason"] == "nothing found for price, which the page had before"
    assert broken["/list.html"]["reason"] == "the list page has 6 of 12 links to items"
    assert broken["/item-3.html"]["outcome"] == "error"
    kept = database.posts.find_one({"url": f"{crawled.url}/item-3.html"})
    assert kept is not None
    assert kept["fields"]["title"] == "Tea 3"
    # Both versions of item 2 are kept, but only item 1 counts as changed.
    assert database.versions.count_documents({"target": f"{crawled.url}/item-2.html"}) == 2
    assert [changes(database, f"{crawled.url}/item-{i}.html") for i in (1, 2)] == [1, 0]
    alarms = in_json(freshet, "silence", hours=26)
    assert {row["target"].removeprefix(crawled.url) for row in alarms} == set(broken)
    assert {row["event"] for row in alarms} == {"broken"}
    assert database.alarms.find_one({"notify": True}) is None, "no rule selects them"
    history = in_json(freshet, "history", f"{crawled.url}/item-2.html", hours=26)
    assert [visit["broken"] for visit in history["visits"]] == [None, "selector"]

    write(crawled, {})
    crawl(freshet, crawled, 2)
    assert last_visits(database, crawled) == {}
    assert in_json(freshet, "silence", hours=51) == []
    assert changes(database, f"{crawled.url}/item-2.html") == 0


def test_pages_broken_in_the_same_way_raise_one_site_alarm(
    freshet: Freshet, database: Db, crawled: Pages
) -> None:
    for day, left in ((1, 12), (2, 3)):
        write(crawled, {i: f"<i>{i} EUR</i>" for i in range(left)})
        crawl(freshet, crawled, day)
        (alarm,) = in_json(freshet, "silence", hours=25 * day + 1)
        assert (alarm["spider"], alarm["target"], alarm["event"]) == ("pages", "", "broken")
        assert alarm["text"].startswith(f"{left} pages lost fields that they had before, such as")
    assert database.alarms.count_documents({}) == 1


def warnings(log: str) -> list[str]:
    """Return the warnings of a log about broken pages, without the address of the site."""
    lines = [line.partition("WARNING: ")[2] for line in log.splitlines()]
    broken = [line for line in lines if "scrapy silence" in line]
    return [re.sub(r"http://[\d.]+:\d+", "", line).partition(";")[0] for line in broken]


def test_a_run_warns_once_of_sites_and_lists_that_broke(freshet: Freshet, pages: Pages) -> None:
    write(pages, {})
    assert warnings(crawl(freshet, pages, 0)) == []
    write(pages, {2: "<i>3 EUR</i>"})
    # A single item may be sold out.
    assert warnings(crawl(freshet, pages, 1)) == []
    write(pages, dict.fromkeys(ITEMS, "<i>3 EUR</i>"), listed=range(4))
    site = "pages: 12 pages lost fields that they had before, such as /item-0.html"
    of_list = (
        "pages: 1 list page may be broken, for example /list.html: the list page has 4 of 12 links "
        "to items"
    )
    assert warnings(crawl(freshet, pages, 2)) == [site, of_list]
    assert warnings(crawl(freshet, pages, 3)) == []


def test_doctor_reports_a_site_that_broke(freshet: Freshet, crawled: Pages) -> None:
    write(crawled, dict.fromkeys(range(11), "<i>3 EUR</i>"))
    crawl(freshet, crawled, 1)
    found = {
        (row["check"], row["status"]): row["found"]
        for row in json.loads(freshet("doctor", "--json", hours=26).out)["findings"]
        if row["of"] == "pages"
    }
    assert found["fields", "warning"].startswith("11 pages lost fields that they had before")
    assert ("fields", "ok") not in found


def test_text_that_replaces_many_others_is_not_stored(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    write(pages, {i: f"<p>{i} cups of tea were sold.</p>" for i in ITEMS})
    crawl(freshet, pages, 0, {"main_text": True})
    for day in (1, 2):
        for i in ITEMS:
            pages.file(f"/item-{i}.html", "<h1>One moment</h1><p>We will be back soon.</p>")
        crawl(freshet, pages, day, {"main_text": True})
        # The first four could have changed for other reasons.
        assert sum(row["broken"] == "login" for row in last_visits(database, pages).values()) == 8


def test_text_that_replaced_many_others_is_known_in_later_runs(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    write(pages, {i: f"<p>{i} cups of tea were sold.</p>" for i in ITEMS})
    crawl(freshet, pages, 0, {"main_text": True})
    for day, replaced in ((1, range(6)), (2, range(6, 8))):
        for i in replaced:
            pages.file(f"/item-{i}.html", "<h1>One moment</h1><p>We will be back soon.</p>")
        crawl(freshet, pages, day, {"main_text": True})
    kept = database.posts.distinct("title", {"url": {"$regex": "/item-[67]"}})
    assert kept == ["Tea 6", "Tea 7"]


def test_fields_may_change_to_the_same_values_on_all_pages(
    freshet: Freshet, database: Db, crawled: Pages
) -> None:
    for i in ITEMS:
        crawled.file(f"/item-{i}.html", "<h1>Tea</h1><b>0 EUR</b>")
    crawl(freshet, crawled, 1)
    assert last_visits(database, crawled) == {}
