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
        return any(getattr(self, name) is not None for name in GOALS)

    @property
    def asks(self) -> bool:
        """Whether it says anything at all."""
        return bool(_said(self))

    def over(self, other: Wish) -> Wish:
        """All of this wish, the other's where this one is silent; there is but one goal."""
        mine, rest = _said(self), _said(other)
        if self.has_goal:
            rest = {name: value for name, value in rest.items() if name not in GOALS}
        return Wish(**(rest | mine))

    def check(self, *, feeds: bool | None = None) -> None:
        """Raise ConfigError for unknown names, several goals, or amounts that make no sense.

        feeds: whether it is for feeds; None where that is not known yet
        """
        _known("policy", self.policy, POLICIES_OF[feeds])
        _known("objective", self.objective, tuple(OBJECTIVES))
        if feeds and (asked := [name for name in OF_PAGES if getattr(self, name) is not None]):
            option = OPTIONS.get(asked[0], "--objective")
            raise ConfigError(f"{option} is for pages; feeds take --budget and --policy")
        goals = [OPTIONS[name] for name in GOALS if getattr(self, name) is not None]
        if len(goals) > 1:
            raise ConfigError(f"{' and '.join(goals)} exclude each other: give one of them")
        if self.budget is not None and self.budget <= 0:
            raise ConfigError("--budget has to be more than 0")


def _said(wish: Wish) -> dict[str, Any]:
    return {name: value for name, value in asdict(wish).items() if value is not None}


def _known(what: str, name: str | None, names: tuple[str, ...]) -> None:
    if name is not None and name not in names:
        raise ConfigError(f"no {what} {name!r}; there are: {', '.join(names)}")


PAGES, FEEDS = "pages", "feeds"
KINDS = (PAGES, FEEDS)


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
    order: Order, known: Sequence[str], feeds: Sequence[str], config: Config
) -> list[Part]:
    """The parts of an order, pages first; ConfigError where it is not clear or cannot be.

    known: all spiders that have targets     feeds: those of them that have feeds
    """
    _check_spiders(order, known)
    chosen = [name for name in known if order.spiders is None or name in order.spiders]
    of = {FEEDS: [n for n in chosen if n in feeds], PAGES: [n for n in chosen if n not in feeds]}
    kinds = [kind for kind in KINDS if of[kind] and order.kind in (None, kind)]
    if order.kind is not None and not kinds:
        raise ConfigError(f"--kind {order.kind}: there are none (scrapy targets shows what is)")
    if len(kinds) > 1 and order.wish.asks and not order.shared:
        raise ConfigError(
            "pages and feeds are planned apart: say what is meant (--kind pages, --kind feeds or "
            "--spider NAME), or give them one budget (--shared-budget)"
        )
    return [_part(order, kind, of[kind], known, feeds, config) for kind in kinds]


def _part(
    order: Order,
    kind: str,
    spiders: list[str],
    known: Sequence[str],
    feeds: Sequence[str],
    config: Config,
) -> Part:
    wish = order.wish.over(Wish.of_config(config, feeds=kind == FEEDS))
    wish.check(feeds=kind == FEEDS)
    there = [name for name in known if (name in feeds) == (kind == FEEDS)]
    return Part(kind, spiders, wish, len(spiders) == len(there), not order.wish.asks)


def _check_spiders(order: Order, known: Sequence[str]) -> None:
    if unknown := sorted(set(order.spiders or ()) - set(known)):
        names = ", ".join(known) or "none; run scrapy crawl first"
        raise ConfigError(f"no targets of {unknown[0]!r}; spiders with targets: {names}")
