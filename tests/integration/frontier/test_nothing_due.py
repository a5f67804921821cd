"""Runs with nothing due: what they log, store and export."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integration.harness import Db, Freshet, Pages, asked


@pytest.fixture
def shop(freshet: Freshet, database: Db, pages: Pages) -> Path:
    """Return the definition of a site that was crawled just now."""
    pages.list("list.html", ["/item-a.html", "/item-b.html"])
    pages.item("item-a.html", "A")
    pages.item("item-b.html", "B")
    wrapper = freshet.wrapper(
        "shop", start_urls=[f"{pages.url}/list.html"], item_pages="/item-", fields={"title": "h1"}
    )
    freshet.crawl(wrapper)
    pages.clear_log()
    return wrapper


def test_run_with_nothing_due_says_when_there_is_something(
    freshet: Freshet, database: Db, pages: Pages, shop: Path
) -> None:
    result = freshet("crawl", "shop")
    assert result.code == 0
    assert asked(pages) == {}
    last = result.err.splitlines()[-1]
    assert re.search("nothing visited: nothing was due; 3 of 3 targets not due until ", last)
    before, run = database.runs.find().sort("started")
    assert before["finished"] < run["started"] <= run["finished"]
    assert run["counts"] == {"due": 0, "targets": 3, "unlisted": 0}
    (site,) = database.sites.find({"_id": "shop"}, {"at": 1})
    assert site["at"] == run["started"]
    assert database.leases.find_one({"_id": "crawl shop"})["holders"] == []


def test_run_with_nothing_due_writes_its_log_and_its_exports(freshet: Freshet, shop: Path) -> None:
    log, exported = freshet.folder / "crawl.log", freshet.folder / "items.jsonl"
    assert freshet("crawl", "shop", "--logfile", log, "-O", exported).err == ""
    assert "nothing was due" in log.read_text()
    assert exported.read_text() == ""
    assert freshet("crawl", "shop", "--nolog").err == ""


def test_start_url_that_was_forgotten_is_visited_again(
    freshet: Freshet, database: Db, pages: Pages, shop: Path
) -> None:
    assert freshet("forget", f"{pages.url}/list.html", "--yes").code == 0
    freshet("crawl", "shop")
    assert asked(pages) == {"/list.html": 1}
