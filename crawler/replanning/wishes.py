"""What a user asks of a plan, now and in the settings."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

from crawler.config import Config
from crawler.errors import ConfigError
from schedules.feedplans import FEED_POLICIES
from schedules.staleness import Objective
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
