"""The reports of `scrapy explain` and `scrapy replan`, and of a dry run in the web app.

Commands and servers import these types, so this module imports neither NumPy nor Numba.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from typing_extensions import TypedDict

from crawler.planning.budget_curve import BudgetResults
from crawler.storage.plans import VisitPlan


class LastChange(TypedDict):
    """When the last change happened."""

    after: datetime
    """Last observation before the change."""
    by: datetime
    """Observation that found the change."""


class ObservedHistory(TypedDict):
    """What visits observed."""

    since: datetime | None
    """First observation; null before it and for aliases."""
    until: datetime | None
    """Last observation."""
    observations: int
    """Number of visits that saw the page."""
    changes: int
    """Number of changes found, at most the newest 512. Those within one minute count as one."""
    last_change: LastChange | None
    """The last change; null before the first."""
    dates_trusted: bool
    """Whether the dates that the site states are used."""


class RateEstimate(TypedDict):
    """An estimated rate of changes; for a feed: of posts."""

    per_week: float
    """Mean number per week."""
    low: float
    """5 % quantile."""
    high: float
    """95 % quantile."""
    known: bool
    """Whether the 95 % quantile is at most ten times the 5 % quantile."""


class VisitValue(TypedDict):
    """Hours of staleness that visits save by the current estimate."""

    last: float | None
    """Hours that the last planned visit of a week saves."""
    more: float | None
    """Hours that one more visit would save."""
    shadow_price: float | None
    """Minimum saving of a visit in the plan."""


class Expectation(TypedDict):
    """Estimates from the history of a target."""

    rate: RateEstimate
    """Rate of changes; for a feed: of posts."""
    changes_by_hour: dict[str, list[float]]
    """Expected changes per week by day and hour, in the site's time zone."""
    freshness: float | None
    """Expected share of time in which the copy is current; null without a schedule."""
    age_days: float | None
    """Expected mean age of the copy in days; null without a schedule."""
    value: VisitValue | None
    """For a page: the value of its visits."""


class PollBounds(TypedDict):
    """Polls that a feed asks for."""

    every_hours: float | None
    """Minimum interval in hours."""
    skip_hours: list[int]
    """Hours of the UTC day without polls."""
    skip_days: list[int]
    """Days without polls; 0 = Monday."""


class ExplainedFeed(TypedDict):
    """The state of a feed."""

    title: str | None
    """Title in the document."""
    site: str | None
    """URL of the site in the document."""
    format: str | None
    """Format, such as `rss20`, `atom10`, `json11`."""
    feed_size: int | None
    """Number of posts in the document."""
    full: bool
    """Whether posts have left the document, so that it never holds more than `feed_size`."""
    posts: int
    """Number of collected posts."""
    missed_posts: float
    """Estimated number of missed posts."""
    gaps: int
    """Number of visits that missed posts."""
    last_gap_at: datetime | None
    """Last visit that missed posts."""
    newest: datetime | None
    """Date of the newest post."""
    bounds: PollBounds | None
    """Polls that the feed asks for."""
    hubs: list[str]
    """URLs of WebSub hubs."""
    problems: list[str]
    """Errors in the document."""
    error: str | None
    """Cause of the last failure; null after a success."""


class PlannedVisits(TypedDict):
    """Numbers of visits."""

    made: int
    """Number of visits."""
    missed: int
    """Number of planned visits that were not made."""


class Explanation(TypedDict):
    """State, estimates and plan of a target."""

    url: str
    """Canonical URL; for a cell `cell:NAME`."""
    spider: str
    """Name of the spider."""
    kind: str
    """Kind of target: `list`, `item`, `feed` or `cell`."""
    categories: list[str]
    """The newest 100 categories of an item or feed."""
    first_seen: datetime
    """Time of discovery."""
    visited_at: datetime | None
    """Time of the last visit; null before the first."""
    outcome: str | None
    """Outcome of the last visit."""
    timezone: str
    """IANA time zone of the site."""
    history: ObservedHistory
    """What visits observed."""
    expected: Expectation | None
    """Estimates; null for aliases and for pages that are gone."""
    feed: ExplainedFeed | None
    """State of a feed; null for other targets."""
    plan: VisitPlan | None
    """Schedule; null before the first plan and for aliases."""
    planned_at: datetime | None
    """Time of the replan; null if the plan is no longer stored."""
    visits: PlannedVisits
    """Numbers of visits."""
    reasons: list[str]
    """Sentences that explain when and why the target is visited."""
    not_compared: str | None
    """Why an item is not compared with others to find near-duplicates; null if it is."""
    next_visit: datetime
    """Time from which the target is due."""
    ahead: list[datetime]
    """Planned visits of the next 48 hours, at most 48."""


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
    lists_per_day: float | None
    """For pages: visits of list pages and sitemaps that show changes, part of the requests."""
    flags_per_day: float | None
    """For pages: expected visits that these cause, part of the requests."""
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
    second_requests: int
    """Second requests of the last 7 days, which find random text; no budget counts them."""
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
    current: BudgetResults
    """With the current schedules."""
    planned: BudgetResults
    """With the new plan."""


class Move(TypedDict):
    """A target whose visits would change."""

    site: str
    """Name of the site."""
    url: str
    """URL of the target; truncated if it is very long."""
    per_week: float
    """Estimated changes of the page, or posts of the feed, per week."""
    visits_per_week_before: float
    """Visits per week with the current schedule."""
    visits_per_week: float
    """Visits per week with the new plan."""
    share_before: float
    """Expected freshness, or share of missed posts, with the current schedule."""
    share: float
    """Expected freshness, or share of missed posts, with the new plan."""


class BudgetPreview(TypedDict):
    """A new plan that is not stored, next to the current schedules."""

    report: ReplanReport
    """The report of `scrapy replan --dry-run`."""
    plans: list[str]
    """Ids of the plans in effect, as in the budget curve."""
    current: BudgetResults
    """With the current schedules."""
    planned: BudgetResults
    """With the new plan."""
    sites: list[SiteMoves]
    """Moves by site, the largest change of requests first."""
    moves: list[Move]
    """Targets whose visits would change most, the largest change first."""
