"""What came of policies on feeds, side by side: as tables and as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from crawler.simulation.feeds.runs import FIGURES, Outcome, means
from crawler.simulation.feeds.stages import Stage
from crawler.simulation.figures import number, table, text
from crawler.simulation.moments import days
from crawler.traces.files import iso
from crawler.utils.text import count
from schedules.schedule import LONGEST_FEED_WEEKS, WEEK_HOURS

HEADS = ("missed\n%", "uncollected\n%", "lost\n%", "delay\nhours")
FORMS = ("{:.1f}", "{:.1f}", "{:.1f}", "{:,.1f}")


def in_json(stage: Stage, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """All figures under the names of JSON; null where there is none."""
    span = stage.span
    return {
        "kind": "feeds",
        "from": iso(span.start),
        "split": iso(span.split),
        "to": iso(span.stop),
        "feeds": len(stage.feeds),
        "posts": outcomes[0].totals.posts,
        "left_out": {"feeds": stage.windowless, "posts": stage.unlisted},
        "results": [_row(one) for one in outcomes],
        "means": [
            {"policy": policy} | {name: number(value) for name, value in figures.items()}
            for policy, figures in means(outcomes).items()
        ],
    }


def _row(outcome: Outcome) -> dict[str, Any]:
    totals = outcome.totals
    return {
        "policy": outcome.policy,
        "visits": outcome.asked,
        "spent": totals.visits,
        **{name: number(getattr(totals, name)) for name in FIGURES},
        "never_visited": totals.never_visited,
        "posts": totals.posts,
        "collected": totals.got,
    }


def by_visits(stage: Stage, outcomes: Sequence[Outcome]) -> Table:
    """A row for each policy and number of visits."""
    heads = "visits", "a feed", *HEADS, "never\nvisited"
    made = table("every post counts the same", "policy", *heads)
    for one in outcomes:
        figures = {name: getattr(one.totals, name) for name in FIGURES}
        made.add_row(
            one.policy, f"{one.asked:,}", f"{one.asked / len(stage.feeds):.4g}",
            *_in_words(figures), f"{one.totals.never_visited:,}",
        )  # fmt: skip
    return made


def by_policy(outcomes: Sequence[Outcome]) -> Table:
    """A row for each policy: the means over all its numbers of visits."""
    made = table("mean over all numbers of visits", "policy", *HEADS)
    for policy, figures in means(outcomes).items():
        made.add_row(policy, *_in_words(figures))
    return made


def _in_words(figures: Mapping[str, float]) -> tuple[str, ...]:
    return tuple(text(figures[name], form) for name, form in zip(FIGURES, FORMS, strict=True))


def in_words(stage: Stage, outcome: Outcome) -> str:
    """What was played on, in a line."""
    posts = count(outcome.totals.posts, "post")
    return f"{count(len(stage.feeds), 'feed')}, {posts}, {days(stage.span)}"


def notes(stage: Stage, outcomes: Sequence[Outcome]) -> list[str]:
    """Return what has to be known to read the tables."""
    hours = stage.span.stop - stage.span.split
    least = math.ceil(len(stage.feeds) * hours / (LONGEST_FEED_WEEKS * WEEK_HOURS))
    few = any(one.asked < least and one.is_standing for one in outcomes)
    posts, feeds = count(stage.unlisted, "post"), count(stage.windowless, "feed")
    said = {
        f"left out: {posts} of feeds that are not listed": stage.unlisted,
        f"left out: {feeds} whose window is not known": stage.windowless,
        f"{count(least, 'visit')} or more are needed to visit each feed every {LONGEST_FEED_WEEKS} "
        "weeks, as plans do; with fewer, visits stop before the end": few,
    }
    return [note for note, holds in said.items() if holds]
