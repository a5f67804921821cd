"""Define the reports of a replan and of a dry run in the web app.

Commands and servers import these types, so this module imports neither NumPy nor Numba.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from typing_extensions import TypedDict

from crawler.planning.budget_curve import FeedResults, PageResults


class DailyTotals(TypedDict):
    """Expected results of crawling each page daily."""

    requests_per_day: int
    """Requests per day: the number of pages."""
    freshness: float | None
    """Mean freshness."""
    age_days: float | None
    """Mean age in days."""


class ReplanTotals(TypedDict):
    """Expected results of a plan."""

    requests_per_day: float
    """Mean requests per day."""
    min_per_day: float
    """Requests per day if each target has its maximum interval."""
    known: bool
    """Whether change rates are known well enough."""
    freshness: float | None
    """For pages: mean freshness."""
    age_days: float | None
    """For pages: mean age in days."""
    load: float | None
    """For pages: requests as a share of those of daily crawling."""
    daily: DailyTotals | None
    """For pages: the same figures for daily crawling."""
    posts_per_day: float | None
    """For feeds: posts per day."""
    missed_share: float | None
    """For feeds: share of missed posts."""
    delay_hours: float | None
    """For feeds: mean delay of collected posts in hours."""


class IgnoredData(TypedDict):
    """Data that the plan does not use."""

    future: int
    """Number of targets with visits in the future."""


class SpiderIntervals(TypedDict):
    """Limits of the intervals of a spider."""

    spider: str
    """Name of the spider."""
    min_hours: float
    """Minimum interval in hours."""
    max_hours: float
    """Maximum interval in hours."""


class ReplanReport(TypedDict):
    """A new plan."""

    kind: Literal["pages", "feeds"]
    """`pages` or `feeds`, which have separate plans."""
    at: datetime
    """Time of the replan."""
    spiders: list[str]
    """Names of the planned spiders."""
    policy: str
    """Allocation policy."""
    objective: str | None
    """For pages: objective of the policy `optimal`."""
    budget_per_day: float | None
    """Mean requests per day; null if the policy ignores the budget."""
    budget_from: str
    """Source of the budget: `given`, `goal`, `intervals`, `plans` or `policy`."""
    budget_kept: bool
    """Whether the former plan had the same budget."""
    budget_added: float | None
    """Part of the budget for new targets."""
    daily_cap: int
    """Maximum visits per UTC day; 0: no cap."""
    hourly_cap: int
    """Maximum visits per hour; 0: no cap."""
    shadow_price: float | None
    """Hours of staleness that a visit has to save; for feeds: posts per fetch."""
    targets: int
    """Number of planned targets."""
    unplanned: int
    """Number of targets without a former plan."""
    updated: int
    """Number of targets whose plan was changed."""
    learning: int
    """Number of targets in a sampling phase, whose plans are kept."""
    dated: list[str]
    """Spiders whose Last-Modified dates are reliable."""
    limited_by: dict[str, int]
    """Number of targets by reason that limits visits, as in `limited_by` of `scrapy explain`."""
    totals: ReplanTotals
    """Expected results."""
    ignored: IgnoredData
    """Data that the plan does not use."""
    limits: list[SpiderIntervals]
    """For the policy `adaptive`: limits of the intervals."""
    warnings: list[str]
    """Warnings."""
    dry_run: bool
    """Whether the plan was not stored."""
    seconds: float
    """Duration in seconds."""
    planning_seconds: float
    """Duration without reading and writing, in seconds."""


class SiteMoves(TypedDict):
    """Moves of a new plan at a site."""

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
    current: PageResults
    """With the current schedules."""
    planned: PageResults
    """With the new plan."""


class Move(TypedDict):
    """A target whose visits would change."""

    site: str
    """Name of the site."""
    url: str
    """URL of the target; truncated if it is very long."""
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
    current: PageResults
    """With the current schedules."""
    planned: PageResults
    """With the new plan."""
    sites: list[SiteMoves]
    """Moves by site, the largest change of requests first."""
    moves: list[Move]
    """Targets whose visits would change most, the largest change first."""


class FeedMove(TypedDict):
    """A feed whose fetches would change."""

    spider: str
    """Name of the spider."""
    url: str
    """URL of the feed; truncated if it is very long."""
    posts_per_week: float
    """Expected posts per week."""
    visits_per_week_before: float
    """Fetches per week with the current schedule."""
    visits_per_week: float
    """Fetches per week with the new plan."""
    missed_share_before: float
    """Expected share of missed posts with the current schedule."""
    missed_share: float
    """Expected share of missed posts with the new plan."""


class FeedBudgetPreview(TypedDict):
    """A new plan for feeds that is not stored, next to the current schedules."""

    report: ReplanReport
    """The report of `scrapy replan --dry-run`."""
    plans: list[str]
    """Ids of the plans in effect, as in the budget curve."""
    current: FeedResults
    """With the current schedules."""
    planned: FeedResults
    """With the new plan."""
    more: int
    """Number of feeds that would be fetched more often."""
    fewer: int
    """Number of feeds that would be fetched less often."""
    moves: list[FeedMove]
    """Feeds whose fetches would change most, the largest change first."""
