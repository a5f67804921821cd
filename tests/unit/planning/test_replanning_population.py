"""Inputs of a replan: keys, neighbors, weights, and site limits of its targets."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.planning import population
from crawler.storage.columns import keys_of, keys_of_texts
from crawler.storage.histories import TextColumn
from crawler.storage.sites import Site
from tests.unit.watching import NOW, Pages, gathered, page, watched

# Keys and groups


def test_target_keys_are_stable_across_runs() -> None:
    texts = [f"shop https://shop.example/ä/{i}" for i in range(120_000)]
    seen = watched([page()])
    many = replace(seen, ids=_texts(texts)).ids
    keys = keys_of(many)
    assert len(set(keys.tolist())) == len(texts)
    some = [0, 49_999, 50_000, 119_999]
    assert keys[some].tolist() == keys_of_texts([texts[i] for i in some]).tolist()
    assert keys_of_texts(["shop https://shop.example/"]).tolist() == [933909131648509738]


def _texts(texts: list[str]) -> Any:
    grown = TextColumn()
    grown.add(texts)
    return grown.finish()


def test_neighbors_share_spider_category_and_kind() -> None:
    seen = [
        page("a", category="toys"), page("b", category="toys"), page("c", category="books"),
        page("d"), page("e", kind="list"), page("f", spider="blog"), page("g", category="toys"),
    ]  # fmt: skip
    result = gathered(seen).population
    a, b, c, d, e, f, g = result.group.tolist()
    assert a == b == g
    assert len({a, c, d, e, f}) == 5
    assert result.parent[result.group].tolist() == result.site.tolist() == [0, 0, 0, 0, 0, 1, 0]


# Weights


def weights_of(seen: Pages, *rules: tuple[str, float], **categories: list[str]) -> list[float]:
    """Return the weights of targets; `categories` maps each category to its paths."""

    async def in_category(spider: str, category: str) -> Any:
        urls = [f"{spider} https://shop.example/{path}" for path in categories.get(category, [])]
        return keys_of_texts(urls)

    targets, sites = watched(seen), (Site("shop", weight=0.5, weights=rules),)
    return asyncio.run(population.weights_of(targets, sites, in_category)).tolist()


def test_first_matching_weight_applies() -> None:
    seen = [page("sale/1"), page("item/2"), page("item/3"), page("item/4")]
    rules = (("/sale/", 5), ("category:toys", 2), (r"item/\d$", 3))
    toys = ["sale/1", "item/2"]
    assert weights_of(seen, *rules, toys=toys) == [5, 2, 3, 3]
    assert weights_of(seen, *rules[::-1], toys=toys) == [2, 3, 3, 3]
    assert weights_of(seen) == [0.5] * 4


def test_patterns_match_only_the_url() -> None:
    assert weights_of([page("item/1")], ("^shop", 9), ("^https://", 7)) == [7]


def test_weight_patterns_match_in_linear_time() -> None:
    """Check that matching takes linear time; a backtracking search would never end."""
    seen = [page("item/" + "a" * 1900 + "!"), page("-a" * 900), page("ä/item/1")]
    endless = [r"(\w+/?)+/none$", r".*-.*-.*-.*-.*\.html$", "((a{0,7}){0,7}){0,7}x$"]
    rules = [(pattern, 9.0) for pattern in endless]
    assert weights_of(seen, *rules, ("ä/item/1$", 4)) == [0.5, 0.5, 4]


def test_rejects_unsupported_stored_weight_pattern() -> None:
    with pytest.raises(ConfigError, match=r"^shop: weights: .* look-ahead is not supported"):
        weights_of([page("item/1")], ("/(?!a)", 2))


# Sites


def test_site_definition_sets_hours_intervals_and_caps() -> None:
    site = Site(
        "shop", timezone="Asia/Kolkata", visiting_hours=("Mon 08:00-10:00",), cost=2.0, at=NOW,
        min_interval_hours=3, max_interval_hours=48, requests_per_day=40, requests_per_hour=6,
    )  # fmt: skip
    result = gathered([page(), page("b", spider="blog")], site).population
    assert np.flatnonzero(result.open_hours[0]).tolist() == [8, 9]
    assert result.open_hours[1].all()
    assert (result.min_hours.tolist(), result.max_hours.tolist()) == ([3, 1], [48, 672])
    # Six requests in each of the two open hours of a Monday.
    assert result.site_day.tolist() == [12, np.inf]
    assert result.cost.tolist() == [2, 1]
    assert [str(zone) for zone in result.zones] == ["Asia/Kolkata", "UTC"]


def test_intervals_are_limited_by_setting_and_longest_cycle() -> None:
    config = Config.load(mongo_uri=None, max_interval_hours=100)
    assert gathered([page()], config=config).population.max_hours.tolist() == [100]
    both = [page(), page("feed", kind="feed")]
    assert gathered(both).population.max_hours.tolist() == [672, 4032]
    assert gathered(both, config=config).population.max_hours.tolist() == [100, 100]
    site = Site("shop", max_interval_hours=1000, at=NOW)
    assert gathered(both, site).population.max_hours.tolist() == [672, 1000]
    config = Config.load(mongo_uri=None, max_interval_hours=24 * 365)
    assert gathered([page()], config=config).population.max_hours.tolist() == [672]


@pytest.mark.parametrize(
    ("site", "message"),
    [
        (
            Site("shop", min_interval_hours=48),
            "shop: min_interval_hours 48 exceeds the longest interval, 24 h. Lower it, or raise "
            "max_interval_hours or FRESHET_MAX_INTERVAL_HOURS",
        ),
        (Site("shop", timezone="Mars/Base"), "shop: time zone not found: 'Mars/Base'"),
        (
            Site("shop", visiting_hours=("Mon",), blackout=("Mon",)),
            "shop: visiting_hours and blackout leave no hour of the week open",
        ),
    ],
    ids=["intervals", "zone", "windows"],
)
def test_rejects_contradicting_limits(site: Site, message: str) -> None:
    config = Config.load(mongo_uri=None, max_interval_hours=24)
    with pytest.raises(ConfigError) as caught:
        gathered([page()], site, config=config)
    assert str(caught.value) == message
