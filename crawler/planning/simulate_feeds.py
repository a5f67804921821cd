"""What a simulation plays on: feeds with a span of time, from a trace or from the own past."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.planning import simulation as asked
from crawler.planning.plots import draw_line, scale_by_factors, side_by_side
from crawler.planning.population import Gathered, keys_of_texts
from crawler.planning.request import FEEDS
from crawler.planning.simulation import (
    DAY_HOURS,
    Moments,
    are_feeds,
    current_budget,
    days,
    gathered,
    number,
    span_of,
    table,
    text,
)
from crawler.planning.traces import FeedTrace, iso, read_feed_trace, whole_seconds, write_visits
from crawler.storage.histories import Watched
from crawler.utils.text import count
from schedules.evaluation.feeds import FEED_POLICIES, PAPER_POLICIES, Feeds, paper_visits, standing
from schedules.evaluation.score import CollectedTotals, collected
from schedules.evaluation.world import Span
from schedules.history import Ints, Times
from schedules.schedule import LONGEST_FEED_WEEKS, WEEK_HOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# In longer times millions of feeds cannot be counted to the millisecond.
LONGEST_HOURS = 100 * 366 * 24


@dataclass(frozen=True, slots=True)
class Stage:
    """n feeds with names, their posts in the order of time, and when.

    unlisted:   posts that were left out, as their feed is not listed
    windowless: feeds that were left out, as their window is not known
    """

    feeds: Feeds
    names: Sequence[str]
    posts: Times
    span: Span
    unlisted: int
    windowless: int

    @property
    def known(self) -> Times:
        """What every policy knows: the posts up to the split."""
        at = self.posts.at
        before = at <= self.span.split
        feed = np.repeat(np.arange(len(self.feeds)), np.diff(self.posts.first))
        counts = np.bincount(feed[before], minlength=len(self.feeds))
        return Times(np.concatenate(([0], np.cumsum(counts))), at[before])


def stage_of_trace(trace: FeedTrace, moments: Moments) -> Stage:
    """The feeds of a trace. Without moments: the bounds of what is known."""
    if not len(trace.posts.at):
        raise ConfigError("no feed that is listed with a window has any post")
    feeds = Feeds(keys_of_texts(list(trace.ids)), trace.window, trace.weight)
    span = _whole(span_of((trace.posts.at,), moments))
    return Stage(feeds, trace.ids, trace.posts, span, trace.unlisted, trace.windowless)


def stage_of_past(gathered: Gathered, moments: Moments) -> Stage:
    """The feeds of a database, and the posts that visits found.

    A post appeared when it says so, if that lies between the two visits, else when it was found.
    """
    watched, are = gathered.watched, are_feeds(gathered.watched)
    rows = np.flatnonzero(are & (watched.window > 0))
    if not len(rows):
        raise ConfigError("no feed has been read yet (scrapy crawl reads them)")
    past = watched.histories.of(rows)
    span = _whole(span_of((past.since, past.until), moments))
    names = [watched.ids[row] for row in rows.tolist()]
    weight = gathered.population.weight[rows]
    feeds = Feeds(keys_of_texts(names), watched.window[rows], weight)
    windowless = int(np.count_nonzero(are)) - len(rows)
    return Stage(feeds, names, _posts(watched, rows), span, 0, windowless)


def _posts(watched: Watched, rows: Ints) -> Times:
    """When the posts of some targets appeared, in the order of time."""
    after, by, said = watched.histories.after, watched.histories.by, watched.stated
    inside = (said >= after) & (said <= by)
    found = replace(watched.histories, by=np.where(inside, said, by)).of(rows)
    feed = np.repeat(np.arange(len(rows)), np.diff(found.first))
    return Times(found.first, found.by[np.lexsort((found.by, feed))])


def _whole(span: Span) -> Span:
    """The span in whole seconds, which a file of visits can tell."""
    whole = Span(*whole_seconds(np.array(span)).tolist())
    if not whole.start < whole.split < whole.stop:
        raise ConfigError("--from, --split and --to have to be a second apart or more")
    if whole.stop - whole.start > LONGEST_HOURS:
        raise ConfigError(
            f"from {iso(whole.start)} to {iso(whole.stop)} are more than 100 years (--from, --to)"
        )
    return whole


FIGURES = ("missed_pct", "uncollected_pct", "lost_pct", "delay_h")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a policy did with a number of visits. is_standing: by the plans of replans."""

    policy: str
    asked: int
    totals: CollectedTotals
    visits: Times
    is_standing: bool

    @property
    def file(self) -> str:
        """The name of its file of visits."""
        return f"{self.policy}_{self.asked}.csv.gz"


def run_all(
    stage: Stage,
    policies: Sequence[str],
    amounts: Sequence[int],
    say: Callable[[str], None],
    replan_hours: float,
    *,
    closed_loop: bool,
) -> list[Outcome]:
    """Simulate each policy with each number of visits; see `run`."""
    pairs = [(policy, amount) for policy in policies for amount in amounts]
    outcomes = []
    for at, (policy, amount) in enumerate(pairs, 1):
        say(f"{policy}, {amount:,} visits ({at} of {len(pairs)})")
        outcomes.append(run(stage, policy, amount, replan_hours, closed_loop=closed_loop))
    return outcomes


def run(
    stage: Stage, policy: str, asked: int, replan_hours: float, *, closed_loop: bool
) -> Outcome:
    """Simulate one policy with one number of visits.

    `optimal`, and in a closed loop every policy, follows the plans that a replan makes every
    `replan_hours` from what was seen until then. Else the paper's policies are as the paper has
    them: planned once, for the period that counts.
    """
    span = stage.span
    is_standing = closed_loop or policy not in PAPER_POLICIES
    if not is_standing:
        planned = paper_visits(policy, stage.feeds, stage.known, asked, span)
    else:
        of = stage.feeds, stage.posts, asked, span
        planned = standing(policy, *of, replan_hours, closed_loop=closed_loop)
    # The moments that a file of visits tells are those that count.
    visits = Times(planned.first, whole_seconds(planned.at))
    check(policy, asked, visits, span)
    found = collected(stage.posts, visits, stage.feeds.window, span.split, span.stop)
    return Outcome(policy, asked, found.totals(), visits, is_standing)


def check(policy: str, asked: int, visits: Times, span: Span) -> None:
    """RuntimeError where a policy takes more than it is given, which no user can mend."""
    if len(visits.at) > asked:
        raise RuntimeError(f"{policy} spends {len(visits.at):,} of {asked:,} visits")
    outside = np.count_nonzero((visits.at < span.split) | (visits.at > span.stop))
    if outside:
        raise RuntimeError(f"{policy} makes {outside:,} visits before or after the period")


def means(outcomes: Sequence[Outcome]) -> dict[str, dict[str, float]]:
    """FIGURES of each policy as means over its numbers of visits; NaN where there is none."""
    return {
        policy: {
            figure: _mean([getattr(one.totals, figure) for one in outcomes if one.policy == policy])
            for figure in FIGURES
        }
        for policy in dict.fromkeys(one.policy for one in outcomes)
    }


def _mean(values: Sequence[float]) -> float:
    there = [value for value in values if math.isfinite(value)]
    return sum(there) / len(there) if there else math.nan


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


# 800 MB of moments, of which a run needs some at a time.
MOST_VISITS = 100_000_000
AMOUNT = re.compile(r"([0-9]{1,12})\s*([xN]?)")
EXAMPLES = "a whole number of fetches for all feeds, such as 20000, or for each, such as 3x"


@dataclass(frozen=True, slots=True)
class Amount:
    """A number of visits: of all feeds together, or of each."""

    number: int
    of_each: bool = False

    def among(self, feeds: int) -> int:
        """Visits of so many feeds together; ConfigError if they are too many."""
        total = self.number * feeds if self.of_each else self.number
        if total > MOST_VISITS:
            text = f"{self.number}{'x' if self.of_each else ''}"
            raise ConfigError(f"--visits {text}: more than {MOST_VISITS:,} in all (give fewer)")
        return total


@dataclass(frozen=True, slots=True)
class Asked:
    """Policies, numbers of visits for each, from when to when, and what to write.

    amounts:      none: as many visits as the current plan would make
    replan_hours: between two replans
    closed_loop:  one document of each feed is all that is known beforehand
    """

    policies: tuple[str, ...]
    amounts: tuple[Amount, ...]
    moments: Moments
    replan_hours: float
    closed_loop: bool
    visits_out: Path | None
    plot: Path | None

    @classmethod
    def of(cls, opts: argparse.Namespace) -> Asked:
        """The options; ConfigError names the one that is wrong."""
        return cls(
            asked.policies(opts.policy, FEED_POLICIES, " for feeds"),
            tuple(_amount(text) for text in opts.visits or ()),
            asked.moments(opts.start, opts.split, opts.stop),
            asked.period(opts.replan_every, asked.DAY_HOURS),
            opts.closed_loop,
            asked.folder("--visits-out", opts.visits_out),
            asked.picture(opts.plot),
        )


def _amount(text: str) -> Amount:
    found = AMOUNT.fullmatch(text.strip())
    if not found:
        raise ConfigError(f"--visits {text}: give {EXAMPLES}")
    if not int(found[1]):
        raise ConfigError(f"--visits {text}: a policy without visits collects nothing")
    return Amount(int(found[1]), bool(found[2]))


def draw(path: Path, outcomes: Sequence[Outcome], title: str) -> None:
    """Write the picture; the file is there entirely or not at all. Raises ConfigError.

    Figures 13 and 14 of Han and Lee (2008).
    """
    with side_by_side(path, title) as (missed, delay):
        _draw(missed, outcomes, "missed_pct")
        _draw(delay, outcomes, "delay_h")
        missed.set_title("posts missed: % that left their feed before a fetch", loc="left")
        delay.set_title("delay: hours from a collected post to its fetch", loc="left")


def _draw(axes: Axes, outcomes: Sequence[Outcome], figure: str) -> None:
    for policy in dict.fromkeys(one.policy for one in outcomes):
        points = [
            (float(one.asked), float(getattr(one.totals, figure)))
            for one in outcomes
            if one.policy == policy
        ]
        draw_line(axes, policy, [point for point in points if math.isfinite(point[1])])
    scale_by_factors(axes, "fetches of all feeds together")
    axes.set_ylim(bottom=0)


@dataclass(frozen=True, slots=True)
class FeedSimulation:
    """What came of each policy with each number of visits."""

    asked: Asked
    stage: Stage
    outcomes: list[Outcome]

    @classmethod
    def of(
        cls, config: Config, opts: argparse.Namespace, say: Callable[[str], None]
    ) -> FeedSimulation:
        """Simulate what is asked; raises FreshetError."""
        asked = Asked.of(opts)
        stage = _stage(config, opts, asked)
        amounts = dict.fromkeys(amount.among(len(stage.feeds)) for amount in asked.amounts)
        if not amounts:
            days = (stage.span.stop - stage.span.split) / DAY_HOURS
            visits = Amount(max(1, round(current_budget(config, opts.history, FEEDS) * days)))
            amounts = {visits.among(len(stage.feeds)): None}
        work = stage, asked.policies, tuple(amounts), say, asked.replan_hours
        return cls(asked, stage, run_all(*work, closed_loop=asked.closed_loop))

    def write(self) -> None:
        """Write the files that are asked for; raises FreshetError."""
        if folder := self.asked.visits_out:
            for outcome in self.outcomes:
                write_visits(folder / outcome.file, self.stage.names, outcome.visits)
        if self.asked.plot:
            draw(self.asked.plot, self.outcomes, self._title)

    def in_json(self) -> dict[str, Any]:
        """All figures."""
        days = self.asked.replan_hours / DAY_HOURS
        loop = {"closed_loop": self.asked.closed_loop, "replan_every_days": days}
        return in_json(self.stage, self.outcomes) | loop

    def show(self, console: Console) -> None:
        """Print the tables."""
        console.print(self._title, soft_wrap=True)
        console.print(by_visits(self.stage, self.outcomes))
        if len(self.outcomes) > len(self.asked.policies):
            console.print(by_policy(self.outcomes))
        for note in notes(self.stage, self.outcomes):
            console.print(note, soft_wrap=True)
        if not self.asked.amounts:
            console.print("The number of visits is that of the current budget (--visits).")

    @property
    def _title(self) -> str:
        return in_words(self.stage, self.outcomes[0])


def _stage(config: Config, opts: argparse.Namespace, asked: Asked) -> Stage:
    """The trace of the files, or the database's own past."""
    if opts.history is None:
        feeds = Path(opts.feeds) if opts.feeds else None
        return stage_of_trace(read_feed_trace(Path(opts.posts), feeds), asked.moments)
    return stage_of_past(gathered(config, opts.history), asked.moments)
