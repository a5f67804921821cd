"""`scrapy targets --urls`, and suggestions of similar URLs for unknown ones."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from crawler.items import Kind
from crawler.storage import target_queries
from crawler.storage.client import Database
from crawler.storage.site_queries import TargetFilter, TargetStatus, query_of
from crawler.storage.targets import new_document
from tests.integration.harness import Db, Freshet, Row
from tests.integration.inside import run
from tests.integration.known_pages import on

NOW = datetime.now(UTC).replace(microsecond=0)
DAY = timedelta(days=1)
SHOP = "https://www.shop.example"


@pytest.fixture
def prepared(stored: tuple[Db, str]) -> Db:
    return stored[0]


def target(url: str, *, spider: str = "shop", hours: float = 5, **own: object) -> Row:
    """Return a target that was visited an hour ago and is due in `hours`."""
    row = new_document(spider, url, Kind.ITEM, NOW + timedelta(hours=hours), NOW - DAY)
    seen = {"visited_at": NOW - timedelta(hours=1), "outcome": "unchanged", "requested": 1}
    return row | seen | own


def put(db: Db, url: str, **own: Any) -> None:
    """Store a target."""
    db.targets.insert_one(target(url, **own))


def some(db: Db) -> None:
    put(db, f"{SHOP}/a")
    put(db, f"{SHOP}/b", hours=-1)
    failed = {"outcome": "error", "last_visit": {"reason": "status 500", "status": 500}}
    put(db, f"{SHOP}/c", consecutive_errors=3, **failed)
    put(db, f"{SHOP}/d", gone=True, outcome="gone")
    put(db, f"{SHOP}/Old/e", spider="news", consecutive_errors=1, **failed)


def paths(freshet: Freshet, *words: object) -> list[str]:
    """Return the listed paths from the JSON."""
    done = run(freshet, "targets", *words, "--json")
    assert done.code == 0, done.err
    return [row["url"].partition(".example")[2] for row in json.loads(done.out)]


def test_targets_are_filtered_by_state_and_url(freshet: Freshet, prepared: Db) -> None:
    some(prepared)
    assert paths(freshet, "--urls") == ["/Old/e", "/a", "/b", "/c", "/d"]
    assert paths(freshet, "shop", "--urls") == ["/a", "/b", "/c", "/d"]
    assert paths(freshet, "--errors") == ["/c", "/Old/e"]
    assert paths(freshet, "news", "--urls", "--errors") == ["/Old/e"]
    assert paths(freshet, "--due") == ["/b"]
    assert paths(freshet, "shop", "--gone") == ["/d"]
    assert paths(freshet, "--match", "OLD/") == ["/Old/e"]
    assert paths(freshet, "shop", "--match", "https*/c") == ["/c"]
    assert paths(freshet, "--errors", "--match", "/old") == ["/Old/e"]
    assert paths(freshet, "shop", "--match", "shop /") == [], "matches the key, not the URL"


def test_text_output_has_one_line_per_target(freshet: Freshet, prepared: Db) -> None:
    some(prepared)
    line, total = run(freshet, "targets", "shop", "--errors").out.splitlines()
    start = f"{SHOP}/c  item of shop, error 3 times in a row: status 500 at "
    assert line.startswith(f"{start}{NOW - DAY / 24:%Y-%m-%d %H}")
    assert total == "1 of 1 target, times in UTC"


def test_output_reports_remaining_targets(freshet: Freshet, prepared: Db) -> None:
    some(prepared)
    done = run(freshet, "targets", "shop", "--urls", "--limit", "2")
    assert done.out.splitlines()[-1] == (
        "2 of 4 targets, times in UTC. 2 more with --limit N or --skip 2"
    )
    assert paths(freshet, "shop", "--urls", "--skip", "3") == ["/d"]
    nothing = run(freshet, "targets", "shop", "--urls", "--skip", "4")
    assert nothing.out == "no targets after the first 4\n"


def test_empty_lists_are_reported(freshet: Freshet, prepared: Db) -> None:
    put(prepared, f"{SHOP}/a")
    assert run(freshet, "targets", "--errors").out == "no targets whose last visit failed\n"
    words = ("targets", "--gone", "--match", "x")
    assert run(freshet, *words).out == "no targets that are gone and match 'x'\n"
    done = run(freshet, *words, "--json")
    assert (done.out, done.err) == ("[]\n", "")
    assert "no targets of 'shpo'. Did you mean shop?" in (
        run(freshet, "targets", "shpo", "--urls").complaint
    )


@pytest.mark.parametrize(
    ("spider", "state", "match", "examined"),
    [
        ("shop", TargetStatus.ERROR, None, 5), (None, TargetStatus.ERROR, None, 10),
        ("shop", TargetStatus.GONE, None, 5), (None, TargetStatus.GONE, None, 10),
        ("shop", TargetStatus.DUE, None, 20), (None, TargetStatus.DUE, None, 20),
        ("shop", None, None, 20), (None, None, None, 20),
        ("shop", None, "/7", 20), (None, None, "/7", 20),
    ],
)  # fmt: skip
def test_lists_use_indexes(
    spider: str | None,
    state: TargetStatus | None,
    match: str | None,
    examined: int,
    stored: tuple[Db, str],
) -> None:
    """Listing 20 of 2 x 400 targets examines at most 20 documents and needs no sort stage."""
    db, uri = stored
    rows = []
    for name in ("news", "shop"):
        for k in range(400):
            own: Row = {"gone": True} if k % 80 == 1 else {}
            own |= {"consecutive_errors": 1} if k % 80 == 2 else {}
            rows.append(target(f"{SHOP}/{k}", spider=name, hours=-1, **own))
    db.targets.insert_many(rows)
    wanted = TargetFilter(status=state, text=match)
    indexed, order, rest = query_of(spider, wanted, NOW, ["news", "shop"])
    query = {"$and": [indexed, rest]}

    async def listed(adb: Database) -> list[Row]:
        return await target_queries.listed(adb, query, order, 0, 20)

    db.command("profile", 2)
    rows = on(uri, listed)
    db.command("profile", 0)
    assert rows
    (done,) = db.system.profile.find({"op": "query"})
    assert done["docsExamined"] <= examined
    assert "hasSortStage" not in done


@pytest.mark.parametrize(
    ("unknown", "known"),
    [
        (f"{SHOP}/news/", f"{SHOP}/news"),
        (f"{SHOP}/news", f"{SHOP}/news/index.html"),
        (f"{SHOP}/news/index.html", f"{SHOP}/news/"),
        ("http://www.shop.example/news", f"{SHOP}/news"),
        ("https://shop.example/news", f"{SHOP}/news"),
        (f"{SHOP}/News/ITEM", f"{SHOP}/news/item"),
        (f"{SHOP}/news/item", f"{SHOP}/News/Item"),
        (f"{SHOP}/news?page=2", f"{SHOP}/news"),
        (f"{SHOP}/news/some-itme-of-today", f"{SHOP}/news/some-item-of-today"),
    ],
)
def test_unknown_url_suggests_the_nearest_known_one(
    unknown: str, known: str, freshet: Freshet, prepared: Db
) -> None:
    others = [target(f"{SHOP}/catalogue/{k}/thing.html") for k in range(300)]
    prepared.targets.insert_many([target(known), *others])
    for command in ("explain", "history", "forget"):
        done = run(freshet, command, unknown)
        assert (done.code, done.complaint) == (
            1, f"scrapy {command}: URL not found: {unknown}. Did you mean {known}?",
        )  # fmt: skip


def test_a_url_without_its_scheme_gets_the_nearest_known_one(
    freshet: Freshet, prepared: Db
) -> None:
    put(prepared, f"{SHOP}/news")
    for command in ("explain", "history"):
        complaint = run(freshet, command, "shop.example/news").complaint
        assert complaint.endswith(f"URL not found: shop.example/news. Did you mean {SHOP}/news?")


def test_tracking_parameters_and_fragments_are_ignored(freshet: Freshet, prepared: Db) -> None:
    put(prepared, f"{SHOP}/news")
    assert run(freshet, "history", f"{SHOP}/news?utm_source=x#top").code == 0
    assert run(freshet, "forget", f"{SHOP}/news?utm_source=x#top", "--yes").code == 0
    assert prepared.targets.count_documents({}) == 0


def test_dissimilar_url_gets_no_suggestion(freshet: Freshet, prepared: Db) -> None:
    put(prepared, f"{SHOP}/news")
    assert "Did you mean" not in run(freshet, "explain", f"{SHOP}/nosuch").complaint
    done = run(freshet, "explain", "https://other.example/a")
    assert done.complaint == (
        "scrapy explain: URL not found: https://other.example/a. "
        "scrapy targets --urls --match other.example lists known URLs"
    )
    unknown = run(freshet, "forget", "shpo")
    assert unknown.complaint == ("scrapy forget: no data stored for 'shpo'. Did you mean shop?")


def test_nearest_url_reads_only_index_keys(stored: tuple[Db, str]) -> None:
    db, uri = stored
    rows = [
        new_document("shop", f"{SHOP}/folder/{k:05}.html", Kind.ITEM, NOW, NOW)
        for k in range(20_000)
    ]
    db.targets.insert_many(rows)

    async def near(adb: Database) -> list[str]:
        from crawler.storage.target_queries import nearest

        return await nearest(adb, f"{SHOP}/folder/10000.htm", ("targets",))

    db.command("profile", 2)
    found = on(uri, near)
    db.command("profile", 0)
    assert found[0] == f"{SHOP}/folder/10000.html"
    done = list(db.system.profile.find({"op": {"$in": ["query", "getmore"]}}))
    assert sum(one["docsExamined"] for one in done) == 0, "read documents"
    assert sum(one["keysExamined"] for one in done) < 5000
