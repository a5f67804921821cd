"""`scrapy export items` writes the items of each site to a file for spreadsheets."""

from __future__ import annotations

import csv
import json
import zipfile
from pathlib import Path

import pytest

from tests.integration.harness import Db, Freshet
from tests.integration.inside import run
from tests.integration.web.items import price, put_item


@pytest.fixture
def items(database: Db) -> None:
    """Store the items of two sites."""
    put_item(database, "b", (3, {"title": "Walnut lamp", "price": price(289.9)}))
    put_item(database, "a", (1, {"title": "=1+1", "price": price(9)}))
    put_item(database, "c", (1, {"title": "Poem"}), site="books/new")


def test_each_site_has_a_file_with_a_column_for_each_field(
    items: None, freshet: Freshet, tmp_path: Path
) -> None:
    to = tmp_path / "out"
    done = run(freshet, "export", "items", to, "--json")
    assert done.code == 0, done.err
    (table,) = json.loads(done.out)["tables"]
    assert (table["table"], table["files"], table["rows"]) == ("items", 2, 3)
    assert sorted(each.name for each in (to / "items").iterdir()) == ["books%2Fnew.csv", "shop.csv"]
    with (to / "items/shop.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["name"], row["price.amount"], row["price.currency"]) for row in rows] == [
        ("'=1+1", "9", "£"), ("Walnut lamp", "289.9", "£"),
    ]  # fmt: skip


def test_one_site_is_exported_as_a_workbook(items: None, freshet: Freshet, tmp_path: Path) -> None:
    done = run(freshet, "export", "items", tmp_path, "--spider", "shop", "--format", "xlsx")
    assert done.code == 0, done.err
    assert "items: wrote 2 rows in 1 file" in done.out
    (path,) = (tmp_path / "items").iterdir()
    with zipfile.ZipFile(path) as book:
        assert "Walnut lamp" in book.read("xl/worksheets/sheet1.xml").decode()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("items", "--format", "parquet"), "items cannot be parquet. Use csv or xlsx"),
        (("posts", "--format", "xlsx"), "posts cannot be xlsx. Use parquet or jsonl or csv"),
        (("items", "--gzip"), "--gzip: not for items"),
        (("items", "--since", "1d"), "--since: items has no days"),
    ],
)
def test_options_that_do_not_fit_are_rejected(
    freshet: Freshet, tmp_path: Path, words: tuple[str, ...], problem: str
) -> None:
    name, *options = words
    done = run(freshet, "export", name, tmp_path, *options)
    assert done.code == 1
    assert problem in done.err
