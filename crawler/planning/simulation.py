"""What is asked of any simulation: options of the command line, checked."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from rich import box
from rich.table import Table

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.items import Kind
from crawler.planning import plots as pictures
from crawler.planning.budget import budget_of
from crawler.planning.population import Gathered, gather
from crawler.planning.replan import effect_of, hours_of
from crawler.planning.request import FEEDS, Wish
from crawler.planning.traces import HOUR_SECONDS, iso
from crawler.storage import histories, targets
from crawler.storage.histories import Watched
from crawler.storage.store import opened
from crawler.utils.time import Clock
from schedules.evaluation.world import Span
from schedules.history import Flags, Floats


def gathered(config: Config, spider: str) -> Gathered:
    """The targets of a spider, of all if ""; ConfigError where it has none."""
    return asyncio.run(_gathered(config, spider))


def current_budget(config: Config, spider: str, kind: str) -> float:
    """Return the requests a day that `scrapy replan --kind KIND` without a budget would plan.

    spider: a spider with targets, "" for all that have targets of the kind
    kind:   "pages" or "feeds"
    """
    return asyncio.run(_current_budget(config, spider, kind))


async def _current_budget(config: Config, spider: str, kind: str) -> float:
    async with opened(config) as db:
        now = Clock(config.clock_offset_hours).now()
        known, feeds = await targets.spiders(db), await targets.feed_spiders(db)
        of_kind = [name for name in known if (name in feeds) == (kind == FEEDS)]
        names = [spider] if spider else of_kind
        watched = await histories.read(db, now, names)
        gathered = await gather(db, watched, config, hours_of(now))
        effect = await effect_of(db, watched, now, everything=set(names) >= set(of_kind))
        wish = Wish.of_config(config, feeds=kind == FEEDS)
        return budget_of(gathered, wish, effect, hours_of(now)).per_day


async def _gathered(config: Config, spider: str) -> Gathered:
    async with opened(config) as db:
        now = Clock(config.clock_offset_hours).now()
        known = await targets.spiders(db)
        if spider and spider not in known:
            names = ", ".join(known) or "none; run scrapy crawl first"
            raise ConfigError(f"no targets of {spider!r}; spiders with targets: {names}")
        watched = await histories.read(db, now, [spider] if spider else None)
        return await gather(db, watched, config, hours_of(now))


def are_feeds(watched: Watched) -> Flags:
    """(n,) which of the targets are feeds."""
    if Kind.FEED not in watched.kinds:
        return np.zeros(len(watched), np.bool_)
    are: Flags = watched.kind == watched.kinds.index(Kind.FEED)
    return are


# Three weeks in nine are enough to learn from.
LEARNING_SHARE = 1 / 3

# Start, split and stop in hours since 1970 (UTC); None where nothing was asked.
Moments = tuple[float | None, float | None, float | None]


def span_of(known: Sequence[Floats], moments: Moments) -> Span:
    """The span that was asked for, else that of what is known; ConfigError if it is none."""
    at = np.concatenate([part[np.isfinite(part)] for part in known])
    if not len(at):
        raise ConfigError("nothing is known of any change (scrapy crawl finds them)")
    start, split, stop = moments
    start = float(at.min()) if start is None else start
    stop = float(at.max()) if stop is None else stop
    if start == stop:
        raise ConfigError(
            f"nothing to simulate yet: all visits were at about {iso(start)} "
            "(crawl for a few days first)"
        )
    split = start + (stop - start) * LEARNING_SHARE if split is None else split
    if not start < split:
        raise ConfigError(f"--from {iso(start)} has to be before --split {iso(split)}")
    if not split < stop:
        raise ConfigError(f"--split {iso(split)} has to be before --to {iso(stop)}")
    return Span(start, split, stop)


def days(span: Span) -> str:
    """The days that count, in words."""
    return f"{iso(span.split)[:10]} to {iso(span.stop)[:10]}"


DATE_LENGTH = len("2024-01-31")
DAY_HOURS, LONGEST_DAYS = 24, 365.0


def moments(start: str | None, split: str | None, stop: str | None) -> Moments:
    """The times of `--from`, `--split` and `--to`; ConfigError names the one that is wrong."""
    return _moment("--from", start), _moment("--split", split), _moment("--to", stop)


def _moment(option: str, text: str | None) -> float | None:
    """Hours since 1970; a day without a time is its first moment in UTC."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ConfigError(f"{option} {text}: no time such as 2024-01-31T08:00:00Z") from None
    if moment.tzinfo is None and len(text.strip()) > DATE_LENGTH:
        raise ConfigError(f"{option} {text}: has no time zone (append Z if it is UTC)")
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() / HOUR_SECONDS


def policies(
    named: list[str] | None, there_are: tuple[str, ...], kind: str = ""
) -> tuple[str, ...]:
    """Each policy once, the first there is by default; ConfigError for what is none."""
    for policy in named or ():
        if policy not in there_are:
            raise ConfigError(
                f"--policy {policy}: no such policy{kind}; there are {', '.join(there_are)}"
            )
    return tuple(dict.fromkeys(named or there_are[:1]))


def period(text: str | None, usual_hours: float) -> float:
    """Hours between replans, from days as `--replan-every` has them; the usual if nothing is."""
    if text is None:
        return float(usual_hours)
    try:
        days = float(text)
    except ValueError:
        days = 0.0
    if not 1 / DAY_HOURS <= days <= LONGEST_DAYS:
        raise ConfigError(f"--replan-every {text}: give days, 1/24 to {LONGEST_DAYS:g}")
    return days * DAY_HOURS


def picture(path: Path | None) -> Path | None:
    """The file of `--plot`, if it has a name that can be drawn to."""
    if path is not None:
        pictures.check_name(path)
        if path.is_dir():
            raise ConfigError(f"--plot {path}: is a folder")
        folder("--plot", path.parent)
    return path


def folder(option: str, path: Path | None) -> Path | None:
    """A folder that can be written to or made; nothing is made before the work is done."""
    if path is not None:
        there = next(one for one in (path, *path.absolute().parents) if one.exists())
        if not there.is_dir() or not os.access(there, os.W_OK):
            raise ConfigError(f"{option} {path}: {there} is no folder that can be written to")
    return path


NOTHING = "-"


def number(value: float) -> float | None:
    """For JSON: null where there is none."""
    return value if math.isfinite(value) else None


def text(value: float, form: str) -> str:
    """For tables; form: as of `str.format`."""
    return form.format(value) if math.isfinite(value) else NOTHING


def table(title: str, first: str, *others: str) -> Table:
    """An empty table: a column of names, and columns of figures."""
    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    made.add_column(first, no_wrap=True)
    for head in others:
        made.add_column(head, justify="right", no_wrap=True)
    return made
