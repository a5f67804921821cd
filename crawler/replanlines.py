"""What `scrapy replan` says of the plans that it made."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from crawler.storage.client import Document
from crawler.utils.terminal import stdout
from crawler.utils.text import DAY, HOUR, NOT_KNOWN, listed, span

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
