"""`scrapy explain`: why a page is visited when it is."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from crawler.cli.base import FreshetCommand, print_json
from crawler.ops.progress import working
from crawler.utils.terminal import stdout
from crawler.utils.text import DAY, NOT_KNOWN, count, often, span
from crawler.utils.time import Clock

if TYPE_CHECKING:
    from crawler.storage.client import Document

# Targets that are read in a second or two.
MAX_QUICK_TARGETS = 100_000


class Command(FreshetCommand):
    """Rate, profile, schedule and reasons of one URL."""

    arguments = ("URL",)
    example = "scrapy explain https://books.toscrape.com/"

    def short_desc(self) -> str:
        """One line for `scrapy -h`."""
        return "Show what is known of a page's changes, and why it is visited when it is"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add which target is meant."""
        super().add_options(parser)
        parser.add_argument("--spider", help="where several spiders watch the URL")

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Print what is known, what is planned, and why."""
        with working(self.config, "opening the database") as say:
            explanation = asyncio.run(self._explain(args[0], opts.spider, say))
        if opts.json:
            print_json(explanation)
        else:
            self._show(explanation)

    async def _explain(self, url: str, spider: str | None, say: Callable[[str], None]) -> Document:
        from crawler.storage import feeds, histories, plans, sites
        from crawler.storage.store import opened
        from crawler.storage.target_queries import target_of

        config = self.config
        async with opened(config) as db:
            now = Clock(config.clock_offset_hours).now()
            target = await target_of(db, config, url, spider)
            spider = str(target["spider"])
            say(f"reading what is known of {spider}")
            # Slow to import: not before there is something to explain.
            from crawler.planning.explain import explained
            from crawler.planning.population import gather
            from crawler.planning.replan import hours_of

            plan_id = str((target.get("plan") or {}).get("plan"))
            plan = (await plans.plans_of(db, [plan_id])).get(plan_id)
            # Estimates of a site use those planned with it, so they are read as the replan read
            # them, unless that takes long.
            is_quick = await db.targets.estimated_document_count() < MAX_QUICK_TARGETS
            planned_with = plan["spiders"] if plan and is_quick else []
            watched = await histories.read(db, now, sorted({spider, *planned_with}))
            gathered = await gather(db, watched, config, hours_of(now)) if len(watched) else None
            (site,) = await sites.of_spiders(db, [spider])
            say("estimating")
            waiting = await plans.count_over_cap(db, spider)
            feed = await feeds.of_key(db, target["_id"]) if target["kind"] == "feed" else None
            return explained(gathered, target, plan, site, waiting, now, feed)

    def _show(self, explanation: Document) -> None:
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
        when = "When it posts" if explanation.get("feed") else "When it changes"
        if "rate" in explanation and not explanation["rate"]["known"]:
            console.print(f"\n{when} is {NOT_KNOWN}")
        elif "changes_by_hour" in explanation:
            slots = (explanation["plan"] or {}).get("slots") or ()
            console.print(f"\n{when}, darker is more often" + (", ● a visit" if slots else ""))
            values = [value for day in explanation["changes_by_hour"].values() for value in day]
            for line in week_chart(values, {slot % WEEK_HOURS for slot in slots}):
                console.print(line)


def _lines(explanation: Document) -> dict[str, str]:
    """The texts about a target, by their heads."""
    zone = ZoneInfo(explanation["timezone"])
    feed = explanation.get("feed")
    kind, events = ("feed", "posts") if feed else ("page", "changes")
    categories = explanation["categories"]
    page = f"{explanation['kind']} of {explanation['spider']}"
    lines = {
        kind: f"{page} in {', '.join(categories)}" if categories else page,
        "seen": _seen(explanation["history"], zone, events[:-1]),
    }
    if feed and feed["format"]:
        window = f"{feed['window']} posts{'' if feed['full'] else ' or more'}"
        lines |= {"called": feed["title"]} if feed["title"] else {}
        lines["document"] = f"{feed['format']}, {window}"
        lines["collected"] = f"{feed['posts']:,} posts, about {feed['missed']:,.0f} missed"
        trouble = feed["error"] or "; ".join(feed["problems"] or ())
        lines |= {"trouble": trouble} if trouble else {}
    elif feed and feed["error"]:
        lines["trouble"] = feed["error"]
    if "rate" in explanation:
        rate = [f"{explanation['rate'][name]:.3g}" for name in ("per_week", "low", "high")]
        lines[events] = (
            f"{rate[0]} a week, {rate[1]} to {rate[2]} with 90 % probability"
            if explanation["rate"]["known"]
            else f"a rate is {NOT_KNOWN}"
        )
    if plan := explanation["plan"]:
        lines["plan"] = _plan(explanation, plan)
    if "freshness" in explanation:
        age = span(explanation["age_days"] * DAY)
        expected = f"freshness {explanation['freshness']:.3f}, age {age}"
        lines["expected"] = expected if explanation["rate"]["known"] else NOT_KNOWN
    visits, next_visit = explanation["visits"], explanation["next_visit"]
    if missed := visits["missed"]:
        lines["visits"] = f"{visits['made']:,} made, {missed:,} of the plan missed"
    lines["next visit"] = _both(next_visit, zone)
    if later := [moment for moment in explanation["ahead"] if moment > next_visit]:
        lines["and then"] = "\n".join(_both(moment, zone) for moment in later)
    return lines


def _seen(history: Document, zone: ZoneInfo, event: str) -> str:
    if "since" not in history:
        return "never"
    since = _time(history["since"], zone)
    changes = count(history["changes"], event)
    text = f"{count(history['looks'], 'time')}, known since {since}: {changes}"
    if (last := history["last_change"]) is not None:
        after, by = _time(last["after"], zone), _time(last["by"], zone)
        is_exact = last["after"] == last["by"]
        text += f", the last at {by}" if is_exact else f", the last between {after} and {by}"
    return text + ("; its dates are believed" if history.get("dates_believed") else "")


def _plan(explanation: Document, plan: dict[str, Any]) -> str:
    times = "; ".join(plan.get("windows") or ())
    per_week = plan.get("visits_per_week") or 0
    how = times if plan.get("every_hours") or not per_week else f"{often(per_week)} ({times})"
    planned_at = explanation["planned_at"]
    at = f", as of {planned_at:%Y-%m-%d %H:%M} UTC" if planned_at else ""
    return f"{plan.get('group')}: {how}, policy {plan.get('policy')}{at}"


def _both(moment: datetime, zone: ZoneInfo) -> str:
    """A time on the site's clock and in UTC."""
    if str(zone) == "UTC":
        return f"{moment:%a %Y-%m-%d %H:%M} UTC"
    return f"{_time(moment, zone, day=True)} {zone}, {moment.astimezone(UTC):%H:%M} UTC"


def _time(moment: datetime, zone: ZoneInfo, *, day: bool = False) -> str:
    local = moment.astimezone(zone)
    return f"{local:%a %Y-%m-%d %H:%M}" if day else f"{local:%Y-%m-%d %H:%M}"
