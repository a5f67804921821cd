"""Output of `scrapy replan`, `plan` and `explain`: plans as text, tables and text charts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from crawler.planning import report
from crawler.planning.report import PlanOverview
from crawler.planning.report_types import ReplanReport
from crawler.utils.terminal import shortened, stdout
from crawler.utils.text import (
    DAY,
    HOUR,
    NOT_KNOWN,
    amount,
    count,
    listed,
    precise,
    relative,
    span,
)
from schedules.calendar import DAYS
from schedules.history import DAY_HOURS, Floats

BUDGET_SOURCES = {
    "goal": "required by the goal",
    "intervals": "same as the fixed intervals",
    "plans": "same as the current plans",
}
CAPS = (("daily_cap", "on one day"), ("hourly_cap", "in an hour"))
# Shorter names, for the first line of `scrapy plan`.
SHORT_CAPS = (("daily_cap", "a day"), ("hourly_cap", "an hour"))
FIGURES = {
    "pages": ("freshness", "age"),
    "feeds": ("posts missed a week", "delay"),
}
URL_SUMS = {"changes": "all", "update_size": "bytes", "diff_size": "chars"}
SIZES = {
    "changes": "Changes",
    "update_size": "Sizes of changes in bytes: how much longer or shorter pages became",
    "diff_size": "Sizes of changes in characters inserted and deleted",
}
# Share of the requests: lists that cause fewer visits are not worth a line.
MIN_FLAGS_SHARE = 0.01
BARS = " ▁▂▃▄▅▆▇█"
MARK = "●"
SHADES = " ░▒▓█"
HOURS = "0     6     12    18     "

Report = Mapping[str, Any]


def show_replan(plans: Sequence[ReplanReport]) -> None:
    """Print the plans of a replan."""
    console = stdout()
    for number, plan in enumerate(plans):
        if number:
            console.print()
        table = Table.grid(padding=(0, 2))
        for name, text in _lines(plan).items():
            table.add_row(name, text)
        console.print(table)
        for warning in plan["warnings"]:
            console.print(f"note: {warning}")
        if plan["dry_run"]:
            console.print("dry run: no plan was stored")


def _lines(plan: Report) -> dict[str, str]:
    """Return the lines that describe a plan, by their labels."""
    totals, is_feeds = plan["totals"], plan["kind"] == "feeds"
    heading = "feeds" if is_feeds else "targets"
    new = f", {plan['unplanned']:,} without a plan before" if plan["unplanned"] else ""
    with_objective = not is_feeds and plan["policy"] == "optimal"
    objective = f", objective {plan['objective']}" if with_objective else ""
    lines = {
        heading: f"{plan['targets']:,} of {listed(plan['spiders'])}{new}",
        "policy": f"{plan['policy']}{objective}",
        "requests": f"{totals['requests_per_day']:,.1f} a day{_budget(plan)}",
    }
    if is_feeds:
        lines["posts"] = NOT_KNOWN
        if totals["known"]:
            missed, delay = totals["missed_share"], totals["delay_hours"]
            lines["posts"] = (
                f"{totals['posts_per_day']:,.1f} a day expected, "
                f"{'an unknown share' if missed is None else f'{missed:.1%}'} missed; "
                f"delay {'unknown' if delay is None else span(delay * HOUR)}"
            )
        saves = f"a fetch is added if it saves at least {count(plan['shadow_price'] or 0, 'post')}"
    else:
        daily = totals["daily"]
        result = f" would give {_freshness(daily)}" if totals["known"] else ""
        lines["freshness"] = _freshness(totals, " expected") if totals["known"] else NOT_KNOWN
        lines["daily crawl"] = (
            f"{daily['requests_per_day']:,} a day{result}; "
            f"this plan makes {relative(totals['load'], 'these requests')}"
        )
        if (totals["flags_per_day"] or 0) > MIN_FLAGS_SHARE * totals["requests_per_day"]:
            lines["lists"] = (
                f"{amount(totals['lists_per_day'])} of these requests read list pages and sitemaps "
                f"that show changes, and {amount(totals['flags_per_day'])} the pages that changed"
            )
        hours = count(plan["shadow_price"] or 0, "hour")
        saves = f"a visit is added if it saves at least {hours} of staleness"
    if plan["shadow_price"] is not None:
        lines["marginal value"] = saves
    if plan["second_requests"]:
        lines["not counted"] = _second_requests(plan)
    if not is_feeds and plan["dated"]:
        lines["dates"] = f"trusted for {listed(plan['dated'])}"
    moved, targets = plan["updated"], plan["targets"]
    return lines | {"updated": f"{moved:,} of {targets:,} ({moved / targets:.1%})"}


def _second_requests(plan: Report) -> str:
    return f"{count(plan['second_requests'], 'second request')} in the last week, for random text"


def _budget(plan: Report) -> str:
    """Return the budget, its source and the caps, to follow the number of requests."""
    caps = [f"at most {plan[name]:,} {time}" for name, time in CAPS if plan[name]]
    if plan["budget_per_day"] is None:
        budget = "set by the policy, which ignores the budget"
    else:
        budget = f"of {precise(plan['budget_per_day'])}"
        source = "unchanged" if plan["budget_kept"] else BUDGET_SOURCES.get(plan["budget_from"])
        if plan["budget_kept"] and plan["budget_added"]:
            source = f"unchanged, plus {amount(plan['budget_added'])} for new targets"
        if source:
            budget += f" ({source})"
    return ", ".join(["", budget, *caps])


def _freshness(totals: Report, expected: str = "") -> str:
    value, days = totals["freshness"], totals["age_days"]
    freshness = "unknown" if value is None else f"{value:.3f}"
    return f"{freshness}{expected}, age {'unknown' if days is None else span(days * DAY)}"


def show_plan(console: Console, plan: PlanOverview) -> None:
    """Print the current plans."""
    summaries: Sequence[Report] = plan["plans"]
    for part in summaries:
        budget = part["budget_per_day"]
        parts = [
            f"policy {part['policy']}",
            f"budget {precise(budget)} a day" if budget else "no budget",
            *(f"at most {part[name]:,} {time}" for name, time in SHORT_CAPS if part[name]),
        ]
        at, names = f"{part['at']:%Y-%m-%d %H:%M} UTC", listed(part["spiders"])
        console.print(f"plan of {at} for {names}: {', '.join(parts)}")
    totals, kind = plan["totals"], plan["kind"]
    table = Table("expected", "requests a day", *FIGURES[kind])
    table.add_row("this plan", f"{totals['requests_per_day']:,.1f}", *_figures(totals, kind))
    if kind == "pages":
        daily = totals["daily"] | {"known": totals["known"]}
        requests = f"{daily['requests_per_day']:,}"
        table.add_row("daily crawling", requests, *_figures(daily, kind))
    _align_right(table)
    console.print(table)
    counts = [count(plan["targets"], "target")]
    if totals["load"] is not None:
        counts.append(relative(totals["load"], "the requests of daily crawling"))
    if plan["unplanned"]:
        counts.append(f"{plan['unplanned']:,} not planned until the next replan")
    if plan["learning"]:
        counts.append(f"{plan['learning']:,} in a sampling phase")
    if plan["second_requests"]:
        counts.append(f"not counted: {_second_requests(plan)}")
    console.print("; ".join(counts))
    console.print()
    classes = Table("class", "targets", "requests a day", *FIGURES[kind])
    for row in plan["groups"]:
        per_day = f"{row['requests_per_day']:,.1f}"
        classes.add_row(
            row["frequency_class"], f"{row['targets']:,}", per_day, *_figures(row, kind)
        )
    _align_right(classes)
    console.print(classes)
    _show_times(console, plan)
    for part in summaries:
        if part["hourly_cap"]:
            console.print(
                f"crawls of {listed(part['spiders'])} make at most "
                f"{count(part['hourly_cap'], 'request')} an hour; visits above that are made in "
                "later hours"
            )


def _figures(row: Report, kind: str) -> tuple[str, str]:
    if not row["known"]:
        return NOT_KNOWN, ""
    if kind == "feeds":
        missed, delay = row["missed_per_week"], row["delay_hours"]
        return amount(missed), "" if delay is None else span(delay * HOUR)
    fresh, age = row["freshness"], row["age_days"]
    return (
        "" if fresh is None else f"{fresh:.3f}",
        "" if age is None else span(age * DAY),
    )


def _show_times(console: Console, plan: Report) -> None:
    """Print the visit times of each page if there are few pages, else the requests by hour."""
    even = plan["even"]
    if pages := plan.get("pages"):
        console.print("\nTimetable, in the site's time zone")
        by_times: dict[tuple[str, str], list[str]] = {}
        for page in sorted(pages, key=lambda page: -page.get("visits_per_week", 0)):
            key = "\n".join(page.get("windows") or ["?"]), page.get("frequency_class") or "?"
            by_times.setdefault(key, []).append(page["url"])
        table = Table("visited at", "class", "URLs")
        for column in table.columns[:2]:
            column.no_wrap = True
        for (times, frequency_class), urls in by_times.items():
            table.add_row(times, frequency_class, shortened("\n".join(urls)))
        console.print(table)
    elif even["targets"] < plan["targets"] - plan["unplanned"]:
        week = np.array([plan["timetable"][day] for day in DAYS]).ravel()
        console.print("\nRequests by weekday and time, in the site's time zone")
        console.print(_week_table(week - even["per_week"] / len(week)))
    if even["targets"]:
        per_day = even["per_week"] / len(DAYS)
        console.print(
            f"{count(even['targets'], 'target')} visited at even intervals: {per_day:,.1f} "
            "requests a day, at any hour"
        )


def show_changes(console: Console, changes: Report) -> None:
    """Print the changes of a spider, from `report.SpiderChanges`."""
    total, rows = changes["total"], changes["urls"]
    console.print(
        f"{changes['spider']}: {count(total['changes'], 'change')} found, counted at the hour of "
        f"the visit that found them (time zone {changes['timezone']})"
    )
    if total["changes"]:
        names = [row["url"] for row in rows]
        if len({urlsplit(url)[:2] for url in names}) == 1:
            names = [urlunsplit(("", "", *urlsplit(url)[2:])) or "/" for url in names]
        days = Table("URL", *DAYS, *URL_SUMS.values(), box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        hours = Table("URL", HOURS, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        _align_right(days)
        for column in (*days.columns[1:], hours.columns[1]):
            column.no_wrap = True
        for name, row in zip(names, rows, strict=True):
            numbers = [str(n) if n else "·" for n in row["weekdays"].values()]
            days.add_row(shortened(name), *numbers, *(f"{row[key]:,}" for key in URL_SUMS))
            hours.add_row(shortened(name), bars(row["hours"]))
        console.print(days)
        console.print(hours)
    for name, title in SIZES.items():
        if total[name]:
            console.print(f"\n{title}")
            console.print(_week_table(np.array([changes[name][day] for day in DAYS]).ravel()))


def _week_table(week: Floats) -> Table:
    times, sums = report.columns(week)
    table = Table("", *times, "all")
    for day, row in zip(DAYS, sums.tolist(), strict=True):
        table.add_row(day, *map(_amount, row), _amount(sum(row)))
    table.add_section()
    table.add_row("all", *map(_amount, sums.sum(0).tolist()), _amount(float(sums.sum())))
    _align_right(table)
    return table


def _amount(value: float) -> str:
    if abs(value) < 0.005:
        return "·"
    return f"{value:,.0f}" if value >= 99.5 or abs(value - round(value)) < 0.005 else f"{value:.1f}"


def _align_right(table: Table) -> None:
    for column in table.columns[1:]:
        column.justify = "right"


def bars(values: Iterable[float]) -> str:
    """Return a line with a bar for each value >= 0.

    The highest value has a full bar. All values above 0 have a visible one.
    """
    return _levels(values, BARS)


def week_chart(values: Sequence[float], marked: Iterable[int] = ()) -> list[str]:
    """Return a heat map of the 168 hours of a week, one line per day; high values are dark.

    marked: hours of the week that show MARK instead
    """
    shades = list(_levels(values, SHADES))
    for hour in marked:
        shades[hour] = MARK
    rows = [
        f"{name} {''.join(shades[day * DAY_HOURS : (day + 1) * DAY_HOURS])}"
        for day, name in enumerate(DAYS)
    ]
    return [f"    {HOURS}".rstrip(), *rows]


def _levels(values: Iterable[float], levels: str) -> str:
    """Return a character for each value, from the first level for 0 to the last for the highest."""
    values = list(values)
    highest = max(values, default=0.0)
    if highest <= 0:
        return levels[0] * len(values)
    steps = len(levels) - 1
    return "".join(levels[-int(-value / highest * steps // 1)] for value in values)
