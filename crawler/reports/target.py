"""One target: its stored state, its settings, the search for it, and its deletion.

The id of a target in URLs is its `_id` (spider and URL) in base64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from typing_extensions import TypedDict

from crawler.config import Config
from crawler.errors import Busy, ConfigError, suggestion_or_all
from crawler.extract.item_names import NAMES
from crawler.extract.item_values import Value, number_of
from crawler.items import CELL, Kind
from crawler.reports.items import described
from crawler.storage import leases, plans, posts, target_queries, targets
from crawler.storage.client import Database, Document
from crawler.storage.plans import VisitPlan
from crawler.storage.target_queries import TargetState, names_of, nearest, state_of, unknown
from crawler.storage.targets import PERIOD
from crawler.utils.shapes import copied
from crawler.utils.text import period
from crawler.utils.urls import is_http, target_id, target_key

if TYPE_CHECKING:
    from crawler.storage.dedup.signatures import Registry

MIN_HOURS = 1.0
MAX_URL_CHARACTERS = 8000
# Maximum number of fields to draw.
# Versions of an item, and changes, from which a spark line is drawn.
MAX_RECENT = 8
MAX_SERIES = 8


class IntervalLimits(TypedDict):
    """Limits of the interval between two visits, set for one target."""

    min_hours: float | None
    """Minimum interval in hours; null: that of the site."""
    max_hours: float | None
    """Maximum interval in hours; null: that of the site."""


class TargetSummary(TypedDict):
    """A target that a search found."""

    id: str
    """Id of the target in URLs."""
    spider: str
    """Name of the spider."""
    url: str
    """Canonical URL; for a cell `cell:NAME`."""
    kind: str
    """Kind of target: `list`, `item`, `feed` or `cell`."""
    outcome: str | None
    """Outcome of the last visit; null before the first."""
    visited_at: datetime | None
    """Time of the last visit; null before the first."""
    name: str
    """Name of an item: its title, or what its URL says of it."""
    values: list[Value]
    """Fields of an item that fit on a line, without its name; empty for other targets."""


class FoundTargets(TypedDict):
    """Targets by URL."""

    exact: list[TargetSummary]
    """Targets with this URL, or whose alias it is."""
    near: list[TargetSummary]
    """If there are none: targets with a similar URL, or whose URL begins with the text."""


class TargetReport(TypedDict):
    """A target with its settings."""

    id: str
    """Id of the target in URLs."""
    state: TargetState
    """The target, and the result of its last visit."""
    limits: IntervalLimits
    """Limits of the interval that were set for the target."""
    may_have_limits: bool
    """Whether limits can be set: not for cells with a fixed period and for pages of feed posts."""
    visits: int
    """Number of visits."""
    missed_visits: int
    """Number of planned visits that were not made."""
    kept_bytes: int
    """Uncompressed bytes of the stored versions, at most."""
    feed: str | None
    """For the page of a feed post: id of the post."""
    plan: VisitPlan | None
    """Schedule; null before the first plan and for aliases."""


class Point(TypedDict):
    """A value from a time on."""

    at: datetime
    """Time of the visit that found the value."""
    value: float
    """The value."""


class Series(TypedDict):
    """The values of one field over time."""

    name: str
    """Name of the field."""
    unit: str | None
    """Currency; null for other numbers, and if it changes."""
    points: list[Point]
    """Each change of the value, oldest first; the value lasts until the next point."""


async def read_target(db: Database, target: str) -> Document | None:
    """Return the stored target with this id from a URL; None if there is none."""
    key = target_key(target)
    return None if key is None else await target_queries.find(db, key)


def report_of(target: Document) -> TargetReport:
    """Return the report of a stored target."""
    return {
        "id": target_id(target["_id"]),
        "state": state_of(target),
        "limits": limits_of(target),
        "may_have_limits": _may_have_limits(target),
        "visits": target.get("requested", 0),
        "missed_visits": target.get("missed_visits", 0),
        "kept_bytes": target.get("kept_bytes", 0),
        "feed": target.get("post"),
        "plan": plans.plan_of(target),
    }


def limits_of(target: Document) -> IntervalLimits:
    """Return the limits of the interval that were set for a stored target."""
    limits = target.get("limits") or {}
    return {"min_hours": limits.get("min_hours"), "max_hours": limits.get("max_hours")}


def refusal_to_recheck(target: Document) -> str | None:
    """Return why a stored target cannot be made due, and what to do; None if it can."""
    if "muted_at" in target:
        return "it is muted. Unmute it first"
    if "retired" in target:
        return "its cell is not defined. Define the cell again, or forget it"
    return None


def _may_have_limits(target: Document) -> bool:
    return (target.get("plan") or {}).get("policy") != PERIOD and "post" not in target


async def search(db: Database, config: Config, text: str, spider: str | None) -> FoundTargets:
    """Return the targets with a URL, or similar ones. Raises ConfigError for an invalid URL."""
    text = text.strip()
    if len(text) > MAX_URL_CHARACTERS:
        raise ConfigError(f"the URL is longer than {MAX_URL_CHARACTERS:,} characters")
    is_name = text.startswith(CELL) or not is_http(text)
    names = [text] if is_name else list(dict.fromkeys([text, *names_of(text, config)]))
    if exact := await targets.of_url(db, names, spider):
        return {"exact": await _summaries(db, exact), "near": []}
    near = await target_queries.find_by_prefix(db, names, spider)
    if not near and not is_name:
        near = await targets.of_url(db, await nearest(db, text, ("targets",)), spider)
    return {"exact": [], "near": await _summaries(db, near)}


async def _summaries(db: Database, rows: Sequence[Document]) -> list[TargetSummary]:
    found = await described(db, [(row["spider"], row["url"]) for row in rows])
    return [
        {
            **copied(TargetSummary, row),
            "id": target_id(row["_id"]),
            "name": name,
            "values": values,
        }
        for row, (name, values) in zip(rows, found, strict=True)
    ]


def problems_of_limits(target: Document, limits: IntervalLimits, config: Config) -> dict[str, str]:
    """Return the problems of limits for a target, by field; empty if they can be set."""
    problems: dict[str, str] = {}
    if not _may_have_limits(target):
        reason = (
            "the period of this cell is fixed by its definition"
            if target["kind"] == Kind.CELL
            else "the page of a feed post is fetched once"
        )
        return {"": f"limits cannot be set: {reason}"}
    longest = config.longest_hours(feeds=target["kind"] == Kind.FEED)
    values: dict[str, Any] = {**limits}
    for name, hours in values.items():
        if hours is None:
            continue
        if not (math.isfinite(hours) and hours > 0):
            problems[name] = f"not valid: {hours:g}. Use 1 hour or more"
        elif hours < MIN_HOURS:
            problems[name] = f"too short: every {period(hours)}. Use 1 hour or more"
        elif hours > longest:
            problems[name] = (
                f"too long: every {period(hours)}. Use at most {period(longest)}, or raise "
                "FRESHET_MAX_INTERVAL_HOURS"
            )
    min_hours, max_hours = limits["min_hours"], limits["max_hours"]
    if not problems and min_hours is not None and max_hours is not None and min_hours > max_hours:
        problems["max_hours"] = "shorter than the minimum. Raise it, or lower the minimum"
    return problems


async def content_of_pair(
    db: Database, spider: str, url: str, hashes: tuple[str, str]
) -> tuple[Document, Document]:
    """Return two versions of a target. Raises ConfigError if one is not stored."""
    first, second = [await posts.read_version(db, spider, url, name) for name in hashes]
    if first is None or second is None:
        raise ConfigError(
            "version not stored: it was pruned, or the visit stored no content. Choose others"
        )
    return first, second


async def forget(db: Database, config: Config, url_or_name: str, *, delete: bool) -> dict[str, int]:
    """Return the number of documents to delete by collection, and delete them if `delete`.

    Raises ConfigError if there are none, or if the spider is being crawled.
    """
    # Slow: these load numpy.
    from crawler.storage import pruning
    from crawler.storage.dedup.index import as_stored

    async with as_stored(db, config) as registry:
        now = config.clock.now()
        if url_or_name.startswith(CELL):
            counts = await pruning.forget_url(db, registry, url_or_name, now, delete=delete)
        elif is_http(url_or_name):
            # A URL may be stored without some of its parameters. These differ between sites.
            for url in dict.fromkeys([url_or_name, *names_of(url_or_name, config)]):
                counts = await pruning.forget_url(db, registry, url, now, delete=delete)
                if any(counts.values()):
                    break
        else:
            counts = await _forget_spider(db, config, registry, url_or_name, now, delete=delete)
        if any(counts.values()):
            return counts
        if is_http(url_or_name):
            raise await unknown(db, url_or_name, ("targets", "posts"))
        stored = await targets.spiders(db)
        ending = suggestion_or_all(url_or_name, stored, "Sites with targets")
        raise ConfigError(f"no data stored for {url_or_name!r}{ending}")


async def _forget_spider(
    db: Database, config: Config, registry: Registry, spider: str, now: datetime, *, delete: bool
) -> dict[str, int]:
    """Count or delete the data of a spider; raises ConfigError if it is being crawled."""
    from crawler.storage import pruning

    if not delete:
        return await pruning.forget_spider(db, registry, spider, now, delete=False)
    # A run in progress would store what it fetches after its site is gone.
    try:
        busy = f"{spider} is being crawled"
        async with leases.held(db, config, f"{leases.CRAWL}{spider}", busy):
            return await pruning.forget_spider(db, registry, spider, now, delete=True)
    except Busy as error:
        hint = "Stop the run, or wait until it ends"
        raise ConfigError(f"{error.without_ending}. {hint}") from None


async def series_of(
    db: Database, spider: str, url: str, *, only_changed: bool = True
) -> list[Series]:
    """Return the fields of a target whose values are numbers, at most MAX_SERIES.

    only_changed: whether numbers that never changed are left out

    Uses the newest MAX_POINTS versions, and as many visits that found another version.
    """
    rows = await posts.short_values(db, spider, url)
    # A page may return to earlier content, which is stored as a version only once.
    changes = await posts.content_changes(db, spider, url)
    least = 2 if only_changed else 1
    found = [each for each in _series_in(rows, changes) if len(each["points"]) >= least]
    return found[:MAX_SERIES]


async def recent_series(
    db: Database, spider: str, ids: Sequence[str], since: datetime
) -> dict[str, dict[str, Series]]:
    """Return for items, by field, the numbers that changed since a time.

    The first point is the number at that time. Uses the newest MAX_RECENT versions and changes of
    each item.
    """
    found: dict[str, dict[str, Series]] = {}
    for row in await posts.newest_values(db, spider, ids, MAX_RECENT) if ids else ():
        of_item = found.setdefault(row["_id"], {})
        for series in _series_in(row["versions"], row["changes"]):
            points = series["points"]
            n_earlier = sum(point["at"] <= since for point in points)
            kept = points[max(0, n_earlier - 1) :]
            if n_earlier < len(points) and len(kept) > 1:
                of_item[series["name"]] = {**series, "points": kept}
    return found


def _series_in(rows: Sequence[Document], changes: Sequence[Document]) -> list[Series]:
    """Return the numbers in versions over time. changes: visits that found another version."""
    numbers = {
        row["content_hash"]: {
            pair["k"]: number
            for pair in row["values"]
            # A name such as `Lamp 23` is no number.
            if pair["k"] not in NAMES and (number := number_of(pair["v"])) is not None
        }
        for row in rows
    }
    times = {(row["at"], row["content_hash"]) for row in rows}
    times |= {(row["at"], row["content_hash"]) for row in changes if row.get("content_hash")}
    by_name: dict[str, Series] = {}
    for at, content_hash in sorted(times):
        for name, (value, unit) in numbers.get(content_hash, {}).items():
            series = by_name.setdefault(name, {"name": name, "unit": unit, "points": []})
            series["unit"] = unit if series["unit"] == unit else None
            if not series["points"] or series["points"][-1]["value"] != value:
                series["points"].append({"at": at, "value": value})
    return list(by_name.values())
