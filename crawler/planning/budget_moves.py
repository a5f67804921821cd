"""Describe the result of a dry run in the web app: what a new plan would move."""

from __future__ import annotations

from typing_extensions import TypedDict

from crawler.planning.budget_curve import Standing
from crawler.planning.replan_report import ReplanReport


class SiteMoves(TypedDict):
    """What a new plan would move at a site."""

    site: str
    """Name of the site; empty for all smaller sites together."""
    targets: int
    """Number of planned targets."""
    updated: int
    """Number of targets that would get a new schedule."""
    more: int
    """Number of targets that would be visited more often."""
    fewer: int
    """Number of targets that would be visited less often."""
    current: Standing
    """With the current schedules."""
    planned: Standing
    """With the new plan."""


class Move(TypedDict):
    """A target whose visits would change."""

    site: str
    """Name of the site."""
    url: str
    """URL of the target; cut if it is very long."""
    visits_per_week_before: float
    """Visits per week with the current schedule."""
    visits_per_week: float
    """Visits per week with the new plan."""
    freshness_before: float
    """Expected freshness with the current schedule."""
    freshness: float
    """Expected freshness with the new plan."""
    changes_per_week: float
    """Estimated changes per week."""


class BudgetPreview(TypedDict):
    """A new plan that is not stored, next to the current schedules."""

    report: ReplanReport
    """The report of `scrapy replan --dry-run`."""
    plans: list[str]
    """Ids of the plans in effect, as in the budget curve."""
    current: Standing
    """With the current schedules."""
    planned: Standing
    """With the new plan."""
    sites: list[SiteMoves]
    """Moves by site, the largest change of requests first."""
    moves: list[Move]
    """Targets whose visits would change most, the largest change first."""
