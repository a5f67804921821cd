"""The tables of `scrapy plan`, for terminals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit, urlunsplit

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from crawler.planning import report as weeks
from crawler.storage.client import Document
from crawler.utils.terminal import shortened, stdout
from crawler.utils.text import DAY, HOUR, NOT_KNOWN, listed, span
from schedules.history import DAY_HOURS, Floats
from schedules.windows import DAYS

SOURCES = {
    "goal": "what the goal needs",
    "intervals": "what the fixed intervals spend",
    "plans": "what the present plans spend",
}


def show(done: Sequence[Document]) -> None:
    """Print the plans of a replan."""
    console = stdout()
    for number, one in enumerate(done):
        if number:
            console.print()
        _show_one(console, one)


def _show_one(console: Console, done: Document) -> None:
    table = Table.grid(padding=(0, 2))
    lines = _lines_of_feeds if done["kind"] == "feeds" else _lines
    for name, text in lines(done).items():
        table.add_row(name, text)
    console.print(table)
    for warning in done["warnings"]:
        console.print(f"note: {warning}")
    if done["dry_run"]:
        console.print("dry run: nothing was written")


def _lines(done: Document) -> dict[str, str]:
    totals, daily = done["totals"], done["totals"]["daily"]
    new = f", {done['unplanned']:,} without a plan so far" if done["unplanned"] else ""
    lines = {
        "targets": f"{done['targets']:,} of {listed(done['spiders'])}{new}",
        "policy": _policy(done),
        "requests": f"{totals['requests_per_day']:,.1f} a day{_budget(done)}",
        "freshness": _freshness(totals, " expected") if totals["known"] else NOT_KNOWN,
        "daily crawl": f"{daily['requests_per_day']:,} a day"
        + (f" would give {_freshness(daily)}" if totals["known"] else "")
        + f"; this is {totals['load']:.1%} of its requests",
    }
    if done["price"] is not None:
        lines["price"] = (
            f"a visit is made where it saves {done['price']:.3g} hours of staleness or more"
        )
    if done["dated"]:
        lines["dates"] = f"believed: {listed(done['dated'])}"
    share = done["moved"] / done["targets"]
    return lines | {"moved": f"{done['moved']:,} of {done['targets']:,} ({share:.1%})"}


def _lines_of_feeds(done: Document) -> dict[str, str]:
    totals = done["totals"]
    new = f", {done['unplanned']:,} without a plan so far" if done["unplanned"] else ""
    lines = {
        "feeds": f"{done['targets']:,} of {listed(done['spiders'])}{new}",
        "policy": f"{done['policy']}",
        "requests": f"{totals['requests_per_day']:,.1f} a day{_budget(done)}",
        "posts": _posts(totals) if totals["known"] else NOT_KNOWN,
    }
    if done["price"] is not None:
        lines["price"] = f"a fetch is made where it saves {done['price']:.3g} posts or more"
    share = done["moved"] / done["targets"]
    return lines | {"moved": f"{done['moved']:,} of {done['targets']:,} ({share:.1%})"}


def _freshness(totals: Document, expected: str = "") -> str:
    return f"{_number(totals['freshness'])}{expected}, age {_age(totals['age_days'])}"


def _posts(totals: Document) -> str:
    delay = totals["delay_hours"]
    return (
        f"{totals['posts_per_day']:,.1f} a day expected, {_percent(totals['missed_share'])} of "
        "them missed; the others are collected after "
        f"{'an unknown time' if delay is None else span(delay * HOUR)}"
    )


def _percent(value: float | None) -> str:
    return "an unknown share" if value is None else f"{value:.1%}"


def _policy(done: Document) -> str:
    if done["policy"] == "optimal":
        return f"optimal, objective {done['objective']}"
    return f"{done['policy']}"


def _budget(done: Document) -> str:
    caps = [
        f"at most {done[name]:,} {time}"
        for name, time in (("daily_cap", "on one day"), ("hourly_cap", "in an hour"))
        if done[name]
    ]
    if done["budget_per_day"] is None:
        parts = ["what the policy spends; it takes no budget"]
    else:
        why = "as so far" if done["budget_kept"] else SOURCES.get(done["budget_from"])
        if done["budget_kept"] and done["budget_added"]:
            why = f"as so far, and {done['budget_added']:,.4g} for new targets"
        of = f"of {done['budget_per_day']:,.6g}"
        parts = [f"{of} ({why})" if why else of]
    return ", ".join(["", *parts, *caps])


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def _age(days: float | None) -> str:
    return "unknown" if days is None else span(days * DAY)


BARS = " ▁▂▃▄▅▆▇█"
SHADES = " ░▒▓█"
HOURS = "0     6     12    18     "


def bars(values: Iterable[float]) -> str:
    """A bar for each value >= 0, in a line; the highest is full, what is not 0 is seen."""
    return _drawn(values, BARS)


def week(values: Sequence[float], marked: Iterable[int] = (), mark: str = "●") -> list[str]:
    """The 168 hours of a local week, a line a day, darker where values are higher.

    marked: hours of the week that get a mark instead
    """
    shades = list(_drawn(values, SHADES))
    for hour in marked:
        shades[hour] = mark
    rows = [
        f"{name} {''.join(shades[day * DAY_HOURS : (day + 1) * DAY_HOURS])}"
        for day, name in enumerate(DAYS)
    ]
    return [f"    {HOURS}".rstrip(), *rows]


def _drawn(values: Iterable[float], levels: str) -> str:
    values = list(values)
    highest = max(values, default=0.0)
    if highest <= 0:
        return levels[0] * len(values)
    steps = len(levels) - 1
    return "".join(levels[-int(-value / highest * steps // 1)] for value in values)


FIGURES = {
    "pages": ("freshness", "age"),
    "feeds": ("posts missed a week", "delay"),
}
CAPS = (("daily_cap", "a day"), ("hourly_cap", "an hour"))
URL_SUMS = {"changes": "all", "update_size": "bytes", "diff_size": "chars"}
SIZES = {
    "changes": "Changes",
    "update_size": "Sizes of changes in bytes: how much longer or shorter pages became",
    "diff_size": "Sizes of changes in characters inserted and deleted",
}


def show_plan(console: Console, found: Document) -> None:
    """Print what overview.of_plans gives."""
    for one in found["plans"]:
        console.print(_headline(one))
    totals, kind = found["totals"], found["kind"]
    daily = totals["daily"]
    table = Table("expected", "requests a day", *FIGURES[kind])
    table.add_row("this plan", f"{totals['requests_per_day']:,.1f}", *_figures(totals, kind))
    if kind == "pages":
        table.add_row(
            "daily crawling",
            f"{daily['requests_per_day']:,}",
            *_figures(daily | {"known": totals["known"]}, kind),
        )
    _right(table)
    console.print(table)
    console.print(_targets(found))
    console.print()
    console.print(_groups_table(found["groups"], kind))
    _show_times(console, found)


def _headline(one: Document) -> str:
    budget = one["budget_per_day"]
    parts = [
        f"policy {one['policy']}",
        f"budget {budget:,.6g} a day" if budget else "no budget",
        *(f"at most {one[name]:,} {time}" for name, time in CAPS if one[name]),
    ]
    at, names = f"{one['at']:%Y-%m-%d %H:%M} UTC", listed(one["spiders"])
    return f"plan of {at} for {names}: {', '.join(parts)}"


def _targets(found: Document) -> str:
    load, waiting = found["totals"]["load"], found["unplanned"]
    of_daily = f"{load:.1%} of the requests of daily crawling" if load is not None else ""
    rest = f"{waiting:,} wait for the next replan" if waiting else ""
    learning = f"{found['learning']:,} in a learning phase" if found["learning"] else ""
    return "; ".join(filter(None, (f"{found['targets']:,} targets", of_daily, rest, learning)))


def _figures(row: Document, kind: str) -> tuple[str, str]:
    if not row["known"]:
        return NOT_KNOWN, ""
    if kind == "feeds":
        missed, delay = row["missed_per_week"], row["delay_hours"]
        return f"{missed:.3g}", "" if delay is None else span(delay * HOUR)
    fresh, age = row["freshness"], row["age_days"]
    return (
        "" if fresh is None else f"{fresh:.3f}",
        "" if age is None else span(age * DAY),
    )


def _right(table: Table) -> None:
    for column in table.columns[1:]:
        column.justify = "right"


def _groups_table(groups: list[Document], kind: str) -> Table:
    table = Table("group", "targets", "requests a day", *FIGURES[kind])
    for row in groups:
        per_day = f"{row['requests_per_day']:,.1f}"
        table.add_row(row["group"], f"{row['targets']:,}", per_day, *_figures(row, kind))
    _right(table)
    return table


def _show_times(console: Console, found: Document) -> None:
    even = found["even"]
    if pages := found.get("pages"):
        console.print("\nTimetable, on the site's clock")
        console.print(_pages_table(pages))
    elif even["targets"] < found["targets"] - found["unplanned"]:
        week = np.array([found["timetable"][day] for day in DAYS]).ravel()
        console.print("\nRequests by weekday and time, on the site's clock")
        console.print(_week_table(week - even["per_week"] / len(week)))
    if even["targets"]:
        per_day = even["per_week"] / len(DAYS)
        console.print(
            f"{even['targets']:,} targets at even intervals: {per_day:,.1f} requests a day, "
            "at any hour"
        )


def _week_table(week: Floats) -> Table:
    times, sums = weeks.columns(week)
    table = Table("", *times, "all")
    for day, row in zip(DAYS, sums.tolist(), strict=True):
        table.add_row(day, *map(_amount, row), _amount(sum(row)))
    table.add_section()
    table.add_row("all", *map(_amount, sums.sum(0).tolist()), _amount(float(sums.sum())))
    _right(table)
    return table


def _amount(value: float) -> str:
    if abs(value) < 0.005:
        return "·"
    return f"{value:,.0f}" if value >= 99.5 or abs(value - round(value)) < 0.005 else f"{value:.1f}"


def _pages_table(pages: list[Document]) -> Table:
    """The paper's table: times, and which pages are visited then."""
    by_times: dict[tuple[str, str], list[str]] = {}
    for page in sorted(pages, key=lambda page: -page.get("visits_per_week", 0)):
        key = "\n".join(page.get("windows") or ["?"]), page.get("group") or "?"
        by_times.setdefault(key, []).append(page["url"])
    table = Table("visited at", "group", "URLs")
    for column in table.columns[:2]:
        column.no_wrap = True
    for (times, group), urls in by_times.items():
        table.add_row(times, group, shortened("\n".join(urls)))
    return table


def show_changes(console: Console, one: Document) -> None:
    """Print what overview.of_changes gives."""
    total = one["total"]
    console.print(
        f"{one['spider']}: {total['changes']:,} changes found, each at the hour of the visit that "
        f"found it, on the clock of {one['timezone']}"
    )
    if total["changes"]:
        console.print(_days_table(one["urls"]))
        console.print(_hours_table(one["urls"]))
    for name, what in SIZES.items():
        if total[name]:
            console.print(f"\n{what}")
            console.print(_week_table(np.array([one[name][day] for day in DAYS]).ravel()))


def _days_table(urls: list[Document]) -> Table:
    table = Table("URL", *DAYS, *URL_SUMS.values(), box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    _right(table)
    for column in table.columns[1:]:
        column.no_wrap = True
    for name, row in zip(_short([row["url"] for row in urls]), urls, strict=True):
        days = [str(n) if n else "·" for n in row["weekdays"].values()]
        table.add_row(shortened(name), *days, *(f"{row[key]:,}" for key in URL_SUMS))
    return table


def _hours_table(urls: list[Document]) -> Table:
    table = Table("URL", HOURS, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.columns[1].no_wrap = True
    for name, row in zip(_short([row["url"] for row in urls]), urls, strict=True):
        table.add_row(shortened(name), bars(row["hours"]))
    return table


def _short(urls: list[str]) -> list[str]:
    """URLs without scheme and host where these are the same for all."""
    origins = {urlsplit(url)[:2] for url in urls}
    if len(origins) > 1:
        return urls
    return [urlunsplit(("", "", *urlsplit(url)[2:])) or "/" for url in urls]
