"""`scrapy explain`: show a page's change history and plan, and the reasons for its schedule."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar
from zoneinfo import ZoneInfo

from crawler.cli.base import FreshetCommand, print_json, with_database
from crawler.cli.options import add_spider_of_target
from crawler.utils.terminal import stdout, working
from crawler.utils.text import DAY, NOT_KNOWN, amount, count, span, visit_frequency
from crawler.utils.time import NEVER

if TYPE_CHECKING:
    from crawler.planning.report_types import Explanation, ObservedHistory
    from crawler.storage.client import Database

DAY_HOURS = 24
# Number of planned visits after the next one that the text lists; JSON has all of two days.
MAX_LATER = 4


class Command(FreshetCommand):
    """Explain the schedule of one URL."""

    arguments = ("URL",)
    summary = "Show a page's change rate and history, and explain its schedule"
    example = "scrapy explain https://books.toscrape.com/"
    documents: ClassVar = {
        "scrapy explain URL --json": "crawler.planning.report_types.Explanation",
    }

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the `--spider` option."""
        super().add_options(parser)
        add_spider_of_target(parser)

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Print the page's history and plan, and the reasons."""
        from crawler.storage.target_queries import target_of

        config = self.config

        async def explain(db: Database) -> Explanation:
            target = await target_of(db, config, args[0], opts.spider)
            # Slow to import. Unknown URLs are reported before.
            from crawler.planning.explain import explain_target

            return await explain_target(db, config, target, config.clock.now(), progress)

        with working(config.progress, "opening the database") as progress:
            explanation = with_database(config, explain)
        if opts.json:
            print_json(explanation)
        else:
            self._show(explanation)

    def _show(self, explanation: Explanation) -> None:
        from rich.table import Table

        from crawler.cli.plan_output import week_chart
        from schedules.schedule import WEEK_HOURS

        console = stdout()
        console.print(explanation["url"], style="bold", soft_wrap=True)
        table = Table.grid(padding=(0, 2))
        for name, text in _lines(explanation).items():
            table.add_row(name, text)
        console.print(table)
        for sentence in explanation["reasons"]:
            console.print(f"- {sentence}")
        events = "Posts" if explanation["feed"] else "Changes"
        if not (expected := explanation["expected"]):
            return
        if not expected["rate"]["known"]:
            console.print(f"\n{events} by hour of the week: {NOT_KNOWN}")
            return
        slots = explanation["plan"]["slots"] if explanation["plan"] else []
        legend = "dark: frequent, ●: visit" if slots else "dark: frequent"
        console.print(f"\n{events} by hour of the week ({legend})")
        values = [value for day in expected["changes_by_hour"].values() for value in day]
        for line in week_chart(values, {slot % WEEK_HOURS for slot in slots}):
            console.print(line)


def _lines(explanation: Explanation) -> dict[str, str]:
    """Return the lines that describe a target, by their labels."""
    zone = ZoneInfo(explanation["timezone"])
    feed, expected = explanation["feed"], explanation["expected"]
    kind, events = ("feed", "posts") if feed else ("page", "changes")
    categories = explanation["categories"]
    page = f"{explanation['kind']} of {explanation['spider']}"
    lines = {
        kind: f"{page} in {', '.join(categories)}" if categories else page,
        "observed": _observed(explanation["history"], zone, events[:-1]),
    }
    if feed and feed["format"]:
        size = count(feed["feed_size"] or 0, "post") + ("" if feed["full"] else " or more")
        lines |= {"title": feed["title"]} if feed["title"] else {}
        lines["document"] = f"{feed['format']}, {size}"
        posts, missed = count(feed["posts"], "post"), feed["missed_posts"]
        lines["collected"] = f"{posts}, about {missed:,.0f} missed"
        error = feed["error"] or "; ".join(feed["problems"])
        lines |= {"error": error} if error else {}
    elif feed and feed["error"]:
        lines["error"] = feed["error"]
    if expected:
        rate = expected["rate"]
        lines[events] = (
            f"{amount(rate['per_week'])} a week, {amount(rate['low'])} to {amount(rate['high'])} "
            "with 90 % probability"
            if rate["known"]
            else f"rate {NOT_KNOWN}"
        )
    if plan := explanation["plan"]:
        times, per_week = _in_one_line(plan["windows"]), plan["visits_per_week"]
        frequency = (
            times
            if plan["every_hours"] or not per_week
            else f"{visit_frequency(per_week)} ({times})"
        )
        planned_at = explanation["planned_at"]
        at = f", planned {planned_at:%Y-%m-%d %H:%M} UTC" if planned_at else ""
        lines["plan"] = f"{plan['frequency_class']}: {frequency}, policy {plan['policy']}{at}"
    if expected and expected["freshness"] is not None and expected["age_days"] is not None:
        age = span(expected["age_days"] * DAY)
        freshness = f"freshness {expected['freshness']:.3f}, age {age}"
        lines["expected"] = freshness if expected["rate"]["known"] else NOT_KNOWN
    if explanation["not_compared"]:
        lines["compared"] = f"no, because {explanation['not_compared']}"
    visits, next_visit = explanation["visits"], explanation["next_visit"]
    if missed := visits["missed"]:
        lines["visits"] = f"{visits['made']:,} made, {missed:,} planned visits missed"
    lines["next visit"] = _local_and_utc(next_visit, zone) if next_visit < NEVER else "none"
    if later := [moment for moment in explanation["ahead"] if moment > next_visit]:
        more = f"\nand {count(len(later) - MAX_LATER, 'more visit')}" if later[MAX_LATER:] else ""
        listed = "\n".join(_local_and_utc(moment, zone) for moment in later[:MAX_LATER])
        lines["later visits"] = f"{listed}{more}"
    return lines


def _in_one_line(windows: list[str]) -> str:
    """Join visiting times such as `daily 18:00`, and name the days of several times once."""
    hours: dict[str, list[str]] = {}
    for window in windows:
        days, _, hour = window.rpartition(" ")
        hours.setdefault(days, []).append(hour)
    if len(hours.get("daily", [])) == DAY_HOURS:
        return "every hour"
    return "; ".join(" ".join([days, ", ".join(times)]).strip() for days, times in hours.items())


def _observed(history: ObservedHistory, zone: ZoneInfo, event: str) -> str:
    """Return how often the target was observed, and its changes. event: `change` or `post`."""
    if history["since"] is None:
        return "never"
    since = _time(history["since"], zone)
    changes = count(history["changes"], event)
    text = f"{count(history['observations'], 'time')} since {since}: {changes}"
    if (last := history["last_change"]) is not None:
        after, by = _time(last["after"], zone), _time(last["by"], zone)
        is_exact = last["after"] == last["by"]
        text += f", the last at {by}" if is_exact else f", the last between {after} and {by}"
    return text + ("; its stated dates are trusted" if history["dates_trusted"] else "")


def _local_and_utc(moment: datetime, zone: ZoneInfo) -> str:
    """Return a time in the site's time zone and in UTC."""
    if str(zone) == "UTC":
        return f"{moment:%a %Y-%m-%d %H:%M} UTC"
    return f"{_time(moment, zone, day=True)} {zone}, {moment.astimezone(UTC):%H:%M} UTC"


def _time(moment: datetime, zone: ZoneInfo, *, day: bool = False) -> str:
    local = moment.astimezone(zone)
    return f"{local:%a %Y-%m-%d %H:%M}" if day else f"{local:%Y-%m-%d %H:%M}"
