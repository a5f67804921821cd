"""A crawl marks visits with events that match the rules, in the write that stores the visit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.harness import Db, Freshet, Pages, target

RULE = '[[rules]]\nname = "shop"\nevents = ["changed", "gone"]\nchannels = "phone"\n'


@pytest.fixture
def shop(freshet: Freshet, pages: Pages, tmp_path: Path) -> Path:
    """Return a site definition with one item; set the path of the rules file."""
    pages.item("item-a.html", "A")
    freshet.env["FRESHET_NOTIFY_FILE"] = str(tmp_path / "notify.toml")
    return freshet.wrapper("shop", start_urls=[f"{pages.url}/item-a.html"], item_pages="/item-")


def marked(database: Db) -> list[list[str]]:
    """Return the events of the marked visits, in the order of the visits."""
    return [row["events"] for row in database.visits.find({"notify": True}).sort("at")]


def test_only_events_of_rules_are_marked(
    freshet: Freshet, pages: Pages, database: Db, shop: Path, tmp_path: Path
) -> None:
    (tmp_path / "notify.toml").write_text(RULE, encoding="utf-8")
    freshet.crawl(shop)
    assert marked(database) == []
    pages.item("item-a.html", "B")
    freshet.crawl(shop, hours=200)
    assert marked(database) == [["changed"]]
    url = f"{pages.url}/item-a.html"
    assert target(database, url)["last_visit"]["notify"] is True
    # A crash before the change log is written: the next run copies the visit with its mark.
    database.visits.delete_many({"notify": True})
    database.runs.update_many({}, {"$unset": {"finished": ""}})
    freshet.crawl(shop, hours=200, code=0)
    assert marked(database) == [["changed"]]


def test_invalid_rules_file_keeps_all_events(
    freshet: Freshet, pages: Pages, database: Db, shop: Path, tmp_path: Path
) -> None:
    (tmp_path / "notify.toml").write_text("[[rules]]\nname = 1\n", encoding="utf-8")
    freshet.crawl(shop)
    assert marked(database) == []
    pages.item("item-a.html", "B")
    done = freshet.crawl(shop, hours=200)
    assert marked(database) == [["changed"]]
    assert done.err.count("Rules of notifications are invalid, all events are kept") == 1


def test_no_visits_are_marked_without_rules(freshet: Freshet, database: Db, shop: Path) -> None:
    freshet.crawl(shop)
    assert database.visits.count_documents({}) == 1
    assert marked(database) == []
