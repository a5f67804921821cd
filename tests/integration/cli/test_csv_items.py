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
