"""A replan counts on list pages and sitemaps as far as they have shown changes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest
from bson import ObjectId

from crawler.items import Kind
from tests.integration.harness import Db, Freshet, Row
from tests.integration.inside import in_json
from tests.integration.known_pages import BEGIN, DAY, HOUR, MINUTE, NOW, clock, page, put, spread

SHOP = "https://shop.example"
LIST, ITEMS = f"{SHOP}/list", 24
Stored = tuple[Db, str]
pytestmark = pytest.mark.usefixtures("warm")


def url(number: int) -> str:
    return f"{SHOP}/item/{number}"


def changes(number: int) -> list[datetime]:
    """Return the times at which the polls of an item found a change."""
    return spread(number % 8, 9)


def fill(
    db: Db, uri: str, shown_until: datetime | None = NOW, *, digest: str | None = "d",
    until: datetime | None = None,
) -> None:  # fmt: skip
    """Store a list page and its items, which were polled every 20 minutes for three weeks.

    shown_until: end of the time in which the list shows their changes; None: no list shows them
    digest:      of the entries; None: a sitemap with dates
    until:       end of the polls of the items; None: now
    """
    dated = {"lastmod": BEGIN} if digest is None else {}
    seen = [[at for at in changes(n) if at <= (until or NOW)] for n in range(ITEMS)]
    rows = [page(url(n), own, **dated) for n, own in enumerate(seen)]
    if until is not None:
        for row in rows:
            row["history"]["until"] = until
    # Some between two polls of an item.
    looks = [BEGIN + 170 * MINUTE + 6 * k * HOUR for k in range(84)]
    put(db, uri, [*rows, page(LIST, kind=Kind.LIST)])
    if shown_until is None:
        return
    db.visits.insert_many(
        {"_id": ObjectId(), "spider": "shop", "target": LIST, "at": at, "outcome": "unchanged",
         "changed": 0, "notify": False}
        for at in looks
    )  # fmt: skip
    db.listings.insert_many(
        {"_id": f"shop {url(n)} {LIST}", "spider": "shop", "list": LIST, "item": url(n),
         "category": None, "digest": digest, "shown": True, "since": BEGIN,
         "showed": [at for at in changes(n) if at <= shown_until][-8:]}
        for n in range(ITEMS)
    )  # fmt: skip


def replanned(freshet: Freshet, *args: object) -> Row:
    (plan,) = list[Row](in_json(freshet, "replan", "--budget", "12/day", *args, hours=clock()))
    return plan


def polls(db: Db) -> float:
    """Return the planned visits of all items a week."""
    items = db.targets.find({"kind": "item"}, {"plan.visits_per_week": 1})
    return sum(row["plan"]["visits_per_week"] for row in items)


def shown(db: Db) -> list[float]:
    """Return the share of the changes of each item that the plan takes to be shown."""
    return [row["plan"]["shown"] for row in db.targets.find({"plan.shown": {"$type": "number"}})]


def reasons(freshet: Freshet, of: str) -> str:
    explanation: Row = in_json(freshet, "explain", of, hours=clock())
    return " ".join(explanation["reasons"])


@pytest.mark.parametrize("digest", ["d", None], ids=["list", "sitemap"])
def test_items_are_polled_for_what_their_list_does_not_show(
    stored: Stored, freshet: Freshet, digest: str | None
) -> None:
    db, uri = stored
    fill(db, uri, None)
    before = replanned(freshet, "--dry-run")
    db.targets.delete_many({})

    fill(db, uri, digest=digest)
    plan = replanned(freshet)
    totals = plan["totals"]
    assert len(shown(db)) == ITEMS
    assert min(shown(db)) > 0.9
    assert totals["freshness"] > before["totals"]["freshness"]
    assert totals["lists_per_day"] > 1, "the list is visited for the sake of its items"
    assert totals["flags_per_day"] > 1
    assert totals["requests_per_day"] == pytest.approx(12, rel=0.03)
    assert polls(db) < 7 * 12 / 2
    assert "shows about 9" in reasons(freshet, url(7))
    assert "It shows changes of 24 items" in reasons(freshet, LIST)
    assert not any("no longer" in warning for warning in plan["warnings"])


def test_a_list_without_values_changes_nothing(stored: Stored, freshet: Freshet) -> None:
    db, uri = stored
    fill(db, uri, BEGIN)
    plan = replanned(freshet)
    assert max(shown(db)) < 0.1
    assert plan["totals"]["flags_per_day"] < 0.2
    assert polls(db) > 7 * 12 / 2


def test_a_silent_list_loses_its_trust_with_a_line(stored: Stored, freshet: Freshet) -> None:
    db, uri = stored
    fill(db, uri, BEGIN + timedelta(days=15))
    plan = replanned(freshet)
    assert plan["warnings"][-1] == (
        "shop: what changes no longer appears on 1 list page, whose pages are polled again"
    )
    assert max(shown(db)) < 0.1


def test_items_of_a_silent_list_are_visited_to_see_whether_they_have_changed(
    stored: Stored, freshet: Freshet
) -> None:
    db, uri = stored
    silent = NOW - 6 * DAY
    fill(db, uri, silent, until=silent)
    later = NOW + 5 * HOUR
    due: Row = {"kind": "item", "next_visit": {"$lt": later}}
    db.targets.update_many({}, {"$set": {"next_visit": later}})
    replanned(freshet)
    audited = list(db.targets.find(due | {"next_visit": {"$lte": NOW + HOUR}}))
    busiest: Sequence[str] = [url(n) for n in range(ITEMS) if n % 8 == 7]
    assert len(audited) >= 6
    assert set(busiest) <= {row["url"] for row in audited}
    assert not any(row.get("hinted") for row in audited)


def test_a_kind_of_hint_that_mostly_lies_is_not_planned_with(
    stored: Stored, freshet: Freshet
) -> None:
    db, uri = stored
    fill(db, uri)
    db.visits.insert_many(
        {"_id": ObjectId(), "spider": "shop", "target": url(0), "at": NOW - k * HOUR,
         "outcome": "unchanged", "changed": int(k == 0), "hint": "list", "notify": False}
        for k in range(12)
    )  # fmt: skip
    assert replanned(freshet)["totals"]["lists_per_day"] == 0
    assert shown(db) == []
