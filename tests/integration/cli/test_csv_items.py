"""CSV items: values that a spreadsheet would execute are escaped as text."""

from __future__ import annotations

import csv

from tests.integration.harness import Freshet, Pages

TITLES = {
    '=HYPERLINK("http://a.test")': '\'=HYPERLINK("http://a.test")',
    "+1+cmd|' /C calc'!A0": "'+1+cmd|' /C calc'!A0",
    "-2+3": "'-2+3",
    "@SUM(A1)": "'@SUM(A1)",
    "\uff1d1+1": "'\uff1d1+1",
    "-3.5": "-3.5",
    "a = b": "a = b",
}


def test_csv_export_has_the_columns_of_the_definition_and_two_for_a_price(
    freshet: Freshet, pages: Pages
) -> None:
    pages.list("index.html", ["/item/1.html", "/item/2.html"])
    pages.file("item/1.html", "<h1>One</h1>")
    pages.file("item/2.html", "<h1>Two</h1><p>1 299,50 Kč</p>")
    fields = {"title": "h1", "price": {"css": "p", "type": "price"}}
    definition = freshet.wrapper(
        "sheet", start_urls=[f"{pages.url}/"], item_pages="/item/", fields=fields
    )
    out = freshet.folder / "items.csv"
    freshet.crawl(definition, "-o", out)
    pages.file("item/1.html", "<h1>One again</h1>")
    freshet.crawl(definition, "-o", out, "-a", "full=1")
    with out.open(encoding="utf-8", newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: row["title"])
    prices = [(row["title"], row["price.amount"], row["price.currency"]) for row in rows]
    assert prices == [("One", "", ""), ("One again", "", ""), ("Two", "1299.5", "Kč")]
    assert {row["duplicate_of"] for row in rows} == {""}


def test_appending_to_a_json_file_is_refused(freshet: Freshet, pages: Pages) -> None:
    pages.item("item/1.html", "One")
    definition = freshet.wrapper("one", start_urls=[f"{pages.url}/item/1.html"], item_pages="/item")
    out = freshet.folder / "items.json"
    freshet.crawl(definition, "-o", out)
    before = out.read_text()
    done = freshet("crawl", "site", "-a", f"wrapper={definition}", "-o", out)
    assert done.code == 1
    assert "Use -O to overwrite it, or another format: -o " in done.complaint
    assert out.read_text() == before


def test_csv_export_escapes_formulas(freshet: Freshet, pages: Pages) -> None:
    paths = [f"/item/{n}.html" for n in range(len(TITLES))]
    pages.list("index.html", paths)
    for path, title in zip(paths, TITLES, strict=True):
        pages.item(path, title)
    definition = freshet.wrapper(
        "sheet", start_urls=[f"{pages.url}/"], item_pages="/item/", fields={"title": "h1"}
    )
    out = freshet.folder / "items.csv"
    freshet.crawl(definition, "-O", out)
    with out.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["title"] for row in rows if row["title"]} == set(TITLES.values())
