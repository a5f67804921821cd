"""What a user asks of a plan, now and in the settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from crawler.config import Config
from crawler.errors import ConfigError
from schedules.cost import Objective
from schedules.evaluation.feeds import FEED_POLICIES
from schedules.terms import POLICIES

PAGES, FEEDS = KINDS = ("pages", "feeds")
BALANCED = "balanced"
OBJECTIVES = {
    BALANCED: Objective(),
    # Staleness alone gives up pages that change fast, so a little age stays.
    "freshness": Objective(0.99, 0.01, 0.0),
    "age": Objective(0.0, 1.0, 0.0),
    "delay": Objective(0.0, 0.0, 1.0),
}
GOALS = ("budget", "freshness", "max_age_hours")
OPTIONS = {"budget": "--budget", "freshness": "--freshness", "max_age_hours": "--max-age"}
OF_PAGES = ("objective", "freshness", "max_age_hours")
POLICIES_OF = {
    False: POLICIES,
    True: FEED_POLICIES,
    None: tuple(dict.fromkeys((*POLICIES, *FEED_POLICIES))),
}


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked; None where nothing is.

    budget: requests a day      freshness, max_age_hours: a goal from which the budget follows
    daily_cap, hourly_cap: requests at most; 0: no cap
    """

    policy: str | None = None
    objective: str | None = None
    budget: float | None = None
    freshness: float | None = None
    max_age_hours: float | None = None
    daily_cap: float | None = None
    hourly_cap: float | None = None

    @classmethod
    def of_config(cls, config: Config, *, feeds: bool = False) -> Self:
        """The wish that settings hold for pages, or for feeds."""
        if feeds:
            return cls(config.feed_policy, budget=config.feed_budget)
        return cls(
            config.policy, config.objective, config.budget,
            daily_cap=config.daily_cap, hourly_cap=config.hourly_cap,
        )  # fmt: skip

    @property
    def has_goal(self) -> bool:
        """Whether it says, in one way or another, what may be spent."""
        return any(name in self.given for name in GOALS)

    @property
    def given(self) -> dict[str, Any]:
        """What it says."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def asks(self) -> bool:
        """Whether it says anything at all."""
        return bool(self.given)

    def over(self, other: Wish) -> Wish:
        """All of this wish, the other's where this one is silent; there is but one goal."""
        base = other.given
        if self.has_goal:
            base = {name: value for name, value in base.items() if name not in GOALS}
        return Wish(**(base | self.given))

    def check(self, *, feeds: bool | None = None) -> None:
        """Raise ConfigError for unknown names, several goals, or amounts that make no sense.

        feeds: whether it is for feeds; None where that is not known yet
        """
        for what, name, names in (
            ("policy", self.policy, POLICIES_OF[feeds]),
            ("objective", self.objective, tuple(OBJECTIVES)),
        ):
            if name is not None and name not in names:
                raise ConfigError(f"no {what} {name!r}; there are: {', '.join(names)}")
        if feeds and (of_pages := [name for name in OF_PAGES if name in self.given]):
            option = OPTIONS.get(of_pages[0], "--objective")
            raise ConfigError(f"{option} is for pages; feeds take --budget and --policy")
        goals = [OPTIONS[name] for name in GOALS if name in self.given]
        if len(goals) > 1:
            raise ConfigError(f"{' and '.join(goals)} exclude each other: give one of them")
        if self.budget is not None and self.budget <= 0:
            raise ConfigError("--budget has to be more than 0")


@dataclass(frozen=True, slots=True)
class Order:
    """What the user has asked for.

    wish:    what the options say      spiders: None: all      kind: one of KINDS, None: both
    shared:  pages and feeds share one budget
    """

    wish: Wish
    spiders: list[str] | None = None
    kind: str | None = None
    shared: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """The pages or the feeds of some spiders, and what is asked for them.

    everything: whether these are all spiders of the kind      as_it_is: no option asks for anything
    """

    kind: str
    spiders: list[str]
    wish: Wish
    everything: bool
    as_it_is: bool


def parts_of(
    order: Order, stored: Sequence[str], feeds: Sequence[str], config: Config
) -> list[Part]:
    """The parts of an order, pages first; ConfigError where it is not clear or cannot be.

    stored: all spiders that have targets     feeds: those of them that have feeds
    """
    if unknown := sorted(set(order.spiders or ()) - set(stored)):
        names = ", ".join(stored) or "none; run scrapy crawl first"
        raise ConfigError(f"no targets of {unknown[0]!r}; spiders with targets: {names}")
    parts = []
    for kind in KINDS:
        of_kind = [name for name in stored if (name in feeds) == (kind == FEEDS)]
        chosen = [name for name in of_kind if order.spiders is None or name in order.spiders]
        if chosen and order.kind in (None, kind):
            wish = order.wish.over(Wish.of_config(config, feeds=kind == FEEDS))
            everything = len(chosen) == len(of_kind)
            parts.append(Part(kind, chosen, wish, everything, not order.wish.asks))
    if order.kind is not None and not parts:
        raise ConfigError(f"--kind {order.kind}: there are none (scrapy targets shows what is)")
    if len(parts) > 1 and order.wish.asks and not order.shared:
        raise ConfigError(
            "pages and feeds are planned apart: say what is meant (--kind pages, --kind feeds or "
            "--spider NAME), or give them one budget (--shared-budget)"
        )
    for part in parts:
        part.wish.check(feeds=part.kind == FEEDS)
    return parts
