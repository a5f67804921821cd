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


def test_a_target_has_the_same_key_in_every_run_whatever_stands_beside_it() -> None:
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


def test_neighbors_are_those_of_spider_category_and_kind() -> None:
    seen = [
        page("a", category="toys"), page("b", category="toys"), page("c", category="books"),
        page("d"), page("e", kind="list"), page("f", spider="blog"), page("g", category="toys"),
    ]  # fmt: skip
    made = gathered(seen).population
    a, b, c, d, e, f, g = made.group.tolist()
    assert a == b == g
    assert len({a, c, d, e, f}) == 5
    assert made.parent[made.group].tolist() == made.site.tolist() == [0, 0, 0, 0, 0, 1, 0]


# Weights


def weights_of(seen: Pages, *rules: tuple[str, float], **categories: list[str]) -> list[float]:
    """Return the weights of targets; `categories` maps each category to its paths."""

    async def in_category(spider: str, category: str) -> Any:
        urls = [f"{spider} https://shop.example/{path}" for path in categories.get(category, [])]
        return keys_of_texts(urls)

    targets, sites = watched(seen), (Site("shop", weight=0.5, weights=rules),)
    return asyncio.run(population.weights_of(targets, sites, in_category)).tolist()


def test_the_first_weight_that_fits_counts() -> None:
    seen = [page("sale/1"), page("item/2"), page("item/3"), page("item/4")]
    rules = (("/sale/", 5), ("category:toys", 2), (r"item/\d$", 3))
    toys = ["sale/1", "item/2"]
    assert weights_of(seen, *rules, toys=toys) == [5, 2, 3, 3]
    assert weights_of(seen, *rules[::-1], toys=toys) == [2, 3, 3, 3]
    assert weights_of(seen) == [0.5] * 4


def test_a_pattern_is_looked_for_in_the_url_alone() -> None:
    assert weights_of([page("item/1")], ("^shop", 9), ("^https://", 7)) == [7]


def test_no_url_makes_the_search_for_weights_long() -> None:
    """Check that matching takes linear time; a backtracking search would never end."""
    seen = [page("item/" + "a" * 1900 + "!"), page("-a" * 900), page("ä/item/1")]
    endless = [r"(\w+/?)+/none$", r".*-.*-.*-.*-.*\.html$", "((a{0,7}){0,7}){0,7}x$"]
    rules = [(pattern, 9.0) for pattern in endless]
    assert weights_of(seen, *rules, ("ä/item/1$", 4)) == [0.5, 0.5, 4]


def test_a_stored_weight_that_cannot_be_searched_is_an_error_of_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^shop: weights: .* look-ahead is not supported"):
        weights_of([page("item/1")], ("/(?!a)", 2))


# Sites


def test_a_site_says_when_and_how_often_it_may_be_visited() -> None:
    site = Site(
        "shop", timezone="Asia/Kolkata", visiting_hours=("Mon 08:00-10:00",), cost=2.0, at=NOW,
        min_interval_hours=3, max_interval_hours=48, requests_per_day=40, requests_per_hour=6,
    )  # fmt: skip
    made = gathered([page(), page("b", spider="blog")], site).population
    assert np.flatnonzero(made.open_hours[0]).tolist() == [8, 9]
    assert made.open_hours[1].all()
    assert (made.min_hours.tolist(), made.max_hours.tolist()) == ([3, 1], [48, 672])
    assert (made.site_day.tolist(), made.site_hour.tolist()) == ([40, np.inf], [6, np.inf])
    assert made.cost.tolist() == [2, 1]
    assert [str(zone) for zone in made.zones] == ["Asia/Kolkata", "UTC"]


def test_no_interval_is_longer_than_the_setting_or_the_longest_cycle() -> None:
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
            "max_interval_hours or FRESHET_MAX_INTERVAL_HOURS.",
        ),
        (Site("shop", timezone="Mars/Base"), "shop: time zone not found: 'Mars/Base'"),
        (
            Site("shop", visiting_hours=("Mon",), blackout=("Mon",)),
            "shop: windows and blackout leave no hour of the week open",
        ),
    ],
    ids=["intervals", "zone", "windows"],
)
def test_terms_that_contradict_each_other_are_one_line(site: Site, message: str) -> None:
    config = Config.load(mongo_uri=None, max_interval_hours=24)
    with pytest.raises(ConfigError) as caught:
        gathered([page()], site, config=config)
    assert str(caught.value) == message
