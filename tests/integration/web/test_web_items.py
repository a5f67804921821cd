"""The page of a site: its items as a table that is sorted, searched, paginated and downloaded."""

from __future__ import annotations

import asyncio
import csv
import io
import tempfile
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from lxml import etree, html

from crawler.config import Config
from crawler.exchange import item_files
from crawler.reports.items import columns_of
from crawler.storage import items
from crawler.storage.items import ItemFilter, add_sort_names
from crawler.storage.paging import later
from crawler.storage.store import opened
from crawler.utils.text import day
from crawler.web.options import WebOptions
from crawler.web.routes import sites as routes
from tests.integration.harness import Db, Freshet, Pages
from tests.integration.known_pages import on
from tests.integration.web.browser import Browser, browsers_of
from tests.integration.web.items import DAY, NOW, SITE, id_of, price, put_item, url_of
from tests.integration.web.test_web_queries import examined

HOSTILE = "<script>alert(1)</script>\"'&"
PAGE, API = f"/sites/{SITE}", f"/api/v1/sites/{SITE}/items"


@pytest.fixture
def local(stored: tuple[Db, str]) -> Iterator[Browser]:
    """Return a browser of an app that waits until all figures are computed."""
    with browsers_of(stored[1], WebOptions()) as make:
        make.app.state.figures.patience_seconds = 30.0
        yield make(address="127.0.0.1")


def table(browser: Browser, query: str = "") -> list[list[str]]:
    """Return the cells of the table of items as people read them, with the heads of columns."""
    answer = browser.get(PAGE + query)
    assert answer.status_code == 200, answer.text
    tree = html.fromstring(answer.text)
    for silent in tree.xpath("//*[@class='hidden' or @class='out']"):
        silent.drop_tree()
    rows = tree.xpath("//table[@class='items']//tr")
    return [[" ".join(cell.text_content().split()) for cell in row] for row in rows]


def listed(browser: Browser, query: str = "", limit: int = 2) -> list[str]:
    """Return the names of the items on all pages of the API."""
    found, cursor = [], ""
    while True:
        answer = browser.get(f"{API}?limit={limit}{query}{cursor}").json()
        found += [row["name"] for row in answer["items"]]
        if answer["next"] is None:
            return found
        cursor = f"&cursor={answer['next']}"


def test_a_site_is_a_table_of_its_items(local: Browser, database: Db) -> None:
    put_item(
        database, "a",
        (10, {"title": "Walnut lamp", "price": price(289.9), "stock": 9, "about": "word " * 90}),
        categories=("Lamps",),
    )  # fmt: skip
    put_item(database, "b", (3, {"title": "Oak bench", "price": price(328), "stock": None}))
    put_item(database, "c", (20, {"title": "Kettle"}), categories=("Kitchen", "Steel"), gone=True)
    assert table(local) == [
        ["Name", "price", "stock", "Category", "Changed ↓"],
        ["Oak bench", "£328", "", "", "3 days ago"],
        ["Walnut lamp", "£289.90", "9", "Lamps", day(NOW - 10 * DAY)],
        ["Kettle gone", "", "", "Kitchen, Steel", day(NOW - 20 * DAY)],
    ]
    page = local.get(PAGE).text
    assert f'href="/targets/{id_of("a")}"' in page
    assert f'<a class="out" href="{url_of("a")}" rel="noopener noreferrer nofollow"' in page
    assert local.get(f"/targets/{id_of('a')}").status_code == 200


def test_values_that_changed_in_seven_days_are_marked(local: Browser, database: Db) -> None:
    before = {"title": "Lamp", "price": price(321), "stock": 0, "color": "oak", "size": "M"}
    after = before | {"price": price(289.9), "stock": 4, "color": "walnut", "new": "x"}
    put_item(database, "a", (30, before), (2, after))
    put_item(database, "old", (30, before), (8, after | {"title": "Old"}))
    put_item(database, "twice", (30, before), (9, after), (1, before | {"title": "Twice"}))
    put_item(database, "fresh", (3, before | {"title": "Fresh"}), (1, after | {"title": "Fresh"}))
    rows = {row["name"]: row["values"] for row in local.get(API).json()["items"]}
    changes = {value["name"]: value["change"] for value in rows["Lamp"]}
    assert changes["price"] == {
        "name": "price", "before": "£321", "after": "£289.90", "number_before": 321.0,
        "number_after": 289.9, "unit": "£", "direction": "lower",
        "ratio": pytest.approx(-0.0969, abs=0.0001), "is_price": True,
    }  # fmt: skip
    stock, color = changes["stock"], changes["color"]
    assert (stock["before"], stock["direction"], stock["ratio"]) == ("0", "higher", None)
    assert (color["before"], color["direction"], color["is_price"]) == ("oak", None, False)
    assert (changes["size"], changes["new"]) == (None, None), "a new field has not changed"
    assert all(value["change"] is None for value in rows["Old"])
    changes = {value["name"]: value["change"] for value in rows["Fresh"]}
    assert changes["price"]["before"] == "£321", "what it was when it was first seen"
    assert {each["name"]: (each["change"] or {}).get("before") for each in rows["Twice"]} == {
        "price": "£289.90", "stock": "4", "color": "walnut", "size": None,
    }  # fmt: skip
    cells = next(row for row in table(local) if row[0] == "Lamp")
    assert cells[1:5] == ["−9.7 % £289.90", "↑ higher 4", "changed walnut", "M"]
    page = local.get(PAGE).text
    assert "fell by 9.7 % in the last seven days, from £321; now" in page
    assert '<span class="chip lower" title="was £321">' in page
    assert '<span class="chip" title="was 0">' in page, "only a price is good or bad news"


def test_changes_are_known_after_visits_were_pruned(local: Browser, database: Db) -> None:
    put_item(database, "a", (30, {"price": price(10)}), (2, {"price": price(11)}))
    database.visits.delete_many({})
    (item,) = local.get(API).json()["items"]
    assert item["values"][0]["change"]["ratio"] == pytest.approx(0.1)


def test_items_are_sorted_by_name_change_and_value(local: Browser, database: Db) -> None:
    values = {"b": 9, "É": "£1,000.50", "a": price(100), "d": None, "c": "sold out", "E2": 20.0}
    for age, (name, value) in enumerate(values.items()):
        put_item(database, name, (age + 1, {"title": name, "price": value}))
    assert listed(local) == ["b", "É", "a", "d", "c", "E2"]
    assert listed(local, "&sort=changed") == ["E2", "c", "d", "a", "É", "b"]
    by_name = ["a", "b", "c", "d", "É", "E2"]
    assert listed(local, "&sort=name") == by_name
    assert listed(local, "&sort=-name") == by_name[::-1]
    assert listed(local, "&sort=value:price") == ["b", "E2", "a", "É", "c", "d"]
    assert listed(local, "&sort=-value:price") == ["É", "a", "E2", "b", "c", "d"]
    assert listed(local, f"&sort={quote('value:$x.y')}") == listed(local, "&sort=value:none")
    assert local.get(f"{API}?sort=price").status_code == 422
    heads = html.fromstring(local.get(f"{PAGE}?sort=-value:price").text).xpath("//thead//th")
    assert [head.get("aria-sort") for head in heads] == [None, "descending", None, None]
    assert "sort=value%3Aprice" in html.tostring(heads[1]).decode()


def test_items_with_the_same_key_are_all_listed(local: Browser, database: Db) -> None:
    for number in range(7):
        put_item(database, str(number), (5, {"title": "Lamp", "price": price(5)}))
    for sort in ("name", "-name", "changed", "-changed", "value:price", "-value:price"):
        cursor, found = "", []
        while cursor is not None:
            answer = local.get(f"{API}?limit=3&sort={sort}&cursor={cursor}").json()
            found += [row["url"] for row in answer["items"]]
            cursor = answer["next"]
        assert sorted(found) == [url_of(str(number)) for number in range(7)], sort


def test_a_cursor_of_another_order_begins_again(local: Browser, database: Db) -> None:
    for number in range(5):
        put_item(database, str(number), (number + 1, {"title": f"t{number}", "price": number}))
    for first in ("name", "-changed", "value:price"):
        cursor = local.get(f"{API}?limit=2&sort={first}").json()["next"]
        for second in ("name", "-changed", "value:price", "-value:title"):
            answer = local.get(f"{API}?limit=2&sort={second}&cursor={cursor}")
            assert answer.status_code == 200, (first, second)
            assert local.get(f"{PAGE}?sort={second}&cursor={cursor}").status_code == 200


def test_items_are_filtered_by_category_and_name(local: Browser, database: Db) -> None:
    put_item(database, "a", (1, {"title": "Café table"}), categories=("Tables", "Oak"))
    put_item(database, "b", (2, {"title": "CAFE LAMP 23"}), categories=("Lamps",))
    put_item(database, "c", (3, {"title": "Rug"}), categories=("Oak",))
    put_item(database, "walnut-desk", (4, {"price": 3}))
    put_item(database, "x", (5, {"title": "Café"}), site="other", categories=("Oak",))
    assert listed(local, "&category=Oak") == ["Café table", "Rug"]
    assert listed(local, "&category=Oak&sort=name&q=ru") == ["Rug"]
    assert listed(local, "&q=cafe") == listed(local, "&q=CAFÉ") == ["Café table", "CAFE LAMP 23"]
    assert listed(local, "&q=lamp*3&sort=value:price") == ["CAFE LAMP 23"]
    assert listed(local, "&q=walnut") == ["Walnut desk"], "the name comes from the URL"
    assert listed(local, f"&q={quote('.*')}") == [], "not a regular expression"
    page = local.get(f"{PAGE}?category=Oak").text
    chips = html.fromstring(page).xpath("//nav[@class='chips']/a")
    texts = [" ".join(chip.text_content().split()) for chip in chips]
    assert texts == ["All 4", "Oak 2", "Lamps 1", "Tables 1"]
    assert [chip.get("aria-current") for chip in chips] == [None, "true", None, None]
    assert "No items match" in local.get(f"{PAGE}?q=nothing").text
    unknown = local.get(f"{PAGE}?category=Unknown").text
    assert "No items match" in unknown
    assert "Unknown" in unknown


def test_only_the_newest_items_are_sorted_by_a_value(
    local: Browser, database: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(items, "MAX_SORTED", 5)
    for number in range(9):
        put_item(database, str(number), (number + 1, {"title": f"t{number}", "price": -number}))
    expected = [f"t{number}" for number in (4, 3, 2, 1, 0, 5, 6, 7, 8)]
    for limit in (2, 5, 50):
        assert listed(local, "&sort=value:price", limit) == expected
    assert local.get(f"{API}?sort=value:price").json()["is_cut"] is True
    assert local.get(f"{API}?sort=name").json()["is_cut"] is False
    said = "Only the 5 items that changed last are sorted by"
    assert said in local.get(f"{PAGE}?sort=value:price").text
    assert said not in local.get(PAGE).text


def test_search_stops_at_its_limit_and_continues(
    local: Browser, database: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(items, "MAX_SCANNED", 10)
    for number in range(25):
        put_item(database, f"{number:02}", (number, {"title": "lamp" if number == 24 else "rug"}))
    assert listed(local, "&q=lamp", 50) == ["lamp"]
    assert local.get(f"{API}?q=lamp").json()["is_partial"] is True
    assert "Continue the search" in local.get(f"{PAGE}?q=lamp").text


def test_lists_of_items_use_indexes(database: Db) -> None:
    for number in range(300):
        put_item(
            database, f"{number:03}", (number / 10, {"title": f"t{number % 50}"}),
            categories=("c",),
        )  # fmt: skip
    for wanted in (
        ItemFilter(), ItemFilter("c"), ItemFilter(sorting="name"),
        ItemFilter("c", sorting="name", is_descending=False),
    ):  # fmt: skip
        listing = items.listing_of(SITE, wanted)
        whole = list(database.posts.find(listing.indexed).sort(list(listing.order)))
        for key in (None, tuple(whole[200][name] for name, _ in listing.order)):
            query = listing.indexed
            if key is not None:
                query = {"$and": [query, later(listing.order, key)]}
            found = database.posts.find(query, hint=list(listing.index)).sort(list(listing.order))
            stats = found.limit(10).explain()
            assert '"SORT"' not in str(stats["queryPlanner"]["winningPlan"]), (wanted, key)
            assert stats["executionStats"]["totalKeysExamined"] <= 25, (wanted, key)
            assert stats["executionStats"]["totalDocsExamined"] <= 25, (wanted, key)


def test_the_page_reads_few_documents(local: Browser, database: Db) -> None:
    for number in range(300):
        put_item(
            database, f"{number:03}", (30, {"title": f"t{number}", "price": 1}),
            (1 + number / 10, {"title": f"t{number}", "price": 2}), categories=("c",),
        )  # fmt: skip
    local.get(PAGE)
    for query in ("?sort=name", "?category=c&limit=50", "?q=t29"):
        with examined(database) as queries:
            assert local.get(PAGE + query).status_code == 200
        read = [each for each in queries if each["ns"].endswith((".posts", ".versions"))]
        # The rows, the newest items for the columns, for each row the visit and the version of a
        # week ago, and the two versions of its spark line.
        of_row = 3 + 3
        assert sum(each["docsExamined"] for each in read) <= 51 + 101 + 50 * of_row, query


def test_an_item_with_many_visits_and_versions_reads_few(local: Browser, database: Db) -> None:
    contents = [(40 - number / 5, {"title": "t", "price": number}) for number in range(199)]
    put_item(database, "a", *contents)
    database.visits.update_many({"outcome": "changed"}, {"$set": {"news": True}})
    with examined(database) as queries:
        assert "sparkline" in local.get(PAGE).text
    assert sum(each["docsExamined"] for each in queries) < 100


def spark_lines(browser: Browser) -> dict[str, list[str]]:
    """Return the texts of the spark lines in the table, by name of the item."""
    rows = html.fromstring(browser.get(PAGE).text).xpath("//table[@class='items']/tbody/tr")
    found = {}
    for row in rows:
        (name,) = row.xpath(".//a[@class='name']")
        lines = row.xpath(".//*[@class='sparkline'][@aria-hidden]/following-sibling::span[1]")
        found[name.text_content()] = [" ".join(line.text_content().split()) for line in lines]
    return found


def test_numbers_that_changed_in_four_weeks_have_a_line(local: Browser, database: Db) -> None:
    prices = [{"title": "Lamp", "price": price(n), "stock": 3} for n in (9, 8, 7, 6)]
    put_item(database, "a", *zip((60, 40, 20, 2), prices, strict=True))
    other = {"title": "Other", "price": price(5)}
    put_item(database, "unit", (20, other), (2, other | {"price": price(5, "EUR")}))
    put_item(database, "old", (90, other | {"title": "Old"}), (40, {"title": "Old", "price": 1}))
    put_item(database, "new", (2, other | {"title": "New"}))
    put_item(database, "text", (20, {"title": "Text", "price": "none"}), (2, {"title": "Text"}))
    assert spark_lines(local) == {
        "Lamp": ["in the last four weeks £8, £7, £6;"],
        "Other": [], "Old": [], "New": [], "Text": [],
    }  # fmt: skip
    assert "drawn" not in local.get(API).text


def test_a_line_shows_a_return_to_an_earlier_number(local: Browser, database: Db) -> None:
    low, high = ({"title": "Lamp", "price": price(n)} for n in (9, 10))
    put_item(database, "a", (20, low), (10, high), (1, low))
    database.versions.delete_one({"content_hash": "hash2"})
    database.visits.update_one({"content_hash": "hash2"}, {"$set": {"content_hash": "hash0"}})
    assert spark_lines(local) == {"Lamp": []}, "the line would not end with the current number"
    database.visits.update_many({"outcome": "changed"}, {"$set": {"news": True}})
    assert spark_lines(local) == {"Lamp": ["in the last four weeks £9, £10, £9;"]}


def test_columns_are_the_short_fields_of_most_items(database: Db, stored: tuple[Db, str]) -> None:
    for number in range(6):
        put_item(
            database, str(number),
            (1, {"title": "x", "price": "£9" if number else "on request", "stock": number,
                 "about": "short" if number == 3 else "long " * 50, "none": None}),
        )  # fmt: skip
    database.posts.update_many({}, {"$set": {"fields.part": "<b>x</b>", "markup": ["part"]}})
    columns, more = on(stored[1], lambda db: columns_of(db, SITE))
    assert columns == [{"name": "price", "is_number": True}, {"name": "stock", "is_number": True}]
    assert more == 0
    many = {f"f{number:02}": number for number in range(15)}
    put_item(database, "many", (0, many), site="many")
    columns, more = on(stored[1], lambda db: columns_of(db, "many"))
    assert ([each["name"] for each in columns], more) == (list(many)[:12], 3)


def test_hostile_items_are_text(local: Browser, database: Db) -> None:
    content = {"title": HOSTILE, HOSTILE: HOSTILE, "p.$": "1", "long": "x" * 1_000_000}
    put_item(database, "a", (30, content | {HOSTILE: "y"}), (1, content), categories=(HOSTILE,))
    database.posts.update_one({}, {"$set": {"url": f"javascript:{HOSTILE}"}})
    query = {"category": HOSTILE, "q": HOSTILE[:9], "sort": f"value:{HOSTILE}"}
    for path in (PAGE, f"{PAGE}?{urlencode(query)}", f"{PAGE}?{urlencode({'q': HOSTILE})}"):
        answer = local.get(path)
        assert answer.status_code == 200
        assert "<script>alert" not in answer.text
        assert 'href="javascript' not in answer.text
        assert len(answer.text) < 60_000


def test_a_site_without_items_shows_the_next_step(local: Browser, database: Db) -> None:
    url = "https://shop.example/"
    database.targets.insert_one(
        {"_id": f"{SITE} {url}", "spider": SITE, "url": url, "kind": "list", "categories": [],
         "first_seen": NOW, "next_visit": NOW}
    )  # fmt: skip
    assert "No items yet" in local.get(PAGE).text
    database.runs.insert_one(
        {"spider": SITE, "started": NOW - DAY, "finished": NOW, "reason": "finished", "counts": {}}
    )
    assert "The last check found no items" in local.get(PAGE).text


def test_only_editors_have_actions(anna: Browser, vic: Browser, database: Db) -> None:
    put_item(database, "a")
    actions = ("Check now", "Check only what is due", "Delete the site", "Pause")
    page = anna.get(PAGE).text
    assert [name for name in actions if name not in page] == []
    page = vic.get(PAGE).text
    assert [name for name in actions if name in page] == []
    assert "Download" in page


def test_categories_appear_when_they_are_counted(local: Browser, database: Db) -> None:
    put_item(database, "a", categories=("Lamps",))
    local.app.state.figures.patience_seconds = 0.0
    page = local.get(PAGE).text
    assert "being computed" in page
    assert "Lamps</bdi> <span>" not in page
    local.app.state.figures.patience_seconds = 30.0
    assert "Lamps</bdi> <span>1</span>" in local.get(PAGE).text


def test_feeds_and_cells_are_listed_with_all_targets(local: Browser, database: Db) -> None:
    database.targets.insert_one(
        {"_id": "feeds http://a/f", "spider": "feeds", "url": "http://a/f", "kind": "feed",
         "categories": [], "first_seen": NOW, "next_visit": NOW}
    )  # fmt: skip
    answer = local.get("/sites/feeds")
    assert (answer.status_code, answer.headers["location"]) == (303, "/sites/feeds/lists")
    page = local.get("/sites/feeds/lists").text
    assert "Feeds and errors" in page
    assert ">Items</a>" not in page
    put_item(database, "a")
    old = local.get(f"{PAGE}?state=error&kind=item")
    assert old.headers["location"] == f"{PAGE}/lists?state=error&kind=item"


def test_crawls_store_names_and_a_migration_adds_them(
    local: Browser, database: Db, freshet: Freshet, stored: tuple[Db, str]
) -> None:
    with Pages() as site:
        site.list("/list.html", ["/b.html", "/a.html"])
        site.item("/a.html", "Évian 2")
        site.item("/b.html", "beer")
        freshet.crawl(
            freshet.wrapper(SITE, start_urls=[f"{site.url}/list.html"], item_pages="/[ab]")
        )
    names = ["beer", "evian 2"]
    assert sorted(row["sort_name"] for row in database.posts.find()) == names
    assert listed(local, "&sort=name") == ["beer", "Évian 2"]
    database.posts.insert_one(
        {"_id": "feeds http://a/f x", "spider": "feeds", "url": None, "title": "Post", "feed": "x",
         "guid": "x", "first_seen": NOW, "content_hash": "x"}
    )  # fmt: skip
    database.posts.update_many({}, {"$unset": {"sort_name": ""}})

    async def migrate() -> None:
        async with opened(Config.load(mongo_uri=stored[1])) as db:
            await add_sort_names(db)
            await add_sort_names(db)

    asyncio.run(migrate())
    found: list[Any] = [row.get("sort_name") for row in database.posts.find().sort("spider")]
    assert (found[0], sorted(found[1:])) == (None, names)


def csv_rows(browser: Browser, query: str = "") -> list[dict[str, str]]:
    """Return the rows of the CSV file by column."""
    answer = browser.get(f"{PAGE}/items.csv{query}")
    assert answer.status_code == 200, answer.text
    assert answer.content.startswith(b"\xef\xbb\xbf"), "Excel needs it to read UTF-8"
    return list(csv.DictReader(io.StringIO(answer.content.decode("utf-8-sig"), newline="")))


def sheet_of(browser: Browser, query: str = "") -> list[dict[str, tuple[str, str]]]:
    """Return the rows of the workbook by column: type and text of each cell."""
    answer = browser.get(f"{PAGE}/items.xlsx{query}")
    assert answer.status_code == 200, answer.text
    with zipfile.ZipFile(io.BytesIO(answer.content)) as book:
        tree = etree.fromstring(book.read("xl/worksheets/sheet1.xml"))
    assert not tree.findall(".//{*}f"), "a formula"
    rows = []
    for row in tree.findall(".//{*}row"):
        cells = {}
        for cell in row:
            column = "".join(filter(str.isalpha, cell.get("r", "")))
            kind = {"inlineStr": "text", "b": "boolean", None: "number"}[cell.get("t")]
            if kind == "number" and cell.get("s"):
                kind = "time"
            cells[column] = kind, "".join(cell.itertext())
        rows.append(cells)
    heads = {column: text for column, (_, text) in rows[0].items()}
    return [{heads[column]: cell for column, cell in row.items()} for row in rows[1:]]


def put_values(db: Db) -> None:
    """Store items with values of all types."""
    content = {
        "title": "=1+1", "price": price(289.9), "stock": 9, "note": "-3.5", "sizes": ["S", "M"],
        "seen": NOW - DAY, "url": "@x", "about": "long " * 1000, "sold": True,
    }  # fmt: skip
    put_item(db, "a", (10, content), categories=("Lamps", "+Oak"))
    put_item(db, "b", (2, {"title": "Rug\x01", "price": "ask", "other": None}), gone=True)


def test_csv_has_a_column_for_each_field(local: Browser, database: Db) -> None:
    put_values(database)
    rug, lamp = csv_rows(local)
    assert list(lamp) == [
        "name", "url", "categories", "gone", "first_seen", "changed_at", "title", "price",
        "price.amount", "price.currency", "other", "stock", "note", "sizes", "seen", "fields.url",
        "sold", "about",
    ]  # fmt: skip
    assert lamp["name"] == lamp["title"] == "'=1+1", "a spreadsheet would take it for a formula"
    assert (lamp["price.amount"], lamp["price.currency"]) == ("289.9", "£")
    assert (lamp["price"], rug["price"], rug["price.amount"]) == ("", "ask", "")
    assert (lamp["stock"], lamp["note"], lamp["sizes"]) == ("9", "-3.5", "S, M")
    assert lamp["seen"] == f"{NOW - DAY:%Y-%m-%d %H:%M:%S}"
    assert (lamp["url"], lamp["fields.url"]) == (url_of("a"), "'@x")
    assert lamp["about"] == "long " * 1000
    assert (lamp["gone"], rug["gone"], lamp["sold"]) == ("FALSE", "TRUE", "TRUE")
    assert lamp["categories"] == "Lamps, +Oak"


def test_xlsx_has_typed_cells(local: Browser, database: Db) -> None:
    put_values(database)
    rug, lamp = sheet_of(local)
    assert lamp["name"] == ("text", "=1+1")
    assert lamp["price.amount"] == ("number", "289.9")
    assert lamp["note"] == ("text", "-3.5")
    assert (lamp["seen"][0], lamp["changed_at"][0]) == ("time", "time")
    days = (NOW - DAY - datetime(1899, 12, 30, tzinfo=UTC)) / timedelta(days=1)
    assert float(lamp["seen"][1]) == pytest.approx(days, abs=1e-5)
    assert (lamp["gone"], rug["gone"]) == (("boolean", "0"), ("boolean", "1"))
    assert rug["title"] == ("text", "Rug"), "XML has no control characters"
    assert "stock" not in rug


def test_downloads_have_the_filter_and_the_order_of_the_page(
    local: Browser, database: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(items, "FILE_BATCH", 3)
    monkeypatch.setattr(item_files, "BATCH", 2)
    for number in range(8):
        put_item(
            database, str(number), (number + 1, {"title": f"t{number}", "price": -(number % 4)}),
            categories=("odd",) if number % 2 else (),
        )  # fmt: skip
    for query in (
        "", "?sort=name", "?sort=-name&q=t", "?sort=value:price", "?category=odd&sort=-value:price",
        "?category=odd&q=7", "?q=none",
    ):  # fmt: skip
        expected = listed(local, query.replace("?", "&"))
        assert [row["name"] for row in csv_rows(local, query)] == expected, query
        assert [row["name"][1] for row in sheet_of(local, query)] == expected, query
    page = local.get(f"{PAGE}?category=odd&sort=-value:price&cursor=WzFd").text
    link = f'href="{PAGE}/items.csv?category=odd&amp;sort=-value%3Aprice" download'
    assert link in page
    monkeypatch.setattr(items, "MAX_SORTED", 3)
    assert len(csv_rows(local, "?sort=value:price")) == 8, "none is left out"
    disposition = local.get(f"{PAGE}/items.xlsx").headers["content-disposition"]
    assert disposition == "attachment; filename=\"shop.xlsx\"; filename*=UTF-8''shop.xlsx"


def test_workbooks_say_that_they_are_cut(
    local: Browser, database: Db, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(item_files, "MAX_XLSX_ROWS", 3)
    monkeypatch.setattr(routes, "MAX_XLSX_ROWS", 3)
    for number in range(5):
        put_item(database, str(number), (number, {"title": f"t{number}"}))
    rows = sheet_of(local, "?sort=name")
    note = "Only the first 3 items are in this file. CSV has all of them."
    assert [row["name"][1] for row in rows] == ["t0", "t1", "t2", note]
    assert "XLSX has the first 3 items, CSV all" in local.get(PAGE).text
    assert list(tmp_path.iterdir()) == []


def test_targets_in_lists_of_the_api_have_names_and_values(local: Browser, database: Db) -> None:
    put_item(database, "a", (2, {"title": "Lamp", "price": price(5)}))
    put_item(database, "walnut-desk", (1, {"stock": 3}))
    database.posts.delete_one({"url": url_of("walnut-desk")})
    expected = [
        ("Lamp", [{"name": "price", "text": "£5", "number": 5.0, "unit": "£"}], id_of("a")),
        ("Walnut desk", [], id_of("walnut-desk")),
    ]
    targets = local.get(f"/api/v1/sites/{SITE}/targets").json()["targets"]
    assert [(row["name"], row["values"], row["id"]) for row in targets] == expected
    found = local.get(f"/api/v1/targets?url={quote('https://shop.example/')}").json()["near"]
    assert [(row["name"], row["values"], row["id"]) for row in found] == expected
    visits = local.get(f"/api/v1/sites/{SITE}/visits").json()["visits"]
    assert [(row["name"], row["id"]) for row in visits] == [
        ("Walnut desk", id_of("walnut-desk")), ("Lamp", id_of("a")),
    ]  # fmt: skip
    assert ">Lamp</bdi>" in local.get(f"{PAGE}/visits").text
    schemas = local.get("/api/openapi.json").json()["components"]["schemas"]
    assert {"name", "values", "id"} <= schemas["ListedTarget"]["properties"].keys()
    assert schemas["Item"]["properties"]["gone"]["description"] == "Whether the page is gone."


def test_up_to_eight_items_are_compared_in_one_chart(local: Browser, database: Db) -> None:
    for number in range(9):
        put_item(
            database, f"{number}", (9, {"title": f"t{number}", "price": price(number + 1)}),
            (2, {"title": f"t{number}", "price": price(number + 2), "stock": 1}),
        )  # fmt: skip
    put_item(database, "euro", (1, {"title": "Euro", "price": price(3, "€")}))
    put_item(database, "0", (1, {"title": "Stranger"}), site="other")
    page = local.get(PAGE).text
    assert f'<input type="checkbox" form="compare" name="id" value="{id_of("3")}"' in page
    two = f"id={id_of('3')}&id={id_of('1')}&id={id_of('0', 'other')}&id=x&id={id_of('none')}"
    compared = local.get(f"{API}/values?{two}").json()
    assert [item["name"] for item in compared] == ["t3", "t1"]
    (stock,) = (each for each in compared[0]["series"] if each["name"] == "stock")
    assert [point["value"] for point in stock["points"]] == [1.0], "also what never changed"
    shown = local.get(f"{PAGE}/compare?{two}").text
    rows = html.fromstring(shown).xpath("//table[contains(@class, 'cards')]/tbody/tr")
    assert [[cell.text_content().strip() for cell in row][:4] for row in rows] == [
        ["t3", "£5", "£4", "£5"], ["t1", "£3", "£2", "£3"],
    ]  # fmt: skip
    assert shown.count("data-value=") == 4
    assert "Stranger" not in shown
    assert "different currencies" not in shown
    assert "different currencies" in local.get(f"{PAGE}/compare?{two}&id={id_of('euro')}").text
    every = "&".join(f"id={id_of(str(number))}" for number in range(9))
    assert "Only the first 8 items are compared" in local.get(f"{PAGE}/compare?{every}").text
    assert "Choose 2 to 8 items" in local.get(f"{PAGE}/compare").text
