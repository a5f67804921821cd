"""The report of `scrapy explain`: types only, so that importing it needs no NumPy."""

from __future__ import annotations

from datetime import datetime

from typing_extensions import TypedDict

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
    next_visit: datetime
    """Time from which the target is due."""
    ahead: list[datetime]
    """Planned visits of the next 48 hours, at most 48."""
