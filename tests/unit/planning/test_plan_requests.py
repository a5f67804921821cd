"""Scope of a replan: pages or feeds, and the error if a spider has both."""

from __future__ import annotations

import pytest

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.planning.options import Part, PlanOptions, ReplanRequest, parts_of

KNOWN, FEEDS = ["blog", "feeds", "shop"], ["feeds"]
CONFIG = Config.load(mongo_uri=None, budget=100, feed_budget=20, feed_policy="min-delay")


def parts(order: ReplanRequest, spiders: list[str] = KNOWN, config: Config = CONFIG) -> list[Part]:
    return parts_of(order, spiders, [name for name in FEEDS if name in spiders], config)


def test_plans_pages_and_feeds_by_default() -> None:
    pages, feeds = parts(ReplanRequest(PlanOptions()))
    assert (pages.kind, pages.spiders, pages.options.budget) == ("pages", ["blog", "shop"], 100)
    assert (feeds.kind, feeds.spiders, feeds.options.budget) == ("feeds", ["feeds"], 20)
    assert (pages.options.policy, feeds.options.policy) == (None, "min-delay")
    assert all(part.everything and part.is_default for part in (pages, feeds))


def test_options_require_a_kind_if_there_are_pages_and_feeds() -> None:
    with pytest.raises(ConfigError, match=r"Select one with --kind pages, --kind feeds"):
        parts(ReplanRequest(PlanOptions(budget=7)))
    (feeds,) = parts(ReplanRequest(PlanOptions(budget=7), kind="feeds"))
    assert (feeds.kind, feeds.options.budget, feeds.is_default) == ("feeds", 7, False)
    (pages,) = parts(ReplanRequest(PlanOptions(budget=7), spiders=["shop"]))
    assert (pages.kind, pages.everything) == ("pages", False)
    assert [part.kind for part in parts(ReplanRequest(PlanOptions(budget=7), shared=True))] == [
        "pages",
        "feeds",
    ]
    assert [part.kind for part in parts(ReplanRequest(PlanOptions(budget=7)), ["shop"])] == [
        "pages"
    ]


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (
            ReplanRequest(PlanOptions(), spiders=["shoe"]),
            "no targets of 'shoe'. Did you mean shop?",
        ),
        (
            ReplanRequest(PlanOptions(), spiders=["shop"], kind="feeds"),
            "no feeds to plan",
        ),
        (
            ReplanRequest(PlanOptions(policy="groups"), kind="feeds"),
            "policy not found: 'groups'. Available: optimal, ",
        ),
        (
            ReplanRequest(PlanOptions(policy="min-missing"), kind="pages"),
            "policy not found: 'min-missing'. Available: ",
        ),
        (
            ReplanRequest(PlanOptions(freshness=0.9), kind="feeds"),
            "--freshness applies to pages only",
        ),
        (
            ReplanRequest(PlanOptions(objective="age"), kind="feeds"),
            "--objective applies to pages only",
        ),
    ],
)
def test_rejects_impossible_requests(order: ReplanRequest, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parts(order)
    assert str(error.value).startswith(message)
