"""Runs with nothing due end without Scrapy's engine, and store the same as a complete run."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from spiders.books import Books
from spiders.feeds import FeedsSpider
from spiders.site import CellsSpider, SiteSpider
from spiders.wrapper import WrapperSpider
from tests.integration.harness import Db, Freshet, Pages, Result, asked

ENGINE = "Spider opened"
# A setting without effect here that only a complete run applies.
COMPLETE = ("-s", "MEMUSAGE_ENABLED=0")
NOW = datetime.now(UTC)


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


def is_quiet(result: Result) -> bool:
    assert result.code == 0, result.err
    return ENGINE not in result.err


def closing(result: Result) -> str:
    (line,) = re.findall(r"INFO: (shop: nothing visited: .*)", result.err)
    return str(line)


@pytest.mark.parametrize("names_file", [False, True])
def test_quiet_run_stores_the_same_as_complete_run(
    freshet: Freshet, database: Db, pages: Pages, shop: Path, names_file: bool
) -> None:
    words = ("site", "-a", f"wrapper={shop}") if names_file else ("shop",)
    complete, quiet = freshet("crawl", *words, *COMPLETE), freshet("crawl", *words)
    assert [is_quiet(complete), is_quiet(quiet)] == [False, True]
    assert closing(quiet) == closing(complete)
    assert "nothing was due; 3 of 3 targets not due until " in closing(quiet)
    assert asked(pages) == {}
    of_complete, of_quiet = database.runs.find({"counts.visits": {"$exists": False}}).sort(
        "started"
    )
    for run in (of_complete, of_quiet):
        assert run["started"] <= run["finished"]
        for name in ("_id", "started", "finished"):
            del run[name]
    assert of_quiet == of_complete
    (site,) = database.sites.find({"_id": "shop"}, {"at": 1})
    assert site["at"] > database.runs.find().sort("started", -1)[1]["finished"]
    assert database.leases.find_one({"_id": "crawl shop"})["holders"] == []
    stats = [re.findall(r"'freshet/\w+': \d+", run.err) for run in (complete, quiet)]
    assert stats[0] == stats[1]
    assert "'finish_reason': 'finished'" in quiet.err
    for run in (complete, quiet):
        last = run.err.splitlines()[-1]
        assert "shop: nothing visited: " in last, "the summary is not the last line"


def test_quiet_run_obeys_log_settings(freshet: Freshet, shop: Path) -> None:
    log = freshet.folder / "crawl.log"
    assert freshet("crawl", "shop", "--logfile", log).err == ""
    assert "nothing was due" in log.read_text()
    assert freshet("crawl", "shop", "--nolog").err == ""


def test_exports_and_limits_require_complete_run(freshet: Freshet, shop: Path) -> None:
    exported = freshet.folder / "items.jsonl"
    assert not is_quiet(freshet("crawl", "shop", "-O", exported))
    assert exported.read_text() == ""
    assert not is_quiet(freshet("crawl", "shop", "-a", "limit=5"))
    assert is_quiet(freshet("crawl", "shop", "-s", "DOWNLOAD_DELAY=2"))


Change = Callable[[Db], Any]


@pytest.mark.parametrize(
    "change",
    [
        lambda db: db.targets.update_one({"kind": "item"}, {"$set": {"next_visit": NOW}}),
        lambda db: db.runs.insert_one({"spider": "shop", "started": NOW, "finished": None}),
        lambda db: db.listings.update_one({}, {"$set": {"shown": False}}),
        lambda db: db.sites.update_one({}, {"$set": {"inputs": "others"}}),
        lambda db: db.sites.update_one({}, {"$unset": {"inputs": ""}}),
        lambda db: db.rereads.insert_one({
            "_id": "x 1", "spider": "shop", "target": "x", "part": 1, "parts": 2, "at": NOW,
            "writes": [],
        }),
        lambda db: db.alarms.insert_one(
            {
                "_id": "shop  broken", "spider": "shop", "target": "", "event": "broken", "at": NOW,
                "since": NOW, "chance": 0.0, "text": "x", "ended_at": None,
            }
        ),
        lambda db: db.plans.insert_one({"spiders": ["shop"], "state": "activating", "at": NOW}),
    ],
    ids=["due", "unfinished", "hidden", "edited", "unknown", "reread", "alarm", "plan"],
)  # fmt: skip
def test_unfinished_work_requires_complete_run(
    freshet: Freshet, database: Db, shop: Path, change: Change
) -> None:
    assert is_quiet(freshet("crawl", "shop"))
    change(database)
    assert not is_quiet(freshet("crawl", "shop"))


def test_a_start_url_that_was_forgotten_is_visited_again(
    freshet: Freshet, database: Db, pages: Pages, shop: Path
) -> None:
    assert freshet("forget", f"{pages.url}/list.html", "--yes").code == 0
    assert not is_quiet(freshet("crawl", "shop"))
    assert asked(pages) == {"/list.html": 1}


def test_changed_environment_variable_requires_complete_run(freshet: Freshet, shop: Path) -> None:
    shop.write_text(f"{shop.read_text()}\nheaders = {{ X-Token = '${{SHOP_TOKEN}}' }}\n")
    freshet("crawl", "shop", SHOP_TOKEN="a")
    assert is_quiet(freshet("crawl", "shop", SHOP_TOKEN="a"))
    assert not is_quiet(freshet("crawl", "shop", SHOP_TOKEN="b"))


def test_changed_setting_requires_one_complete_run(freshet: Freshet, shop: Path) -> None:
    runs = [is_quiet(freshet("crawl", "shop", FRESHET_MAX_DEPTH=7)) for _ in range(2)]
    assert runs == [False, True]


def test_spider_with_custom_start_or_feeds_is_never_quiet() -> None:
    class Reads(WrapperSpider):
        name = "reads"
        fields = {"title": "h1"}

        def read_item(self, response: Any) -> dict[str, Any]:
            return self.polished(super().read_item(response))

        def polished(self, item: dict[str, Any]) -> dict[str, Any]:
            return item

    class Starts(Reads):
        async def start(self) -> Any:
            yield None

    class Sets(Reads):
        custom_settings = {"FEEDS": {"items.jsonl": {}}}

    quiet = (Reads, Books, SiteSpider, FeedsSpider, CellsSpider)
    assert all(spider.only_reads_pages() for spider in quiet)
    assert not any(spider.only_reads_pages() for spider in (Starts, Sets))
