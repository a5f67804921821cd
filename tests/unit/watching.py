"""Generated input of a replan: targets of spiders as `storage.histories` returns them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from bson import ObjectId

from crawler.config import Config
from crawler.planning.options import Effect
from crawler.planning.population import Gathered, population_of
from crawler.storage.client import Document
from crawler.storage.columns import keys_of
from crawler.storage.histories import NameColumn, TextColumn, Watched, offsets
from crawler.storage.sites import Site
from schedules.history import FieldHistories, Histories
from schedules.schedule import Schedules

NOW = datetime(2026, 3, 2, tzinfo=UTC)  # a Monday
NOW_HOURS = NOW.timestamp() / 3600
DAY = 24.0
NOTHING = Effect({"shop": None}, {})
Pages = list[dict[str, Any]]


def page(path: str = "item/1", **own: Any) -> dict[str, Any]:
    """Return a target; times are in hours before now, changes are (after, by, stated)."""
    usual = {
        "spider": "shop", "kind": "item", "category": None, "plan": None, "next": -20.0,
        "visited": 1.0, "since": 21 * DAY, "until": 1.0, "changes": (), "false_dates": 0,
        "every": 0.0, "refreshed": 20,
    }  # fmt: skip
    return usual | {"url": f"https://shop.example/{path}"} | own


def pages(n: int, **own: Any) -> Pages:
    """Return `n` similar targets."""
    return [page(f"item/{i}", **own) for i in range(n)]


NONE = np.empty(0, np.int64)
NO_FIELDS = FieldHistories(
    NONE, (), NONE, np.empty(0), np.zeros(1, np.int64), np.empty(0, np.uint32),
    np.empty(0, np.uint32),
)  # fmt: skip


def watched(pages: Sequence[dict[str, Any]], ahead: int = 0) -> Watched:
    """Return the targets in the form in which they are read."""

    def names(key: str) -> tuple[tuple[str, ...], Any]:
        column = NameColumn()
        column.add([row[key] for row in pages])
        return column.finish()

    def ago(key: str) -> Any:
        return NOW_HOURS - np.array([row[key] for row in pages], float)

    ids = TextColumn()
    ids.add(f"{row['spider']} {row['url']}" for row in pages)
    changes = [change for row in pages for change in row["changes"]]
    after, by, stated = (
        NOW_HOURS - np.array([change[i] for change in changes], float) for i in range(3)
    )
    first = offsets(np.array([len(row["changes"]) for row in pages], np.int64))
    every = np.array([row["every"] for row in pages], float)
    none = Schedules.none(len(pages))
    texts = ids.finish()
    return Watched(
        texts, keys_of(texts), *names("spider"), *names("kind"), *names("category"),
        *names("plan"), ago("next"), ago("visited"),
        np.array([row["refreshed"] for row in pages]),
        np.array([row.get("feed_size", 0) for row in pages]),
        np.array([row.get("feed_min_hours", 0.0) for row in pages]),
        np.array([row.get("min_hours", 0.0) for row in pages]),
        np.array([row.get("max_hours", 0.0) for row in pages]),
        np.array([row["false_dates"] for row in pages]),
        np.zeros(len(pages), np.bool_),
        Histories(ago("since"), ago("until"), first, after, by), NO_FIELDS, stated,
        Schedules(none.weeks, none.first, none.slots, every, none.phase_hours), ahead,
    )  # fmt: skip


def gathered(
    pages: Sequence[dict[str, Any]], *sites: Site, config: Config | None = None, ahead: int = 0
) -> Gathered:
    """Return the input of a plan; `sites` lists the sites that differ from the default."""
    config = config or Config.load(mongo_uri=None)
    seen = watched(pages, ahead)
    by_name = {site.name: site for site in sites}
    of_spiders = tuple(by_name.get(name) or Site(name, at=NOW) for name in seen.spiders)
    weight = np.ones(len(pages))
    population = population_of(seen, of_spiders, weight, config, NOW_HOURS)
    fixed = np.array([4.0 if row["kind"] == "list" else 1.0 for row in pages])
    return Gathered(
        seen, of_spiders, population, seen.histories, np.zeros(len(of_spiders), np.bool_), fixed
    )


def plan_document(**own: Any) -> Document:
    """Return a plan of yesterday as it is stored."""
    usual = {
        "_id": ObjectId(), "at": NOW - timedelta(days=1), "spiders": ["shop"], "policy": "optimal",
        "budget_per_day": 5.0, "budget_from": "given", "totals": {"requests_per_day": 4.5},
    }  # fmt: skip
    return usual | own


def in_effect(plan: Document) -> Effect:
    """Return the state in which only this plan is in effect."""
    return Effect({"shop": plan}, {str(plan["_id"]): plan})
