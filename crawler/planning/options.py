"""Hold the options of a replan, and determine the budget and the caps from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from crawler.config import Config
from crawler.errors import ConfigError, NoTargets, no_targets
from crawler.planning.population import Gathered
from crawler.storage.client import Document
from crawler.storage.histories import Watched
from crawler.utils.text import DAY, amount, count, period, rounded_up, span
from schedules.allocation.plan import GoalTooHigh, budget_for, sampled
from schedules.cost import Objective
from schedules.estimation.estimate import estimate
from schedules.evaluation.feeds import FEED_POLICIES
from schedules.history import DAY_HOURS, Flags, Floats
from schedules.population import min_per_day
from schedules.schedule import WEEK_DAYS
from schedules.terms import POLICIES, UNBOUNDED, BudgetTooSmall, Terms

# Default daily cap of a plan, as a multiple of its budget.
CAP_OF_BUDGET = 1.5
# Sources of a budget: the user, a goal, the fixed intervals, several plans, or the policy itself.
GIVEN, GOAL, INTERVALS, PLANS, POLICY = "given", "goal", "intervals", "plans", "policy"


@dataclass(frozen=True, slots=True)
class Budget:
    """Hold the budget of a plan.

    per_day: requests a day, inf if the policy ignores the budget
    source:  source of the number, possibly inherited from an earlier plan
    kept:    whether it is the budget of the current plan
    added:   part of it for targets that are not in the current plan
    """

    per_day: float
    source: str
    kept: bool = False
    added: float = 0.0


@dataclass(frozen=True, slots=True)
class Effect:
    """Hold the plans in effect before a replan.

    latest:     latest plan of each spider; None before the first
    older:      all plans that targets still follow, by id as text
    everything: whether all spiders take part in the replan
    """

    latest: Mapping[str, Document | None]
    older: Mapping[str, Document]
    everything: bool = False

    @property
    def whole(self) -> list[Document]:
        """Return the distinct latest plans whose spiders all take part.

        Sampling phases are excluded, because they do not set a budget.
        """
        plans = {str(plan["_id"]): plan for plan in self.latest.values() if plan is not None}
        return [
            plan
            for plan in plans.values()
            if plan.get("policy") in (*POLICIES, *FEED_POLICIES)
            and (self.everything or set(plan["spiders"]) <= set(self.latest))
        ]

    @property
    def options(self) -> PlanOptions:
        """Return the options of the current plan except its budget; empty for several plans."""
        if len(self.whole) != 1:
            return PlanOptions()
        (plan,) = self.whole
        daily, budget = plan.get("daily_cap", 0), plan.get("budget_per_day")
        usual = math.ceil(CAP_OF_BUDGET * budget) if budget else 0
        return PlanOptions(
            policy=plan["policy"],
            objective=plan.get("objective"),
            daily_cap=None if daily == usual else daily,
            hourly_cap=plan.get("hourly_cap"),
        )


def terms_of(
    gathered: Gathered, options: PlanOptions, effect: Effect, now_hours: float
) -> tuple[Terms, Budget]:
    """Return the terms of a plan and its budget. Raises ConfigError if a cap is too low."""
    budget = Budget(math.inf, POLICY)
    if (options.policy or POLICIES[0]) not in UNBOUNDED:
        budget = budget_of(gathered, options, effect, now_hours)
    return terms_within(options, budget), budget


def terms_within(options: PlanOptions, budget: Budget) -> Terms:
    """Return the terms of a plan with this budget. Raises ConfigError if a cap is too low."""
    policy, aim = options.policy or POLICIES[0], OBJECTIVES[options.objective or BALANCED]
    daily = _cap(options.daily_cap, budget.per_day, "daily", DAY_HOURS)
    if options.daily_cap is None and math.isfinite(budget.per_day):
        daily = math.ceil(CAP_OF_BUDGET * budget.per_day)
    hourly = _cap(options.hourly_cap, budget.per_day, "hourly", 1)
    return Terms(policy, budget.per_day, daily, hourly, aim)


def budget_of(gathered: Gathered, options: PlanOptions, effect: Effect, now_hours: float) -> Budget:
    """Return the budget that a replan with these options would use.

    Without a budget or goal in the options, it is the budget of the current plan or, without a
    plan, the number of requests at the fixed intervals. Raises ConfigError if no budget reaches the
    goal.
    """
    if options.budget is not None:
        return Budget(options.budget, GIVEN)
    if not options.has_goal:
        return current_budget(Usage.of(gathered, effect), effect)
    days = None if options.max_age_hours is None else options.max_age_hours / DAY_HOURS
    sample, share = sampled(estimate(gathered.population, gathered.histories))
    return goal_budget(
        options, lambda: budget_for(sample, share, now_hours, options.freshness, days)
    )


def goal_budget(options: PlanOptions, per_day: Callable[[], float]) -> Budget:
    """Return the budget that a goal needs. Raises ConfigError if no budget reaches the goal.

    per_day: computes the requests a day, or raises GoalTooHigh
    """
    try:
        return Budget(per_day(), GOAL)
    except GoalTooHigh as error:
        if options.max_age_hours is None:
            best, goal = f"{error.best:.3f}", f"freshness {options.freshness:g}"
        else:
            best, goal = span(error.best * DAY), f"age {options.max_age_hours:g} h"
        raise ConfigError(
            f"{goal} cannot be reached: hourly visits to all targets give {best}. Relax the goal"
        ) from None


class Usage(NamedTuple):
    """Hold the requests that targets use so far. The usage of parts can be added.

    minimum: requests a day that keep the longest intervals
    apart:   requests a day of targets whose plan includes spiders that do not take part
    added:   requests a day at the fixed intervals, of targets for which the budget grows
    planned, growing: number of targets with a plan, and of those for which the budget grows
    """

    minimum: float
    apart: float
    added: float
    planned: int
    growing: int

    @classmethod
    def of(cls, gathered: Gathered, effect: Effect) -> Usage:
        """Return the usage of these targets. If the user chose a budget, new targets share it."""
        watched, whole = gathered.watched, effect.whole
        # Polls of a sampling phase, whose plan has an end, are not part of the plans' budgets.
        lasting = [
            plan is None or plan.get("until") is None
            for plan in map(effect.older.get, watched.plans)
        ]
        planned = np.array([*lasting, False])[watched.plan]
        apart = planned & ~_planned_by(whole, watched)
        chosen = [plan for plan in whole if _source(plan) in (GIVEN, GOAL)]
        growing = ~planned & ~_planned_by(chosen, watched)
        return cls(
            min_per_day(gathered.population),
            float(watched.schedules.visits_per_week[apart].sum() / WEEK_DAYS),
            float(gathered.fixed[growing].sum()),
            int(np.count_nonzero(planned)),
            int(np.count_nonzero(growing)),
        )

    @classmethod
    def joined(cls, parts: Sequence[Usage]) -> Usage:
        """Return the usage of all parts together."""
        return cls(
            math.fsum(part.minimum for part in parts),
            math.fsum(part.apart for part in parts),
            math.fsum(part.added for part in parts),
            sum(part.planned for part in parts),
            sum(part.growing for part in parts),
        )


def current_budget(usage: Usage, effect: Effect) -> Budget:
    """Return the current budget: that of the plans, and fixed intervals for unplanned targets.

    The nominal budget of a plan counts, because the number of requests actually planned would
    shrink with each replan.
    """
    whole = effect.whole
    spent = sum(
        float(plan.get("budget_per_day") or plan["totals"]["requests_per_day"]) for plan in whole
    )
    grows = usage.growing > 0 or not whole
    source = {_source(plan) for plan in whole} | ({INTERVALS} if grows else set())
    return Budget(
        max(spent + usage.apart + usage.added, usage.minimum),
        source.pop() if len(source) == 1 else PLANS,
        usage.planned > 0,
        usage.added,
    )


def _source(plan: Document) -> str:
    """Return the source of a plan's budget."""
    source: str = plan.get("budget_from", INTERVALS)
    return source


def _planned_by(plans: list[Document], watched: Watched) -> Flags:
    """Return (n,) flags of the targets of the spiders in these plans."""
    names = {name for plan in plans for name in plan["spiders"]}
    numbers = [number for number, name in enumerate(watched.spiders) if name in names]
    return np.isin(watched.spider, numbers)


def _cap(requests: float | None, budget: float, name: str, hours: int) -> float | None:
    """Return the maximum requests in this many hours; None: no cap."""
    if not requests:
        return None
    cap, share = max(1, math.floor(requests)), budget * hours / DAY_HOURS
    if math.isfinite(budget) and cap < share * (1 - 1e-9):
        raise ConfigError(
            f"the {name} cap {cap:,} is too low for {amount(budget)} requests a day. "
            f"Use --{name}-cap {math.ceil(share):,} or more"
        )
    return cap


def too_small(budget: float, error: BudgetTooSmall, longest: Floats) -> ConfigError:
    """Return the error for a budget that does not cover every target's longest interval.

    longest: these intervals in hours, or the shortest and the longest of them
    """
    needed = rounded_up(error.min_per_day)
    even = np.ptp(longest) == 0
    how = f"every {period(float(longest[0]))}" if even else "at their longest intervals"
    return ConfigError(
        f"budget {amount(budget)}/day is too small: "
        f"{count(error.targets, 'target')} visited {how} need {needed}/day. "
        f"Use --budget {needed}/day or more"
    )


PAGES, FEEDS = KINDS = ("pages", "feeds")
BALANCED = "balanced"
OBJECTIVES = {
    BALANCED: Objective(),
    # With staleness only, pages that change fast would be given up, so age keeps a small weight.
    "freshness": Objective(0.99, 0.01, 0.0),
    "age": Objective(0.0, 1.0, 0.0),
    "delay": Objective(0.0, 0.0, 1.0),
}
GOALS = ("budget", "freshness", "max_age_hours")
OPTIONS = {"budget": "--budget", "freshness": "--freshness", "max_age_hours": "--max-age"}
PAGE_OPTIONS = ("objective", "freshness", "max_age_hours")
POLICIES_BY_KIND = {
    False: POLICIES,
    True: FEED_POLICIES,
    None: tuple(dict.fromkeys((*POLICIES, *FEED_POLICIES))),
}


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Hold the options of a plan; None where an option is not given.

    budget:                   requests a day
    freshness, max_age_hours: goal that determines the budget
    daily_cap, hourly_cap:    maximum requests; 0: no cap
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
        """Return the options in the settings, for pages or for feeds."""
        if feeds:
            return cls(config.feed_policy, budget=config.feed_budget)
        return cls(
            config.policy, config.objective, config.budget,
            daily_cap=config.daily_cap, hourly_cap=config.hourly_cap,
        )  # fmt: skip

    @property
    def has_goal(self) -> bool:
        """Return whether the options determine the budget, directly or by a goal."""
        return any(name in self.given for name in GOALS)

    def is_reached(self, freshness: float, age_days: float) -> bool:
        """Return whether a plan with these means reaches the goal: freshness if given, else age."""
        if self.freshness is not None:
            return freshness >= self.freshness
        return age_days * DAY_HOURS <= (self.max_age_hours or 0.0)

    @property
    def given(self) -> dict[str, Any]:
        """Return the options that are given."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def is_given(self) -> bool:
        """Return whether any option is given."""
        return bool(self.given)

    def over(self, other: PlanOptions) -> PlanOptions:
        """Return these options, completed from `other`. A budget or goal replaces any other one."""
        base = other.given
        if self.has_goal:
            base = {name: value for name, value in base.items() if name not in GOALS}
        return PlanOptions(**(base | self.given))

    def check(self, *, feeds: bool | None = None) -> None:
        """Raise ConfigError for unknown names, several goals, and invalid amounts.

        feeds: whether the options are for feeds; None if unknown
        """
        for what, name, names in (
            ("policy", self.policy, POLICIES_BY_KIND[feeds]),
            ("objective", self.objective, tuple(OBJECTIVES)),
        ):
            if name is not None and name not in names:
                raise ConfigError(f"{what} not found: {name!r}. Available: {', '.join(names)}")
        if feeds and (of_pages := [name for name in PAGE_OPTIONS if name in self.given]):
            option = OPTIONS.get(of_pages[0], "--objective")
            raise ConfigError(
                f"{option} applies to pages only. For feeds, use --budget and --policy"
            )
        goals = [OPTIONS[name] for name in GOALS if name in self.given]
        if len(goals) > 1:
            raise ConfigError(f"{' and '.join(goals)} cannot be combined. Use one of them")
        if self.budget is not None and self.budget <= 0:
            raise ConfigError("--budget must be greater than 0")


@dataclass(frozen=True, slots=True)
class ReplanRequest:
    """Hold the request for a replan.

    options: of the plan
    spiders: None: all
    kind:    one of KINDS, None: both
    shared:  pages and feeds share one budget
    """

    options: PlanOptions
    spiders: list[str] | None = None
    kind: str | None = None
    shared: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """Hold the pages or the feeds of some spiders, and the options for them.

    everything: whether these are all spiders of the kind
    is_default:   whether no option is given
    """

    kind: str
    spiders: list[str]
    options: PlanOptions
    everything: bool
    is_default: bool


def parts_of(
    order: ReplanRequest, stored: Sequence[str], feeds: Sequence[str], config: Config
) -> list[Part]:
    """Return the parts of a request, pages first. Raises ConfigError if it is ambiguous or invalid.

    stored: all spiders that have targets
    feeds:  those of them that have feeds
    """
    if unknown := sorted(set(order.spiders or ()) - set(stored)):
        raise no_targets(unknown[0], stored)
    parts = []
    for kind in KINDS:
        of_kind = [name for name in stored if (name in feeds) == (kind == FEEDS)]
        chosen = [name for name in of_kind if order.spiders is None or name in order.spiders]
        if chosen and order.kind in (None, kind):
            options = order.options.over(PlanOptions.of_config(config, feeds=kind == FEEDS))
            everything = len(chosen) == len(of_kind)
            parts.append(Part(kind, chosen, options, everything, not order.options.is_given))
    if order.kind is not None and not parts:
        raise NoTargets(f"no {order.kind} to plan. Run scrapy targets to list all targets")
    if len(parts) > 1 and order.options.is_given and not order.shared:
        raise ConfigError(
            "pages and feeds have separate plans. Select one with --kind pages, --kind feeds or "
            "--spider NAME, or use one budget for both with --shared-budget"
        )
    for part in parts:
        part.options.check(feeds=part.kind == FEEDS)
    return parts
