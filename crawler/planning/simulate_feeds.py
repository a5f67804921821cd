"""Simulate policies on feeds: which posts their fetches collect, and how late."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from rich.table import Table
from typing_extensions import TypedDict

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.items import Kind
from crawler.planning.options import FEEDS
from crawler.planning.plots import draw_line, scale_by_factors, side_by_side
from crawler.planning.population import Gathered, are
from crawler.planning.simulation import (
    Outcome,
    Scenario,
    TraceSimulation,
    chosen_policies,
    finite,
    table,
    text,
)
from crawler.planning.traces import iso, read_feed_trace, whole_seconds
from crawler.storage.columns import keys_of_texts
from crawler.utils.text import amount, count
from schedules.evaluation.feeds import (
    FEED_POLICIES,
    PAPER_POLICIES,
    Feeds,
    paper_visits,
    replanned_visits,
)
from schedules.evaluation.score import CollectedTotals, collected
from schedules.evaluation.world import Span
from schedules.history import DAY_HOURS, Floats, Times
from schedules.schedule import MAX_FEED_WEEKS, WEEK_HOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Longer spans cannot be represented to the millisecond for millions of feeds.
MAX_SPAN_HOURS = 100 * 366 * 24
# 100 million visits take 800 MB, several times during a run.
MAX_VISITS = 100_000_000
AMOUNT = re.compile(r"([0-9]{1,12})\s*([xN]?)")
EXAMPLES = "a whole number of fetches for all feeds, such as 20000, or for each, such as 3x"
FIGURES = ("missed_pct", "uncollected_pct", "lost_pct", "delay_h")
HEADS = ("missed\n%", "uncollected\n%", "lost\n%", "delay\nhours")
FORMS = ("{:.1f}", "{:.1f}", "{:.1f}", "{:,.1f}")


class FeedsResult(TypedDict):
    """Figures of a policy with a number of fetches. Posts have equal weights."""

    policy: str
    """Allocation policy."""
    visits: int
    """Number of fetches that the policy was given."""
    spent: int
    """Number of fetches that were made."""
    missed_pct: float | None
    """Percentage of posts that dropped out of the document before a fetch."""
    uncollected_pct: float | None
    """Percentage of posts that are still in the document at the end, but were not fetched."""
    lost_pct: float | None
    """Sum of `missed_pct` and `uncollected_pct`."""
    delay_hours: float | None
    """Mean hours from a collected post to its fetch."""
    never_visited: int
    """Number of feeds without a fetch."""
    posts: int
    """Number of posts."""
    collected: int
    """Number of collected posts."""


class FeedsMeans(TypedDict):
    """Means of a policy over all numbers of fetches."""

    policy: str
    """Allocation policy."""
    missed_pct: float | None
    """Mean of `missed_pct`."""
    uncollected_pct: float | None
    """Mean of `uncollected_pct`."""
    lost_pct: float | None
    """Mean of `lost_pct`."""
    delay_hours: float | None
    """Mean of `delay_hours`."""


class LeftOut(TypedDict):
    """Data that could not be used."""

    feeds: int
    """Number of feeds of unknown size."""
    posts: int
    """Number of posts of feeds that are not listed."""


class FeedsReport(TypedDict):
    """Policies on the posts of feeds. Unknown values are null."""

    kind: Literal["feeds"]
    """`feeds`."""
    start: str
    """Start of the data."""
    split: str
    """Start of the scored period."""
    stop: str
    """End of the scored period."""
    closed_loop: bool
    """Whether policies know only what their own fetches observed."""
    replan_every_days: float
    """Days between two replans."""
    feeds: int
    """Number of feeds."""
    posts: int
    """Number of posts in the scored period."""
    left_out: LeftOut
    """Data that could not be used."""
    results: list[FeedsResult]
    """Figures of each policy with each number of fetches."""
    means: list[FeedsMeans]
    """Means of each policy."""


@dataclass(frozen=True, slots=True)
class FeedScenario(Scenario):
    """Hold n feeds and their posts in chronological order.

    unlisted:   number of posts left out because their feed is not listed
    windowless: number of feeds left out because their size is unknown
    """

    feeds: Feeds
    posts: Times
    unlisted: int = 0
    windowless: int = 0


class FeedSimulation(TraceSimulation[FeedScenario, CollectedTotals, FeedsReport]):
    """Simulate policies with numbers of fetches.

    visits: number, and whether it is per feed; empty: as many as the current plan makes
    """

    kind = FEEDS
    amount_text = ", {} visits"
    default_replan_hours = float(DAY_HOURS)

    def __init__(self, config: Config, opts: argparse.Namespace) -> None:
        self.policies = chosen_policies(opts.policy, FEED_POLICIES, " for feeds")
        self.visits = []
        for each in opts.visits or ():
            parts = AMOUNT.fullmatch(each.strip())
            if not parts:
                raise ConfigError(f"--visits: invalid number {each!r}. Use {EXAMPLES}")
            if not int(parts[1]):
                raise ConfigError(f"--visits {each}: must be greater than 0")
            self.visits.append((int(parts[1]), bool(parts[2])))
        super().__init__(config, opts)
        self.posts, self.feeds = opts.posts, opts.feeds

    def from_trace(self) -> FeedScenario:
        """Return the feeds of a trace."""
        trace = read_feed_trace(Path(self.posts), Path(self.feeds) if self.feeds else None)
        if not len(trace.posts.at):
            raise ConfigError("no posts found of any listed feed with a known size")
        feeds = Feeds(keys_of_texts(list(trace.ids)), trace.window, trace.weight)
        span = self.span_of((trace.posts.at,))
        return FeedScenario(trace.ids, span, feeds, trace.posts, trace.unlisted, trace.windowless)

    def from_database(self, gathered: Gathered) -> FeedScenario:
        """Return the feeds of a database, and the posts that visits found.

        A post counts from its stated time if that lies between the two visits, else from the visit
        that found it.
        """
        watched, feeds = gathered.watched, are(gathered.watched, Kind.FEED)
        rows = np.flatnonzero(feeds & (watched.feed_size > 0))
        if not len(rows):
            raise ConfigError("no feed has been read yet. Run scrapy crawl first")
        past = watched.histories.of(rows)
        span = self.span_of((past.since, past.until))
        after, by, stated = watched.histories.after, watched.histories.by, watched.stated
        inside = (stated >= after) & (stated <= by)
        posts = replace(watched.histories, by=np.where(inside, stated, by)).of(rows)
        feed = np.repeat(np.arange(len(rows)), np.diff(posts.first))
        names = [watched.ids[row] for row in rows.tolist()]
        return FeedScenario(
            names=names,
            span=span,
            feeds=Feeds(
                keys_of_texts(names), watched.feed_size[rows], gathered.population.weight[rows]
            ),
            posts=Times(posts.first, posts.by[np.lexsort((posts.by, feed))]),
            windowless=int(np.count_nonzero(feeds)) - len(rows),
        )

    def span_of(self, moments: Sequence[Floats]) -> Span:
        """Return the span in whole seconds, the resolution of visit files."""
        span = Span(*whole_seconds(np.array(super().span_of(moments))).tolist())
        if not span.start < span.split < span.stop:
            raise ConfigError("--from, --split and --to must be at least one second apart")
        if span.stop - span.start > MAX_SPAN_HOURS:
            raise ConfigError(
                f"the span from {iso(span.start)} to {iso(span.stop)} exceeds 100 years. "
                "Change --from or --to"
            )
        return span

    def amounts(self) -> Sequence[int]:
        """Return the total numbers of fetches. Raises ConfigError if one is too large."""
        feeds, (_, split, stop) = len(self.scenario.feeds), self.scenario.span
        visits = self.visits
        if not visits:
            days = (stop - split) / DAY_HOURS
            visits = [(max(1, round(self.current_budget() * days)), False)]
        totals: dict[int, None] = {}
        for number, is_per_feed in visits:
            totals[total := number * feeds if is_per_feed else number] = None
            if total > MAX_VISITS:
                raise ConfigError(
                    f"--visits {number}{'x' if is_per_feed else ''}: too many visits "
                    f"(maximum {MAX_VISITS:,} in total)"
                )
        return tuple(totals)

    def run(self, policy: str, amount: float) -> Outcome[CollectedTotals]:
        """Simulate one policy with one number of visits.

        `optimal`, and in a closed loop every policy, follows plans that are remade every
        `replan_hours` from the observations until then. Otherwise, the policies of the papers are
        planned once for the scored period, as in the papers.
        """
        scenario, most = self.scenario, int(amount)
        span, feeds = scenario.span, scenario.feeds
        if self._is_replanned(policy):
            planned = replanned_visits(
                policy, feeds, scenario.posts, most, span, self.replan_hours,
                closed_loop=self.closed_loop,
            )  # fmt: skip
        else:
            planned = paper_visits(policy, feeds, scenario.posts, most, span)
        # Score the visits at the resolution of visit files.
        visits = Times(planned.first, whole_seconds(planned.at))
        check(policy, most, visits, span)
        figures = collected(scenario.posts, visits, feeds.window, span.split, span.stop).totals()
        return Outcome(policy, most, figures, visits)

    def _is_replanned(self, policy: str) -> bool:
        """Return whether a policy follows plans that are remade regularly."""
        return self.closed_loop or policy not in PAPER_POLICIES

    def description(self) -> str:
        """Return a one-line description of the scenario."""
        posts = count(self.outcomes[0].figures.posts, "post")
        return f"{count(len(self.scenario.feeds), 'feed')}, {posts}, {self.days()}"

    def tables(self) -> Iterator[Table | str]:
        """Yield a table by policy and number of visits, a table of means, and notes."""
        scenario, rows = self.scenario, []
        for outcome in self.outcomes:
            a_feed, totals = outcome.amount / len(scenario.feeds), outcome.figures
            means = _in_texts({name: getattr(totals, name) for name in FIGURES})
            rows.append(
                (outcome.policy, f"{outcome.amount:,}", amount(a_feed), *means,
                 f"{totals.never_visited:,}")
            )  # fmt: skip
        heads = ("policy", "visits", "per feed", *HEADS, "never\nvisited")
        yield table("all posts weighted equally", heads, rows)
        if len(self.outcomes) > len(self.policies):
            rows = [(policy, *_in_texts(means)) for policy, means in self.means().items()]
            yield table("mean over all numbers of visits", ("policy", *HEADS), rows)
        if scenario.unlisted:
            yield f"left out: {count(scenario.unlisted, 'post')} of unlisted feeds"
        if scenario.windowless:
            yield f"left out: {count(scenario.windowless, 'feed')} of unknown size"
        hours = scenario.span.stop - scenario.span.split
        min_visits = math.ceil(len(scenario.feeds) * hours / (MAX_FEED_WEEKS * WEEK_HOURS))
        if any(
            each.amount < min_visits and self._is_replanned(each.policy) for each in self.outcomes
        ):
            yield (
                f"plans visit each feed at least every {MAX_FEED_WEEKS} weeks, which takes "
                f"{count(min_visits, 'visit')}; with fewer, visits stop before the end"
            )
        if not self.visits:
            yield "The number of visits is that of the current budget. Set it with --visits."

    def report(self) -> FeedsReport:
        """Return all figures."""
        scenario, span = self.scenario, self.scenario.span
        return {
            "kind": "feeds",
            "start": iso(span.start),
            "split": iso(span.split),
            "stop": iso(span.stop),
            "closed_loop": self.closed_loop,
            "replan_every_days": self.replan_hours / DAY_HOURS,
            "feeds": len(scenario.feeds),
            "posts": self.outcomes[0].figures.posts,
            "left_out": {"feeds": scenario.windowless, "posts": scenario.unlisted},
            "results": [
                {
                    "policy": outcome.policy,
                    "visits": int(outcome.amount),
                    "spent": outcome.figures.visits,
                    "missed_pct": finite(outcome.figures.missed_pct),
                    "uncollected_pct": finite(outcome.figures.uncollected_pct),
                    "lost_pct": finite(outcome.figures.lost_pct),
                    "delay_hours": finite(outcome.figures.delay_h),
                    "never_visited": outcome.figures.never_visited,
                    "posts": outcome.figures.posts,
                    "collected": outcome.figures.got,
                }
                for outcome in self.outcomes
            ],
            "means": [
                {
                    "policy": policy,
                    "missed_pct": finite(means["missed_pct"]),
                    "uncollected_pct": finite(means["uncollected_pct"]),
                    "lost_pct": finite(means["lost_pct"]),
                    "delay_hours": finite(means["delay_h"]),
                }
                for policy, means in self.means().items()
            ],
        }

    def means(self) -> dict[str, dict[str, float]]:
        """Return FIGURES of each policy as means over its numbers of visits; NaN if none."""
        means: dict[str, dict[str, float]] = {}
        for policy in self.policies:
            totals = [each.figures for each in self.outcomes if each.policy == policy]
            means[policy] = {}
            for name in FIGURES:
                values = [getattr(each, name) for each in totals]
                finite = [value for value in values if math.isfinite(value)]
                means[policy][name] = sum(finite) / len(finite) if finite else math.nan
        return means

    def plot(self, path: Path) -> None:
        """Draw figures 13 and 14 of Han and Lee (2008)."""
        with side_by_side(path, self.description()) as (missed, delay):
            self._draw(missed, "missed_pct")
            self._draw(delay, "delay_h")
            missed.set_title("posts missed: % dropped from the feed before a fetch", loc="left")
            delay.set_title("delay: hours from a post to its fetch", loc="left")

    def _draw(self, axes: Axes, figure: str) -> None:
        for policy in self.policies:
            points = [
                (float(each.amount), float(getattr(each.figures, figure)))
                for each in self.outcomes
                if each.policy == policy
            ]
            draw_line(axes, policy, [point for point in points if math.isfinite(point[1])])
        scale_by_factors(axes, "fetches of all feeds")
        axes.set_ylim(bottom=0)


def check(policy: str, limit: int, visits: Times, span: Span) -> None:
    """Raise RuntimeError if a policy exceeds its visits or its period, which would be a bug."""
    if len(visits.at) > limit:
        raise RuntimeError(f"{policy} used {len(visits.at):,} of {limit:,} visits")
    outside = np.count_nonzero((visits.at < span.split) | (visits.at > span.stop))
    if outside:
        raise RuntimeError(f"{policy} made {outside:,} visits outside the period")


def _in_texts(figures: Mapping[str, float]) -> Iterator[str]:
    """Yield FIGURES as table cells."""
    return (text(figures[name], form) for name, form in zip(FIGURES, FORMS, strict=True))
