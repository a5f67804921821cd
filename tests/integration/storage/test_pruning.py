"""`scrapy prune`: deletions with the default settings, and data that must be kept."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from bson import ObjectId

from crawler.storage import pruning
from crawler.storage.client import Database
from crawler.storage.posts import VersionDeletion
from crawler.storage.readers import Reader, document_of
from tests.integration.harness import Db, Freshet, Row
from tests.integration.inside import in_json, run
from tests.integration.known_pages import on

NOW = datetime.fromisoformat("2026-11-01T12:00:00+00:00")
DAY = timedelta(days=1)
URL = "https://shop.example/a"
KEY = f"shop {URL}"


def ago(days: float) -> datetime:
    return NOW - days * DAY


def insert(db: Db, name: str, *rows: Row) -> list[Any]:
    result = db.get_collection(name).insert_many(
        [{"spider": "shop"} | row for row in rows], bypass_document_validation=True
    )
    return result.inserted_ids


def put_target(db: Db, **fields: Any) -> None:
    row = {"_id": KEY, "url": URL, "kind": "item", "first_seen": ago(2000), "next_visit": NOW}
    insert(db, "targets", row | fields)


def visit(days: float) -> Row:
    return {"target": URL, "outcome": "unchanged", "changed": 0, "at": ago(days)}


def prune(freshet: Freshet, *words: str) -> Any:
    hours = (NOW - datetime.now(NOW.tzinfo)) / timedelta(hours=1)
    return in_json(freshet, "prune", *words, hours=hours)


def test_default_settings_bound_all_collections(freshet: Freshet, stored: tuple[Db, str]) -> None:
    db, _ = stored
    put_target(db)
    insert(db, "visits", visit(400), visit(366), visit(300))
    insert(db, "days", *({"target": URL, "day": ago(n)} for n in (1200, 1100, 1000)))
    insert(db, "versions", *({"target": URL, "content_hash": n, "at": ago(n)} for n in range(25)))
    insert(db, "runs", *({"started": ago(n), "finished": ago(n)} for n in (200, 91, 89)))
    alarm = {"target": URL, "event": "silent"}
    insert(db, "alarms", *(alarm | {"ended_at": end} for end in (ago(366), ago(364), None)))
    sent = {"channel": "mail", "state": "delivered"}
    insert(db, "outbox", *(sent | {"delivered_at": ago(n)} for n in (8, 6)))
    db.hosts.insert_many({"_id": f"{n}.example", "hold_until": ago(n)} for n in (1, -1))
    deleted = {
        "spiders": {
            "shop": {"versions": 5, "visits": 2, "aggregates": 2, "runs": 2, "kept_bytes": 20 * 5}
        },
        "shared": {"plans": 0, "alarms": 1, "messages": 1, "hosts": 1},
    }
    assert prune(freshet, "--dry-run") == {"dry_run": True} | deleted
    assert prune(freshet) == {"dry_run": False} | deleted
    again = prune(freshet)
    assert not any(again["shared"].values())
    assert {name: n for name, n in again["spiders"]["shop"].items() if n} == {"kept_bytes": 100}
    assert [row["content_hash"] for row in db.versions.find().sort("at", -1)] == list(range(20))
    assert [row["at"] for row in db.visits.find()] == [ago(300)]
    assert db.days.count_documents({}) == 3
    assert db.hosts.count_documents({}) == 1


def test_zero_keeps_everything(freshet: Freshet, stored: tuple[Db, str]) -> None:
    db, _ = stored
    put_target(db)
    insert(db, "visits", visit(4000))
    insert(db, "runs", {"started": ago(4000), "finished": ago(4000)}, {"started": ago(1)})
    done = prune(freshet, "--keep-days", "0", "--keep-versions", "0")
    assert not any(done["spiders"]["shop"].values())
    assert (db.visits.count_documents({}), db.runs.count_documents({})) == (1, 2)


def test_current_version_of_a_post_is_kept(stored: tuple[Db, str]) -> None:
    db, uri = stored
    name = "https://feed.example/ 7"
    insert(db, "posts", {"_id": f"shop {name}", "url": None, "content_hash": "old"})
    contents = enumerate(("old", "newer", "newest"))
    insert(
        db, "versions",
        *({"_id": f"shop {name} {text}", "target": name, "content_hash": text, "at": ago(9 - n)}
          for n, text in contents),
    )  # fmt: skip

    async def remove(db: Database) -> int:
        deletion = VersionDeletion(db)
        await pruning.prune_versions(db, deletion, "shop", 1)
        return deletion.count

    assert on(uri, remove) == 2
    assert [row["content_hash"] for row in db.versions.find()] == ["old"]


def test_visits_of_a_sampling_phase_are_not_aggregated(
    freshet: Freshet, stored: tuple[Db, str]
) -> None:
    db, _ = stored
    put_target(db)
    insert(db, "visits", visit(30), visit(20), visit(10))
    phase = {
        "samples": "shop", "spiders": [], "state": "active", "at": ago(25), "until": ago(-5),
        "weeks": 4, "every_hours": 1.0, "budget_per_day": 1.0, "sample": None, "pages": 1,
        "rotations": 1,
    }  # fmt: skip
    db.plans.insert_one(phase)
    done = prune(freshet, "--keep-days", "5")
    assert done["spiders"]["shop"]["visits"] == 1
    assert [row["at"] for row in db.visits.find().sort("at")] == [ago(20), ago(10)]


def test_newest_aggregates_are_kept(stored: tuple[Db, str]) -> None:
    db, uri = stored
    insert(db, "days", *({"target": URL, "day": ago(n)} for n in (9, 8, 7)))
    removing = partial(pruning.drop_aggregates, spider="shop", before=ago(1), delete=True)
    assert on(uri, removing) == 2
    assert [row["day"] for row in db.days.find()] == [ago(7)]


def test_plans_in_use_are_kept(stored: tuple[Db, str]) -> None:
    db, uri = stored
    names = ("unused", "of a target", "former of a target", "newest", "staging", "other newest",
             "unused phase", "last phase", "phase in progress")  # fmt: skip
    ids = {name: ObjectId() for name in names}
    plan = {"state": "active", "kind": "pages", "spiders": ["shop"]}
    phase = {"state": "active", "spiders": [], "samples": "shop"}
    rows: dict[str, Row] = {
        "unused": plan | {"at": ago(900)},
        "of a target": plan | {"at": ago(800)},
        "former of a target": plan | {"at": ago(700)},
        "newest": plan | {"at": ago(600)},
        "staging": plan | {"at": ago(500), "state": "staging"},
        "other newest": plan | {"at": ago(900), "kind": "feeds"},
        "unused phase": phase | {"at": ago(900), "ended": ago(890)},
        "last phase": phase | {"at": ago(800), "ended": ago(790)},
        "phase in progress": phase | {"at": ago(700)},
    }
    db.plans.insert_many([{"_id": ids[name]} | row for name, row in rows.items()])
    put_target(db, plan={"id": ids["of a target"], "former": {"id": ids["former of a target"]}})
    dropping = partial(pruning.drop_plans, before=ago(365))
    assert on(uri, partial(dropping, delete=False)) == 2
    assert db.plans.count_documents({}) == len(names)
    assert on(uri, partial(dropping, delete=True)) == 2
    left = {row["_id"] for row in db.plans.find()}
    assert {name for name in names if ids[name] not in left} == {"unused", "unused phase"}


def test_forgetting_a_site_deletes_its_read_marks(freshet: Freshet, stored: tuple[Db, str]) -> None:
    db, _ = stored
    put_target(db)
    sources = ("shop", KEY, "shopping", "shopping https://shop.example/a")
    reader = Reader("anna", sources=dict.fromkeys(sources, NOW))
    db.readers.insert_one(document_of(reader) | {"_id": "anna"})
    assert run(freshet, "forget", "shop", "--yes").code == 0
    (row,) = db.readers.find()
    assert [each["source"] for each in row["sources"]] == list(sources[2:])
    assert row["revision"] == 1, "a concurrent request would store the marks again"


@pytest.mark.parametrize("kind", ["item", "feed"])
def test_forgetting_a_url_deletes_all_documents_about_it(
    kind: str, freshet: Freshet, stored: tuple[Db, str]
) -> None:
    db, _ = stored
    other = "https://shop.example/b"
    put_target(db, kind=kind)
    insert(db, "targets", {"_id": f"shop {other}", "url": other, "kind": kind})
    for url in (URL, other):
        insert(db, "dead_letters", {"_id": f"shop {url}", "url": url, "at": NOW, "leases": 3})
        row = {"target": url, "at": NOW}
        for name in ("visits", "versions", "days", "alarms", "outbox"):
            insert(db, name, {"_id": f"{name} {url}"} | row)
    counts = in_json(freshet, "forget", URL, "--yes")
    names = ("targets", "dead_letters", "visits", "versions", "days", "alarms", "outbox")
    left = {name: [row.get("target", row.get("url")) for row in db[name].find()] for name in names}
    assert left == {name: [other] for name in names}
    assert counts["deleted"] | dict.fromkeys(names, 1) == counts["deleted"]


def test_doctor_reports_retention_and_missing_prunes(
    freshet: Freshet, stored: tuple[Db, str]
) -> None:
    db, _ = stored
    put_target(db)
    now = datetime.now(NOW.tzinfo)
    insert(db, "runs", {"started": now, "finished": now})
    insert(db, "visits", visit(0) | {"at": now - 360 * DAY})
    assert (
        "keeps visits 365 days, daily aggregates 1095 days, runs 90 days, plans 365 days, "
        "20 versions per target\n"
    ) in run(freshet, "doctor", "--quick", COLUMNS=300).out
    insert(db, "visits", visit(0) | {"at": now - 380 * DAY})
    text = run(freshet, "doctor", "--quick", COLUMNS=300, FRESHET_KEEP_RUNS_DAYS=0).out
    assert "all runs" in text
    assert "but the oldest visit is 380 days old -> run scrapy prune daily" in text
    assert "oldest visit" not in run(freshet, "doctor", "--quick", FRESHET_KEEP_VISITS_DAYS=0).out
