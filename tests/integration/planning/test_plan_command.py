"""`scrapy plan`: frequency classes, timetable, load, freshness, changes and weekly heat map."""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from bson import ObjectId

from tests.integration.harness import Db, Freshet, Result, Row
from tests.integration.inside import in_json, run
from tests.integration.known_pages import NOW, clock, of_the_paper, on, page, put, spread

pytestmark = pytest.mark.usefixtures("warm")
SHOP = "https://shop.example"
Stored = tuple[Db, str]


def scrapy(freshet: Freshet, *args: object, **env: object) -> Result:
    """Run a command at NOW and check that it succeeds."""
    done = run(freshet, *args, hours=clock(), COLUMNS=100, **env)
    assert (done.code, done.err) == (0, ""), done.err
    return done


def plan_of(freshet: Freshet, *args: object) -> Row:
    return in_json(freshet, "plan", *args, hours=clock())


def test_timetable_matches_the_paper(stored: Stored, freshet: Freshet) -> None:
    put(*stored, of_the_paper())
    scrapy(freshet, "replan", "--policy", "groups6")
    shown = scrapy(freshet, "plan").out
    for times, pages in {
        "daily 00:00": ["u1"],
        "Mon,Wed,Fri 00:00": ["u2", "u3", "u4", "u5", "u10", "u11"],
        "Sat 12:00": ["u6", "u7", "u8", "u9", "u12", "u15"],
        "2nd and 4th Sat 00:00": ["u13"],
        "3rd Sat 00:00": ["u14"],
    }.items():
        cell = shown.partition(f"│ {times} ")[2].splitlines()[: len(pages)]
        assert {line.rpartition("/")[2].strip(" │") for line in cell} == set(pages), times

    plan = plan_of(freshet, "shop")
    assert {row["frequency_class"]: row["targets"] for row in plan["groups"]} == {
        "G7": 1, "G3": 6, "G1": 6, "2G1": 1, "4G1": 1,
    }  # fmt: skip
    per_day = (7 + 6 * 3 + 6 + 0.5 + 0.25) / 7
    assert plan["totals"]["requests_per_day"] == pytest.approx(per_day, abs=1e-3)
    assert plan["totals"]["load"] == pytest.approx(per_day / 15, abs=1e-4)
    assert plan["totals"]["daily"]["requests_per_day"] == 15
    week = plan["timetable"]
    assert (week["Mon"][0], week["Sat"][12], week["Sat"][0]) == (7, 6, 1.75)
    assert sum(map(sum, week.values())) == pytest.approx(per_day * 7)
    assert (plan["targets"], plan["unplanned"], len(plan["pages"])) == (15, 0, 15)


def test_many_pages_are_counted_by_weekday_and_time(stored: Stored, freshet: Freshet) -> None:
    db, uri = stored
    put(db, uri, [page(f"{SHOP}/{i}", spread(i % 22, 10)) for i in range(60)])
    scrapy(freshet, "replan", "--policy", "groups")
    db.targets.update_one({"url": f"{SHOP}/0"}, {"$unset": {"plan": ""}})
    shown = scrapy(freshet, "plan", "shop").out
    assert "60 targets; " in shown
    assert "1 not planned until the next replan" in shown
    (header,) = [line for line in shown.splitlines() if "00:00" in line]
    assert header.split("┃")[2].strip() == "00:00", "the pages change by day"
    days = [line.split("│")[1].strip() for line in shown.splitlines() if line.startswith("│")]
    assert [day for day in days if day in ("Mon", "Sun", "all")] == ["Mon", "Sun", "all"]
    assert plan_of(freshet)["pages"] is None

    scrapy(freshet, "replan", "--policy", "uniform", "--budget", "30", "--hourly-cap", "3")
    shown = scrapy(freshet, "plan").out
    later = (
        "crawls of shop make at most 3 requests an hour; visits above that are made in later hours"
    )
    assert later in " ".join(shown.split())
    assert "60 targets visited at even intervals: 30.0 requests a day, at any hour" in shown


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        ("", "no plan yet. Run scrapy replan first"),
        ("nosuch", "no targets of 'nosuch'. Spiders with targets: shop"),
        ("--calendar week.pdf", "week.pdf: unsupported plot format. Use .png or .svg"),
        ("--calendar nosuch/week.png", "nosuch/week.png: folder not found: nosuch"),
        ("--changes --urls 0", "--urls and --weeks must be greater than 0"),
        ("--changes --weeks nan", "--urls and --weeks must be greater than 0"),
    ],
    ids=["no plan", "unknown", "kind", "folder", "urls", "weeks"],
)
def test_errors_are_one_line(args: str, complaint: str, stored: Stored, freshet: Freshet) -> None:
    put(*stored, [page(f"{SHOP}/1")])
    done = run(freshet, "plan", *args.split())
    assert (done.code, done.out, done.complaint) == (1, "", f"scrapy plan: {complaint}")


def test_plan_made_with_a_fast_clock_begins_later(stored: Stored, freshet: Freshet) -> None:
    put(*stored, [page(f"{SHOP}/1")])
    assert run(freshet, "replan", "--policy", "groups", hours=clock() + 72).code == 0
    done = run(freshet, "plan", hours=clock())
    begins = stored[0].plans.find_one()["at"]
    assert (done.code, done.out, done.complaint) == (1, "", (
        "scrapy plan: no current plan: scrapy replan ran with a clock that was ahead, so its plan "
        f"begins at {begins:%Y-%m-%d %H:%M} UTC (in 3 days). Run scrapy replan again to plan from "
        "now on"
    ))  # fmt: skip
    scrapy(freshet, "replan", "--policy", "groups")
    assert plan_of(freshet)["targets"] == 1


def visit(url: str, at: datetime, **own: Any) -> Row:
    usual = {
        "_id": ObjectId(), "spider": "shop", "target": f"{SHOP}/{url}", "at": at,
        "outcome": "changed", "changed": 1, "event": True, "update_size": 10, "diff_size": 3,
    }  # fmt: skip
    return usual | own


def test_changes_are_counted_in_site_time(stored: Stored, freshet: Freshet) -> None:
    db, uri = stored
    put(db, uri, [page(f"{SHOP}/{name}") for name in ("a", "b")])
    db.sites.insert_one(site("Europe/Berlin"))
    # Daylight saving time began on Sunday 2025-03-30: 23:30 UTC is 00:30 before and 01:30 after.
    saturday = datetime(2025, 3, 28, 23, 30, tzinfo=UTC)
    db.visits.insert_many([
        visit("a", saturday), visit("a", saturday + timedelta(days=7)),
        visit("a", saturday + timedelta(days=7), update_size=100, diff_size=7),
        visit("b", saturday + timedelta(hours=10)),
        visit("b", saturday, changed=0, outcome="unchanged"),
        visit("b", saturday, spider="blog"),
    ])  # fmt: skip
    (changes,) = plan_of(freshet, "shop", "--changes")["changes"]
    assert changes["timezone"] == "Europe/Berlin"
    assert changes["total"] == {"changes": 4, "update_size": 130, "diff_size": 16}
    saturdays = changes["changes"]["Sat"]
    assert {hour: n for hour, n in enumerate(saturdays) if n} == {0: 1, 1: 2, 10: 1}
    assert changes["update_size"]["Sat"][1] == 110
    first, second = changes["urls"]
    assert (first["url"], first["changes"], first["weekdays"]["Sat"]) == (f"{SHOP}/a", 3, 3)
    assert (first["hours"][1], first["diff_size"], second["changes"]) == (2, 13, 1)

    (changes,) = plan_of(freshet, "shop", "--changes", "--urls", "1")["changes"]
    assert [row["url"] for row in changes["urls"]] == [f"{SHOP}/a"]
    weeks = (NOW - saturday) / timedelta(weeks=1) - 0.5
    (changes,) = plan_of(freshet, "shop", "--changes", "--weeks", weeks)["changes"]
    assert changes["total"]["changes"] == 2

    shown = scrapy(freshet, "plan", "shop", "--changes").out
    assert "4 changes found, counted at the hour of the visit that found them" in shown
    assert "/a " in shown
    assert SHOP not in shown, "the common prefix of the URLs is omitted"
    assert "characters inserted and deleted" in shown


def site(timezone: str) -> Row:
    usual = {
        "visiting_hours": [],
        "blackout": [],
        "weight": 1.0,
        "weights": [],
        "cost": 1.0,
        "at": NOW,
    }
    return {"_id": "shop", "timezone": timezone} | usual


def test_unknown_time_zone_is_sent_as_utc_offset(
    stored: Stored,
) -> None:
    from zoneinfo import ZoneInfo

    from crawler.storage import visits

    class UnknownZone(ZoneInfo):
        """Use a zone name that is too new for the server."""

        def __str__(self) -> str:
            return "Mars/Base"

    db, uri = stored
    put(db, uri, [page(f"{SHOP}/a")])
    db.visits.insert_one(visit("a", datetime(2025, 3, 28, 23, 45, tzinfo=UTC)))
    zone = UnknownZone.no_cache("Asia/Kolkata")
    (row,) = on(uri, lambda adb: visits.by_hour(adb, "shop", zone))
    assert row == {"day": 5, "hour": 5, "changes": 1, "update_size": 10, "diff_size": 3}


def test_no_changes_yet(stored: Stored, freshet: Freshet) -> None:
    put(*stored, [page(f"{SHOP}/1")])
    done = freshet("plan", "--changes", hours=clock())
    assert (done.code, done.err) == (0, "")
    assert "shop: 0 changes found" in done.out


@pytest.mark.soak
def test_heat_map_is_written_as_png_and_svg(
    stored: Stored, freshet: Freshet, tmp_path: Path
) -> None:
    put(*stored, of_the_paper())
    scrapy(freshet, "replan")
    png, svg = tmp_path / "week.png", tmp_path / "week.svg"
    assert f"heat map written to {png}" in "".join(
        scrapy(freshet, "plan", "--calendar", png).out.split("\n")
    )
    head = png.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:24])
    assert min(width, height) > 1000
    assert plan_of(freshet, "shop", "--calendar", svg)["calendar"] == str(svg)
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
