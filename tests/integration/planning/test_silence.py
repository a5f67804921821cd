"""`scrapy silence` and replans: alarms for pages that stopped changing."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crawler.config import Config
from crawler.items import Event
from crawler.planning import silence
from crawler.storage import alarms, sites
from crawler.storage.alarms import Silence
from crawler.storage.client import Database
from crawler.storage.schema import prepare
from crawler.storage.targets import field_history_document, field_history_of, in_minutes
from schedules.history import CHANGE, FIELD_CHANGE, FieldHistory
from tests.integration.harness import Db, Freshet, Pages, Row
from tests.integration.inside import in_json, run
from tests.integration.known_pages import BEGIN, DAY, HOUR, NOW, clock, on, page, put

pytestmark = pytest.mark.usefixtures("warm")
SHOP = "https://shop.example"
NO_RULES = {"shop": None}
Stored = tuple[Db, str]


def regular(days: int = 21) -> list[datetime]:
    """Return changes at 10:00 every two days, for this number of days."""
    return [BEGIN + day * DAY + 10 * HOUR for day in range(0, days, 2)]


def shop(stopped: int, pages: int = 60) -> list[Row]:
    """Return pages; the first `stopped` pages changed only in the first eight days."""
    return [
        page(f"{SHOP}/{i}", regular(8 if i < stopped else 21), visited_at=NOW - HOUR)
        for i in range(pages)
    ]


FIELDS = ("price", "stock")


def page_with_fields(
    url: str, changes: dict[str, list[datetime]], digest: str = "d", **own: object
) -> Row:
    """Return a page like `page` whose fields changed at these times."""
    times = sorted({at for of_field in changes.values() for at in of_field})
    history = FieldHistory("d", in_minutes(BEGIN))
    for at in times:
        names = [name for name, of_field in changes.items() if at in of_field]
        history = history.changed(in_minutes(at), names)
    own |= {"field_history": field_history_document(history), "selector_digest": digest}
    return page(url, times, visited_at=NOW - HOUR, **own)  # type: ignore[arg-type]


def shop_of_fields(stopped: int, pages: int = 60, **own: object) -> list[Row]:
    """Return pages with changing prices; stock changes stopped on the first `stopped` pages."""
    return [
        page_with_fields(
            f"{SHOP}/{i}", {"price": regular(), "stock": regular(8 if i < stopped else 21)}, **own
        )
        for i in range(pages)
    ]


def check(freshet: Freshet, *args: object) -> list[dict[str, Any]]:
    return in_json(freshet, "silence", *args, hours=clock())


def test_page_alarm_lasts_until_the_page_changes(stored: Stored, freshet: Freshet) -> None:
    db, uri = stored
    put(db, uri, shop(stopped=1))
    assert check(freshet) == []
    listed = run(freshet, "silence", hours=clock()).out
    assert "no open alarms in shop. Run scrapy silence --check" in listed

    (alarm,) = check(freshet, "--check")
    assert (alarm["spider"], alarm["target"], alarm["event"]) == ("shop", f"{SHOP}/0", "silent")
    assert alarm["since"] == (BEGIN + 6 * DAY + 10 * HOUR).isoformat()
    assert 0 < alarm["chance"] < 0.05
    assert alarm["text"].startswith("no change since 2026-02-15 10:00 UTC, expected by 2026-02-1")
    assert run(freshet, "silence", "shop", hours=clock(), COLUMNS=60).out == (
        f"2026-02-15 10:00  silent  {SHOP}/0\n    {alarm['text']}\n"
        "1 open alarm in shop, times in UTC\n"
    )

    raised = alarm["at"]
    assert check(freshet, "--check")[0]["at"] == raised, "a second check keeps the alarm"
    (stored_alarm,) = db.alarms.find()
    assert stored_alarm["ended_at"] is None
    db.targets.replace_one({"url": f"{SHOP}/0"}, page(f"{SHOP}/0", regular()))
    assert check(freshet, "--check") == []
    assert db.alarms.find_one()["ended_at"] is not None


def test_only_alarms_that_a_rule_selects_are_marked_for_notifications(
    stored: Stored, tmp_path: Path
) -> None:
    db, uri = stored
    silences = [Silence(name, SHOP, NOW, NOW, 0.001, "no change") for name in ("shop", "blog")]
    file = tmp_path / "notify.toml"

    def record(now: datetime) -> list[str]:
        names = ["shop", "blog"]
        wanted = on(uri, lambda db: sites.wanted_events(db, file, names))
        on(uri, lambda db: alarms.record_silences(db, names, [], now, {}))
        on(uri, lambda db: alarms.record_silences(db, names, silences, now, wanted))
        return [row["spider"] for row in db.alarms.find({"notify": True})]

    assert record(NOW) == []
    db.alarms.delete_many({})
    file.write_text(
        '[[rules]]\nname = "a"\nsites = "shop"\nevents = "silent"\nchannels = "c"\n', "utf-8"
    )
    assert record(NOW) == ["shop"]


def test_rules_of_notifications_are_read_once_for_all_sites(
    stored: Stored, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "notify.toml"
    file.write_text("[[rules]]\n", "utf-8")
    names = [f"site{n}" for n in range(20)]
    wanted = on(stored[1], lambda db: sites.wanted_events(db, file, names))
    assert all(each is not None and each.events == frozenset(Event) for each in wanted.values())
    assert len(caplog.records) == 1


def test_only_sites_with_alarms_are_listed(stored: Stored, freshet: Freshet) -> None:
    db, uri = stored
    other = page("https://quiet.example/", spider="quiet")
    put(db, uri, [*shop(stopped=0), other])
    silences = [Silence("shop", f"{SHOP}/{n}", NOW, NOW, n / 1e6, f"text {n}") for n in range(3)]

    async def record(db: Database) -> int:
        return await alarms.record_silences(db, ["shop"], silences, NOW, NO_RULES)

    assert on(uri, record) == 3
    lines = run(freshet, "silence", "--limit", "2", hours=clock()).out.splitlines()
    assert lines[1::2] == ["    text 0", "    text 1"]
    assert lines[-1] == "2 open alarms in shop, times in UTC; 1 more with --limit N"


def test_many_silent_pages_raise_one_alarm(stored: Stored, freshet: Freshet) -> None:
    put(*stored, shop(stopped=20))
    for _ in range(2):
        (alarm,) = check(freshet, "--check")
        assert (alarm["spider"], alarm["target"]) == ("shop", "")
        assert alarm["text"].startswith("20 pages of 60 with known gaps stopped changing")
    assert stored[0].alarms.count_documents({}) == 1


def test_field_alarm_lasts_until_the_field_changes(stored: Stored, freshet: Freshet) -> None:
    db, uri = stored
    put(db, uri, shop_of_fields(stopped=1))
    (alarm,) = check(freshet, "--check")
    assert (alarm["target"], alarm["field"], alarm["event"]) == (f"{SHOP}/0", "stock", "silent")
    assert alarm["since"] == (BEGIN + 6 * DAY + 10 * HOUR).isoformat()
    assert alarm["text"].startswith("stock: no change since 2026-02-15 10:00 UTC, expected by")
    assert f"stock of {SHOP}/0" in run(freshet, "silence", hours=clock(), COLUMNS=120).out
    assert len(check(freshet, "--check")) == db.alarms.count_documents({}) == 1
    explained = in_json(freshet, "explain", f"{SHOP}/0", hours=clock())
    assert explained["reasons"][0].startswith("Open alarm: stock: no change since")
    db.targets.replace_one({"url": f"{SHOP}/0"}, shop_of_fields(stopped=0)[0])
    assert check(freshet, "--check") == []


def test_fields_are_checked_in_batches(
    stored: Stored, freshet: Freshet, monkeypatch: pytest.MonkeyPatch
) -> None:
    db, uri = stored
    rows = shop_of_fields(stopped=0)
    late = {"stock": regular(8), "price": regular()}
    rows[50] = page_with_fields(f"{SHOP}/50", late)
    put(db, uri, rows)
    monkeypatch.setattr(silence, "PAGES_AT_ONCE", 7)
    monkeypatch.setattr(silence, "MAX_SAMPLED_PAGES", 30)

    async def work(db: Database) -> int:
        return await silence.check_silences(db, Config.load(mongo_uri=uri), NOW, ["shop"])

    assert on(uri, work) == 1
    (alarm,) = db.alarms.find()
    assert (alarm["target"], alarm["field"]) == (f"{SHOP}/50", "stock")


def test_field_silent_on_many_pages_raises_one_alarm(stored: Stored, freshet: Freshet) -> None:
    put(*stored, shop_of_fields(stopped=20))
    for _ in range(2):
        (alarm,) = check(freshet, "--check")
        assert (alarm["spider"], alarm["target"], alarm["field"]) == ("shop", "", "stock")
        assert alarm["text"].startswith("stock of 20 pages of 60 with known gaps stopped changing")
    assert stored[0].alarms.count_documents({}) == 1


def test_silent_page_raises_one_alarm_for_all_fields(stored: Stored, freshet: Freshet) -> None:
    rows = shop_of_fields(stopped=0)
    rows[0] = page_with_fields(f"{SHOP}/0", dict.fromkeys(FIELDS, regular(8)))
    put(*stored, rows)
    assert [alarm["field"] for alarm in check(freshet, "--check")] == [""]


def test_fields_of_old_selectors_are_not_checked(stored: Stored, freshet: Freshet) -> None:
    put(*stored, shop_of_fields(stopped=1, digest="edited"))
    assert check(freshet, "--check") == []


def test_replan_checks_for_silence_but_dry_run_does_not(stored: Stored, freshet: Freshet) -> None:
    put(*stored, shop(stopped=1))
    for options, count in ((["--dry-run"], 0), ([], 1)):
        done = run(freshet, "replan", "--budget", "60/day", *options, hours=clock())
        assert done.code == 0, done.err
        assert stored[0].alarms.count_documents({}) == count


def test_open_alarm_is_explained_and_counted(stored: Stored, freshet: Freshet) -> None:
    db, uri = stored
    put(db, uri, shop(stopped=1))
    assert len(check(freshet, "--check")) == 1
    explained = in_json(freshet, "explain", f"{SHOP}/0", hours=clock())
    assert explained["reasons"][0].startswith("Open alarm: no change since 2026-02-15 10:00 UTC")
    assert "Open alarm" not in str(in_json(freshet, "explain", f"{SHOP}/1", hours=clock()))
    assert on(uri, lambda adb: alarms.count_open(adb, ["shop", "other"])) == {"shop": 1}


def test_alarms_can_be_disabled(stored: Stored, freshet: Freshet) -> None:
    put(*stored, shop(stopped=1))
    off = {"FRESHET_SILENCE_FALSE_ALARMS_PER_WEEK": 0}
    done = run(freshet, "silence", "--check", hours=clock(), **off)
    assert done.code == 1
    assert "silence alarms are off. Set FRESHET_SILENCE_FALSE_ALARMS_PER_WEEK" in done.err
    missing = run(freshet, "silence", "nosuch", hours=clock())
    assert (missing.code, "no targets of 'nosuch'" in missing.err) == (1, True)


def test_forgetting_a_page_deletes_its_alarms(stored: Stored, freshet: Freshet) -> None:
    put(*stored, shop(stopped=1))
    assert len(check(freshet, "--check")) == 1
    done = run(freshet, "forget", f"{SHOP}/0", "--yes", hours=clock())
    assert done.code == 0, done.err
    assert stored[0].alarms.count_documents({}) == 0


@pytest.mark.parametrize("replans", [False, True])
def test_alarms_of_a_site_without_watched_pages_end(
    replans: bool, stored: Stored, freshet: Freshet
) -> None:
    db, uri = stored
    news = [page(f"https://news.example/{i}", regular(), spider="news") for i in range(60)]
    put(db, uri, [*shop(stopped=1), *news])
    assert len(check(freshet, "--check")) == 1
    db.targets.update_many({"spider": "shop"}, {"$set": {"gone": True}})
    if replans:
        assert run(freshet, "replan", "--budget", "60/day", hours=clock()).code == 0
        assert check(freshet) == []
    else:
        assert check(freshet, "--check") == []


def test_muting_a_page_ends_its_alarms(stored: Stored, freshet: Freshet) -> None:
    put(*stored, shop(stopped=2))
    assert len(check(freshet, "--check")) == 2
    assert run(freshet, "targets", "mute", f"{SHOP}/0", hours=clock()).code == 0
    assert [alarm["target"] for alarm in check(freshet)] == [f"{SHOP}/1"]
    assert run(freshet, "targets", "unmute", f"{SHOP}/0", hours=clock()).code == 0
    assert len(check(freshet, "--check")) == 2


def test_alarms_are_bounded_and_expire_after_a_year(
    stored: Stored,
) -> None:
    db, uri = stored
    on(uri, prepare)
    silences = [
        Silence("shop", f"{SHOP}/{i}", BEGIN, NOW, i / 10_000, "no change") for i in range(1200)
    ]

    async def record(db: Database) -> tuple[int, int, int]:
        first = await alarms.record_silences(db, ["shop"], silences, NOW, NO_RULES)
        again = await alarms.record_silences(db, ["shop"], silences, NOW, NO_RULES)
        shown = await alarms.open_alarms(db, ["shop"])
        assert shown[0]["target"] == f"{SHOP}/0"
        return first, again, len(shown)

    assert on(uri, record) == (1000, 0, 1000)
    for later, left in ((0, 1000), (364, 1000), (366, 0)):
        at = NOW + timedelta(days=later)
        on(uri, lambda db, at=at: alarms.record_silences(db, ["shop"], [], at, NO_RULES))
        assert db.alarms.count_documents({}) == left


def test_a_crawl_stores_which_fields_changed(freshet: Freshet, pages: Pages, database: Db) -> None:
    keys = {"item_pages": "/item-", "fields": {"title": "h1", "price": "b", "stock": "i"}}
    shop = freshet.wrapper("shop", start_urls=[f"{pages.url}/item-a.html"], **keys)
    for number, (price, stock) in enumerate(((1, 5), (2, 5), (3, 4))):
        pages.file("item-a.html", f"<h1>A</h1><b>{price}</b><i>{stock}</i>")
        freshet.crawl(shop, hours=200 * number)
    row = database.targets.find_one({"spider": "shop"})
    stored = field_history_of(row["field_history"])
    assert stored is not None
    assert stored.names == ("price", "stock")
    changes = np.frombuffer(stored.changes, FIELD_CHANGE)
    assert changes["fields"].tolist() == [0b01, 0b11]
    found = np.frombuffer(row["history"]["changes"], CHANGE)
    assert changes["by"].tolist() == found["by"].tolist()
    assert row["field_history"]["digest"] == row["selector_digest"]
