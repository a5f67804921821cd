"""Page cells: scheduled like pages, with one fetch per page for all of its cells."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.integration.databases import base, read_cells
from tests.integration.harness import Db, Freshet, Pages, asked
from tests.integration.known_pages import HOUR

pytestmark = pytest.mark.soak
FRONT = "<h1>Today</h1><ul><li>rain<li>wind</ul><p class=temp>21.5 C</p><div>a <b>b</b></div>"


def of_front(pages: Pages) -> str:
    url = f'url = "{pages.url}/front.html"'
    return f"""
[cells.heading]
{url}
css = "h1"
every = "5m"
[cells.words]
{url}
css = "li"
type = "list"
every = "2h"
[cells.temperature]
{url}
xpath = "//p[@class='temp']"
type = "number"
[cells.part]
{url}
css = "div"
type = "html"
"""


def test_cells_of_one_page_share_its_fetch(freshet: Freshet, database: Db) -> None:
    with Pages() as pages:
        pages.file("front.html", FRONT)
        read_cells(freshet, of_front(pages))
        assert asked(pages) == {"/front.html": 1}
    cells = base(database)
    assert cells["heading"]["content"] == {"value": "Today"}
    assert cells["words"]["content"] == {"value": ["rain", "wind"]}
    assert cells["temperature"]["content"] == {"value": 21.5}
    assert cells["part"]["content"] == {"html": "<div>a <b>b</b></div>"}
    assert {cell["group"] for cell in cells.values()} == {"dynamic", "static", None}
    assert all((c["requested"], c["refreshed"]) == (1, 1) for c in cells.values())


def test_relative_links_in_html_cells_become_absolute(freshet: Freshet, database: Db) -> None:
    with Pages() as pages:
        pages.file("a/front.html", "<div><a href='b.html'>b</a><img src='/c.png'></div>")
        text = f'[cells.part]\nurl = "{pages.url}/a/front.html"\ncss = "div"\ntype = "html"\n'
        read_cells(freshet, text)
        url = pages.url
    expected = f'<div><a href="{url}/a/b.html">b</a><img src="{url}/c.png"></div>'
    assert base(database)["part"]["content"] == {"html": expected}


def test_cells_that_are_not_due_share_the_fetch(freshet: Freshet, database: Db) -> None:
    with Pages() as pages:
        pages.file("front.html", FRONT)
        read_cells(freshet, of_front(pages))
        pages.file("front.html", FRONT.replace("rain", "snow"))
        read_cells(freshet, of_front(pages), hours=0.25)
        assert asked(pages) == {"/front.html": 2}
    assert base(database)["words"]["content"] == {"value": ["snow", "wind"]}
    changed = database.visits.find({"changed": 1}).distinct("target")
    assert changed == ["cell:words"]
    assert database.versions.count_documents({"target": "cell:words"}) == 2
    along = database.visits.count_documents({"shared_fetch": True})
    assert along == 6


def test_unchanged_page_is_not_modified_for_all_cells(freshet: Freshet, database: Db) -> None:
    with Pages() as pages:
        pages.file("front.html", FRONT)
        read_cells(freshet, of_front(pages))
        read_cells(freshet, of_front(pages), hours=0.25)
        outcomes = [row["outcome"] for row in database.visits.find().sort("at", -1).limit(4)]
    assert outcomes == ["not_modified"] * 4


def test_new_cell_of_an_unchanged_page_is_read(freshet: Freshet, database: Db) -> None:
    with Pages() as pages:
        pages.file("front.html", FRONT)
        read_cells(freshet, of_front(pages))
        more = f'[cells.bold]\nurl = "{pages.url}/front.html"\ncss = "b"\n'
        read_cells(freshet, of_front(pages) + more)
    assert base(database)["bold"]["content"] == {"value": "b"}


def test_selector_without_match_fails_only_its_cell(freshet: Freshet, database: Db) -> None:
    with Pages() as pages:
        pages.file("front.html", FRONT)
        read_cells(freshet, of_front(pages))
        pages.file("front.html", FRONT.replace("h1", "h2"))
        heading = database.targets.find_one({"url": "cell:heading"})
        assert heading is not None
        # Two and a half periods after the visit that is due, so that two visits are missed.
        moment = heading["next_visit"] + timedelta(minutes=12.5)
        read_cells(freshet, of_front(pages), hours=(moment - datetime.now(UTC)) / HOUR)
    cells = base(database)
    assert cells["heading"]["error"] == "no match for 'h1'"
    assert cells["heading"]["content"] == {"value": "Today"}
    assert (cells["heading"]["requested"], cells["heading"]["refreshed"]) == (4, 1)
    assert cells["words"]["error"] is None


def test_unreachable_page_fails_only_its_cells(freshet: Freshet, database: Db) -> None:
    with Pages() as pages:
        pages.file("front.html", FRONT)
        lost = '[cells.lost]\nurl = "http://127.0.0.1:9/"\ncss = "h1"\nevery = "5m"\n'
        read_cells(freshet, of_front(pages) + lost, "-s", "RETRY_ENABLED=False")
    cells = base(database)
    assert cells["heading"]["refreshed"] == 1
    assert "refused" in cells["lost"]["error"]
    assert cells["lost"]["refreshed"] == 0


def test_changed_period_applies_immediately(freshet: Freshet, database: Db) -> None:
    def next_hours() -> float:
        cell = database.targets.find_one({"url": "cell:words"})
        assert cell is not None
        return float((cell["next_visit"] - cell["visited_at"]).total_seconds() / 3600)

    with Pages() as pages:
        pages.file("front.html", FRONT)
        read_cells(freshet, of_front(pages))
        assert next_hours() <= 2
        read_cells(freshet, of_front(pages).replace('"2h"', '"dynamic"'))
    assert next_hours() <= 5 / 60
    assert base(database)["words"]["period_seconds"] == 300


def test_removed_cell_is_deleted_and_can_return(freshet: Freshet, database: Db) -> None:
    with Pages() as pages:
        pages.file("front.html", FRONT)
        read_cells(freshet, of_front(pages))
        fewer = of_front(pages).partition("[cells.temperature]")[0]
        read_cells(freshet, fewer, "-a", "full=1", hours=30)
        assert set(base(database)) == {"heading", "words"}
        assert database.visits.count_documents({"target": "cell:part"}) == 1
        read_cells(freshet, of_front(pages), hours=31)
    part = database.targets.find_one({"url": "cell:part"})
    assert part is not None
    assert not part["gone"]
    assert database.visits.count_documents({"target": "cell:part"}) == 2
    assert base(database)["part"]["content"] == {"html": "<div>a <b>b</b></div>"}


def test_edited_selector_is_not_a_change(freshet: Freshet, database: Db) -> None:
    with Pages() as pages:
        pages.file("front.html", FRONT)
        read_cells(freshet, of_front(pages))
        edited = of_front(pages).replace('css = "div"', 'css = "div b"')
        read_cells(freshet, edited, hours=0.25)
    assert base(database)["part"]["content"] == {"html": "<b>b</b>"}
    assert database.visits.count_documents({"changed": 1}) == 0


def test_replan_plans_only_cells_without_a_period(freshet: Freshet, database: Db) -> None:
    with Pages() as pages:
        pages.file("front.html", FRONT)
        read_cells(freshet, of_front(pages))
        done = freshet("replan", "--json")
    assert done.code == 0, done.err
    policies = {t["url"]: t["plan"]["policy"] for t in database.targets.find()}
    assert policies == {
        "cell:heading": "period",
        "cell:words": "period",
        "cell:temperature": "optimal",
        "cell:part": "optimal",
    }


def test_periods_do_not_count_against_the_budget(freshet: Freshet, database: Db) -> None:
    with Pages() as pages:
        for i in range(4):
            pages.file(f"{i}.html", FRONT)
        timed = "".join(
            f'[cells.t{i}]\nurl = "{pages.url}/{i}.html"\ncss = "h1"\nevery = "5m"\n'
            for i in range(3)
        )
        planned = f'[cells.p]\nurl = "{pages.url}/3.html"\ncss = "h1"\n'
        read_cells(freshet, timed + planned)
        assert freshet("replan", "--budget", "1", "--daily-cap", "1").code == 0
        for turn in range(1, 5):
            read_cells(freshet, timed + planned, hours=turn / 5)
    cells = base(database)
    assert [cells[f"t{i}"]["refreshed"] for i in range(3)] == [5, 5, 5]


def test_site_definition_can_define_cells(freshet: Freshet, database: Db) -> None:
    with Pages() as pages:
        pages.list("index.html", ["/item/1.html"])
        pages.item("item/1.html", "One")
        path = freshet.wrapper("shop", start_urls=[f"{pages.url}/index.html"], item_pages="/item/")
        cell = f'\n[cells.first]\nurl = "{pages.url}/index.html"\ncss = "a"\nevery = "5m"\n'
        path.write_text(path.read_text() + cell)
        freshet.crawl(path)
    assert base(database)["first"]["spider"] == "shop"
    assert sorted(database.targets.distinct("kind")) == ["cell", "item", "list"]


def test_a_cell_and_a_spider_can_be_forgotten(freshet: Freshet, database: Db) -> None:
    with Pages() as pages:
        pages.file("front.html", FRONT)
        read_cells(freshet, of_front(pages))
    assert freshet("forget", "cell:part", "--yes").code == 0
    assert set(base(database)) == {"heading", "words", "temperature"}
    assert database.versions.count_documents({"target": "cell:part"}) == 0
    assert freshet("forget", "cells", "--yes").code == 0
    assert base(database) == {}


def test_missing_file_is_a_one_line_error(freshet: Freshet, tmp_path: Path) -> None:
    result = freshet("crawl", "cells", "-a", f"file={tmp_path}/none.toml")
    assert result.code == 1
    assert "none.toml: No such file" in result.complaint


def test_history_and_explain_accept_cell_names(freshet: Freshet, database: Db) -> None:
    with Pages() as pages:
        pages.file("front.html", FRONT)
        read_cells(freshet, of_front(pages))
    assert "cell:words" in freshet("history", "cell:words").out
    assert "fixed period" in freshet("explain", "cell:words").out
    assert "fixed intervals" in freshet("explain", "cell:part").out
