"""`scrapy targets recheck`, `mute`, `unmute` and `limits`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from crawler.items import Kind
from crawler.storage.targets import new_document
from crawler.utils.time import NEVER
from tests.integration.harness import Db, Freshet, Row, target
from tests.integration.inside import run

NOW = datetime.now(UTC).replace(microsecond=0)
HOUR = timedelta(hours=1)
ONE, TWO = "https://shop.example/1", "https://shop.example/2"


@pytest.fixture
def db(database: Db) -> Db:
    """Return a database with two targets that are due in an hour."""
    for url in (ONE, TWO):
        put(database, "shop", url)
    return database


def put(db: Db, spider: str, url: str, **own: object) -> None:
    row: Row = new_document(spider, url, Kind.ITEM, NOW + HOUR, NOW - 9 * HOUR)
    db.targets.insert_one(row | {"visited_at": NOW - HOUR} | own)


def printed(freshet: Freshet, *args: object) -> str:
    done = run(freshet, "targets", *args)
    assert (done.code, done.err) == (0, ""), done.err
    return done.out


def complaint(freshet: Freshet, *args: object) -> str:
    done = run(freshet, "targets", *args)
    assert (done.code, done.out) == (1, "")
    return done.complaint


def test_recheck_makes_targets_due(db: Db, freshet: Freshet) -> None:
    db.targets.update_one({"url": ONE}, {"$set": {"dead_lettered_at": NOW}})
    key = f"shop {ONE}"
    db.dead_letters.insert_one({"_id": key, "spider": "shop", "url": ONE, "at": NOW, "leases": 3})
    assert printed(freshet, "recheck", ONE, TWO).splitlines() == [
        f"{url}  item of shop, due: the next run visits it" for url in (ONE, TWO)
    ]
    assert all(row["next_visit"] <= datetime.now(UTC) for row in db.targets.find())
    assert db.dead_letters.count_documents({}) == 0


def test_a_muted_target_is_listed_until_it_is_unmuted(db: Db, freshet: Freshet) -> None:
    shown = printed(freshet, "mute", ONE)
    assert shown == f"{ONE}  item of shop, muted: not visited until scrapy targets unmute\n"
    assert target(db, ONE)["next_visit"] == NEVER
    assert ONE in printed(freshet, "shop", "--muted")
    assert TWO not in printed(freshet, "--muted")
    assert complaint(freshet, "recheck", TWO, ONE) == (
        f"scrapy targets: {ONE}: this target cannot be visited: it is muted. Unmute it first"
    )
    assert target(db, TWO)["next_visit"] == NOW + HOUR, "no target changes if one cannot"
    assert "due: the next run" in printed(freshet, "unmute", ONE)
    assert "muted_at" not in target(db, ONE)
    assert "no targets that are muted" in printed(freshet, "--muted")


def test_targets_without_a_next_visit_have_no_date(db: Db, freshet: Freshet) -> None:
    # The page of a feed post is fetched once.
    db.targets.update_one({"url": ONE}, {"$set": {"next_visit": NEVER, "post": "feeds post"}})
    printed(freshet, "mute", TWO)
    assert "no next visit" in printed(freshet, "--match", ONE)
    for command in ("history", "explain"):
        for url in (ONE, TWO):
            done = run(freshet, command, url)
            assert done.code == 0, done.err
            assert "9999" not in done.out
            assert "none" in done.out


def test_limits_can_be_shown_set_and_removed(db: Db, freshet: Freshet) -> None:
    assert "visited" not in printed(freshet, "limits", ONE)
    shown = printed(freshet, "limits", ONE, "--min", "6h", "--max", "2d")
    assert "item of shop, visited at most every 6 hours, visited at least every 2 days" in shown
    assert target(db, ONE)["next_visit"] == NOW + 5 * HOUR
    printed(freshet, "limits", ONE, "--min", "12h")
    assert target(db, ONE)["limits"] == {"min_hours": 12.0, "max_hours": 48.0}
    shown = printed(freshet, "limits", ONE, "--min", "none")
    assert "visited at least every 2 days" in shown
    assert target(db, ONE)["limits"] == {"max_hours": 48.0}
    printed(freshet, "limits", ONE, "--max", "none")
    assert "limits" not in target(db, ONE)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--min", "soon"], "--min: invalid duration: 'soon'. Examples: 90m, 6h, 2d, 1w"),
        (["--min", "10m"], f"{ONE}: --min: too short: every 10 minutes. Use 1 hour or more"),
        (
            ["--min", "2d", "--max", "1d"],
            f"{ONE}: --max: shorter than the minimum. Raise it, or lower the minimum",
        ),
    ],
)
def test_invalid_limits_are_rejected(
    options: list[str], problem: str, db: Db, freshet: Freshet
) -> None:
    assert complaint(freshet, "limits", ONE, *options) == f"scrapy targets: {problem}"
    assert "limits" not in target(db, ONE)


def test_url_must_match_exactly_one_target(db: Db, freshet: Freshet) -> None:
    assert f"URL not found: {ONE}1" in complaint(freshet, "mute", f"{ONE}1")
    put(db, "other", ONE)
    assert "Use --spider NAME, one of: other, shop" in complaint(freshet, "mute", ONE)
    assert "item of other, muted" in printed(freshet, "mute", ONE, "--spider", "other")
    assert db.targets.count_documents({"muted_at": {"$exists": True}}) == 1


def test_error_names_the_spiders_that_visit_a_url(db: Db, freshet: Freshet) -> None:
    assert complaint(freshet, "mute", ONE, "--spider", "shpo") == (
        f"scrapy targets: 'shpo' does not visit {ONE}. Use --spider NAME, one of: shop"
    )
    assert "muted_at" not in target(db, ONE)


def test_unknown_action_is_treated_as_spider(db: Db, freshet: Freshet) -> None:
    assert printed(freshet, "shop") == printed(freshet, "list", "shop")
    assert "no targets of 'nosuch'" in complaint(freshet, "nosuch")
    done = run(freshet, "targets", "mute")
    assert done.code == 2
    assert "URL" in done.err
