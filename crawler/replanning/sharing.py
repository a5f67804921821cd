"""One budget for pages and feeds: parted so that the last request is worth the same in both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

import numpy as np

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.replanning.feeds import windows_of
from crawler.replanning.population import Gathered
from crawler.replanning.replan import hours_of
from crawler.replanning.wishes import BALANCED, OBJECTIVES, Wish
from crawler.utils.text import amount, rounded_up
from schedules import market
from schedules.estimate import estimate
from schedules.feedplan import plan_feeds
from schedules.schedule import Schedules
from schedules.terms import Terms, least_per_day

HALVINGS = 10
# So many feeds tell the price for all.
ENOUGH = 4_000
Price = Callable[[float], float]


def shares_of(
    pages: Gathered, feeds: Gathered, wish: Wish, config: Config, now: datetime
) -> tuple[float, float]:
    """Requests a day for pages and for feeds; ConfigError where there is no budget to share.

    A lost post counts as `post_hours` hours in which a page is stale.
    """
    if wish.budget is None:
        raise ConfigError("a shared budget has to be given (--budget N or FRESHET_BUDGET)")
    least = least_per_day(pages.population), least_per_day(feeds.population)
    if wish.budget < sum(least):
        raise ConfigError(
            f"budget {amount(wish.budget)}/day is below the least possible: pages and feeds need "
            f"{rounded_up(sum(least))}/day together"
        )
    hours = hours_of(now)
    return parted(
        wish.budget, least, _page_price(pages, wish, hours),
        _feed_price(feeds, hours, config.post_hours),
    )  # fmt: skip


def parted(
    budget: float, least: tuple[float, float], of_pages: Price, of_feeds: Price
) -> tuple[float, float]:
    """Shares of a budget at which both prices are equal, or as near as the least needs allow.

    Prices fall with what is spent: hours of staleness that the last request a day saves.
    """
    low, high = least[0], budget - least[1]
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if of_pages(middle) > of_feeds(budget - middle):
            low = middle
        else:
            high = middle
    share = (low + high) / 2
    return share, budget - share


def _page_price(pages: Gathered, wish: Wish, now_hours: float) -> Price:
    some, share = market.sampled(estimate(pages.population, pages.histories))
    terms = Terms(aim=OBJECTIVES[wish.objective or BALANCED])
    none = Schedules.none(len(some.population))
    least = least_per_day(some.population)

    def price(per_day: float) -> float:
        asked = replace(terms, budget_per_day=max(per_day * share, least))
        return market.draft(some, asked, now_hours, none).price

    return price


def _feed_price(feeds: Gathered, now_hours: float, post_hours: float) -> Price:
    rows = np.argsort(feeds.population.key)[:ENOUGH]
    population, histories = feeds.population.of(rows), feeds.histories.of(rows)
    window, share = windows_of(feeds)[rows], len(rows) / len(feeds.population)
    none, least = Schedules.none(len(rows)), least_per_day(population)

    def price(per_day: float) -> float:
        terms = Terms(budget_per_day=max(per_day * share, least))
        made = plan_feeds(population, histories, window, terms, now_hours, none)
        return made.price * post_hours

    return price
