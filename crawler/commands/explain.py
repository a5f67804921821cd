"""`scrapy explain`: why a page is visited when it is."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from crawler.cli.base import FreshetCommand, print_json
from crawler.config import Config
from crawler.ops.progress import working
from crawler.utils.terminal import stdout
from crawler.utils.text import DAY, NOT_KNOWN, count, often, span
from crawler.utils.time import Clock

if TYPE_CHECKING:
    from crawler.storage.client import Document

# So many targets are read in a second or two.
FEW = 100_000


class Command(FreshetCommand):
    """Rate, profile, schedule and reasons of one URL."""

    arguments = ("URL",)
    example = "scrapy explain https://books.toscrape.com/"

    def short_desc(self) -> str:
        """One line for `scrapy -h`."""
        return "Show what is known of a page's changes, and why it is visited when it is"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Which target is meant."""
        super().add_options(parser)
        parser.add_argument("--spider", help="where several spiders watch the URL")

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Print what is known, what is planned, and why."""
        with working(self.config, "opening the database") as say:
            found = asyncio.run(_explained(self.config, args[0], opts.spider, say))
        if opts.json:
            print_json(found)
        else:
            _show(found)


async def _explained(
    config: Config, url: str, spider: str | None, say: Callable[[str], None]
) -> Document:
    from crawler.storage import feeds, histories, sites
    from crawler.storage import plans as timetables
    from crawler.storage.store import opened
    from crawler.storage.target_queries import target_of

    async with opened(config) as db:
        now = Clock(config.clock_offset_hours).now()
        target = await target_of(db, config, url, spider)
        spider = str(target["spider"])
        say(f"reading what is known of {spider}")
        # Slow to import: not before there is something to explain.
        from crawler.planning.explain import explained
        from crawler.planning.population import gather
        from crawler.planning.replan import hours_of

        plan = str((target.get("plan") or {}).get("plan"))
        whole = (await timetables.plans_of(db, [plan])).get(plan)
        # As the replan has seen it, where that does not take long: sites lean on each other.
        few = await db.targets.estimated_document_count() < FEW
        beside = whole["spiders"] if whole and few else []
        watched = await histories.read(db, now, sorted({spider, *beside}))
        gathered = await gather(db, watched, config, hours_of(now)) if len(watched) else None
        (site,) = await sites.of_spiders(db, [spider])
        say("estimating")
        waiting = await timetables.left_over(db, spider)
        feed = await feeds.of_key(db, target["_id"]) if target["kind"] == "feed" else None
        return explained(gathered, target, whole, site, waiting, now, feed)


def _show(found: Document) -> None:
    from rich.table import Table

    from crawler.cli import output as charts
    from schedules.schedule import WEEK_HOURS

    console = stdout()
    console.print(found["url"], style="bold", soft_wrap=True)
    table = Table.grid(padding=(0, 2))
    for name, text in _lines(found).items():
        table.add_row(name, text)
    console.print(table)
    for sentence in found["reasons"]:
        console.print(f"- {sentence}")
    when = "When it posts" if found.get("feed") else "When it changes"
    if "rate" in found and not found["rate"]["known"]:
        console.print(f"\n{when} is {NOT_KNOWN}")
    elif "changes_by_hour" in found:
        slots = (found["plan"] or {}).get("slots") or ()
        console.print(f"\n{when}, darker is more often" + (", ● a visit" if slots else ""))
        values = [value for day in found["changes_by_hour"].values() for value in day]
        for line in charts.week(values, {slot % WEEK_HOURS for slot in slots}):
            console.print(line)


def _lines(found: Document) -> dict[str, str]:
    zone = ZoneInfo(found["timezone"])
    feed = found.get("feed")
    kind, events = ("feed", "posts") if feed else ("page", "changes")
    lines = {kind: _page(found), "seen": _seen(found["history"], zone, events[:-1])}
    if feed:
        lines |= _of_feed(feed)
    if "rate" in found:
        rate = [f"{found['rate'][name]:.3g}" for name in ("per_week", "low", "high")]
        lines[events] = (
            f"{rate[0]} a week, {rate[1]} to {rate[2]} with 90 % probability"
            if found["rate"]["known"]
            else f"a rate is {NOT_KNOWN}"
        )
    if plan := found["plan"]:
        lines["plan"] = _plan(found, plan)
    if "freshness" in found:
        expected = f"freshness {found['freshness']:.3f}, age {span(found['age_days'] * DAY)}"
        lines["expected"] = expected if found["rate"]["known"] else NOT_KNOWN
    if missed := found["visits"]["missed"]:
        lines["visits"] = f"{found['visits']['made']:,} made, {missed:,} of the plan missed"
    lines["next visit"] = _both(found["next_visit"], zone)
    if later := [moment for moment in found["ahead"] if moment > found["next_visit"]]:
        lines["and then"] = "\n".join(_both(moment, zone) for moment in later)
    return lines


def _page(found: Document) -> str:
    named = f" in {', '.join(found['categories'])}" if found["categories"] else ""
    return f"{found['kind']} of {found['spider']}{named}"


def _of_feed(feed: Document) -> dict[str, str]:
    if not feed["format"]:
        return {"trouble": feed["error"]} if feed["error"] else {}
    lines = {
        "called": feed["title"] or "",
        "document": f"{feed['format']}, {feed['window']} posts{'' if feed['full'] else ' or more'}",
        "collected": f"{feed['posts']:,} posts, about {feed['missed']:,.0f} missed",
        "trouble": feed["error"] or "; ".join(feed["problems"] or ()),
    }
    return {name: text for name, text in lines.items() if text}


def _seen(past: Document, zone: ZoneInfo, event: str) -> str:
    if "since" not in past:
        return "never"
    changes = count(past["changes"], event)
    text = f"{count(past['looks'], 'time')}, known since {_time(past['since'], zone)}: {changes}"
    if (last := past["last_change"]) is not None:
        text += f", the last {_between(last['after'], last['by'], zone)}"
    return text + ("; its dates are believed" if past.get("dates_believed") else "")


def _between(after: datetime, by: datetime, zone: ZoneInfo) -> str:
    if after == by:
        return f"at {_time(by, zone)}"
    return f"between {_time(after, zone)} and {_time(by, zone)}"


def _plan(found: Document, plan: dict[str, Any]) -> str:
    times = "; ".join(plan.get("windows") or ())
    per_week = plan.get("visits_per_week") or 0
    how = times if plan.get("every_hours") or not per_week else f"{often(per_week)} ({times})"
    at = f", as of {found['planned_at']:%Y-%m-%d %H:%M} UTC" if found["planned_at"] else ""
    return f"{plan.get('group')}: {how}, policy {plan.get('policy')}{at}"


def _both(moment: datetime, zone: ZoneInfo) -> str:
    """A time on the site's clock and in UTC."""
    if str(zone) == "UTC":
        return f"{moment:%a %Y-%m-%d %H:%M} UTC"
    return f"{_time(moment, zone, day=True)} {zone}, {moment.astimezone(UTC):%H:%M} UTC"


def _time(moment: datetime, zone: ZoneInfo, *, day: bool = False) -> str:
    local = moment.astimezone(zone)
    return f"{local:%a %Y-%m-%d %H:%M}" if day else f"{local:%Y-%m-%d %H:%M}"
