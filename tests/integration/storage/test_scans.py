"""Paged scans return the same results as one query over all targets."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from bson import ObjectId

from crawler.config import Config
from crawler.items import Kind
from crawler.planning import explain
from crawler.planning.report import requests
from crawler.planning.report_types import Explanation
from crawler.storage import histories, paging, plans, site_queries, stats
from crawler.storage.client import Database
from tests.integration.harness import Db, Row
from tests.integration.known_pages import NOW, on, page, put

N = 57


@pytest.fixture
def filled(stored: tuple[Db, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Store targets of three spiders whose names share a prefix; read ten at a time."""
    monkeypatch.setattr(paging, "PART", 10)
    db, uri = stored
    put(db, uri, [planned(number) for number in range(N)])
    others = [page(f"https://{name}.example/", spider=name) for name in ("sho", "shop2")]
    db.targets.insert_many(others)
    return uri


def planned(number: int) -> Row:
    own: Row = {"id": ObjectId("6" * 24)}
    slots: Row = {"weeks": 1 + number % 2, "slots": [number % 5, 160], "policy": "optimal"}
    even: Row = {"every_hours": 6.0, "visits_per_week": 28.0, "policy": "optimal"}
    return page(
        f"https://shop.example/{number}",
        kind=Kind.ITEM if number % 3 else Kind.LIST,
        categories=["all", f"part {number % 4}"],
        plan=own | (even if number % 7 == 0 else slots),
    )


def test_each_target_is_in_exactly_one_part(filled: str) -> None:
    async def ids(db: Database, spider: str | None) -> list[list[str]]:
        stages: list[Row] = [{"$project": {"_id": 1}}]
        parts = paging.aggregated_targets(db, stages, spider)
        return [[row["_id"] for row in rows] async for rows in parts]

    own = on(filled, lambda db: ids(db, "shop"))
    assert [len(part) for part in own] == [10] * 5 + [7]
    every = on(filled, lambda db: ids(db, None))
    keys = [key for part in own for key in part]
    assert [key for part in every for key in part] == [
        "sho https://sho.example/", *keys, "shop2 https://shop2.example/",
    ]  # fmt: skip
    assert on(filled, lambda db: ids(db, "unknown")) == [[]]


def test_site_profile_equals_single_queries(filled: str) -> None:
    found = on(filled, lambda db: site_queries.profile_of(db, "shop"))
    assert found.categories == {"all": N} | dict(
        sorted(Counter(f"part {n % 4}" for n in range(N)).items(), key=lambda row: -row[1])
    )

    async def week(db: Database) -> Any:
        return requests(*await plans.week(db, ["shop"]))

    assert np.allclose(requests(found.slots, found.even), on(filled, week))


def test_profile_keeps_the_largest_categories(filled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_queries, "MAX_CATEGORIES", 3)
    found = on(filled, lambda db: site_queries.profile_of(db, "shop"))
    assert found.categories == {"all": N, "part 0": 15, "part 1": 14}


def test_sample_is_distinct_and_has_the_included_target(filled: str) -> None:
    wanted = "shop https://shop.example/55"

    async def sample_of(db: Database, size: int) -> list[str]:
        watched = await histories.read_sample(db, NOW, "shop", size, wanted)
        return list(watched.ids)

    sample_ids = on(filled, lambda db: sample_of(db, 8))
    assert len(sample_ids) == len(set(sample_ids)) in range(1, 10)
    assert wanted in sample_ids
    assert len(on(filled, lambda db: sample_of(db, 1000))) == N
    assert on(filled, lambda db: paging.is_larger(db, "shop", N - 1))
    assert not on(filled, lambda db: paging.is_larger(db, "shop", N))


def test_explain_samples_large_sites(filled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "MAX_QUICK_TARGETS", 10)
    config = Config.load(mongo_uri=filled)

    async def explained(db: Database, max_read: int | None) -> tuple[int, Explanation]:
        target = await db.targets.find_one({"url": "https://shop.example/55"})
        assert target is not None
        sizes = []
        gather = explain.gather

        async def counted(db: Database, watched: histories.Watched, *more: Any) -> Any:
            sizes.append(len(watched))
            return await gather(db, watched, *more)

        with monkeypatch.context() as patch:
            patch.setattr(explain, "gather", counted)
            found = await explain.explain_target(db, config, target, NOW, print, max_read)
        return sizes[0], found

    n_sampled, sampled = on(filled, lambda db: explained(db, 12))
    n_all, exact = on(filled, lambda db: explained(db, None))
    assert n_sampled in range(1, 14)
    assert n_all == N
    assert sampled["url"] == exact["url"]
    assert sampled["history"] == exact["history"]
    assert sampled["expected"] is not None


def test_small_spiders_are_sampled_completely(filled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "SAMPLE_SIZE", 10)
    monkeypatch.setattr(stats, "MAX_UNSAMPLED", 5)
    states, sample = on(filled, lambda db: stats.scan_targets(db, NOW))
    assert stats.targets_by_spider(states) == {"sho": 1, "shop": N, "shop2": 1}
    names = Counter(sample.spiders[number] for number in sample.spider)
    assert names["sho"] == names["shop2"] == 1
    assert names["shop"] < N / 2
    assert sample.rate.shape == sample.hours.shape == sample.spider.shape
