"""`scrapy simulate feeds`: read, try, and what came of it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from crawler.config import Config
from crawler.replanning.orders import FEEDS
from crawler.simulation.asked import DAY_HOURS
from crawler.simulation.feeds import comparison
from crawler.simulation.feeds.asked import Amount, Asked
from crawler.simulation.feeds.curves import draw
from crawler.simulation.feeds.runs import Outcome, run_all
from crawler.simulation.feeds.stages import Stage, stage_of_past, stage_of_trace
from crawler.simulation.past import current_budget, gathered
from crawler.traces.feeds import read_feed_trace
from crawler.traces.visits import write_visits


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
        return comparison.in_json(self.stage, self.outcomes) | loop

    def show(self, console: Console) -> None:
        """Print the tables."""
        console.print(self._title, soft_wrap=True)
        console.print(comparison.by_visits(self.stage, self.outcomes))
        if len(self.outcomes) > len(self.asked.policies):
            console.print(comparison.by_policy(self.outcomes))
        for note in comparison.notes(self.stage, self.outcomes):
            console.print(note, soft_wrap=True)
        if not self.asked.amounts:
            console.print("The number of visits is that of the current budget (--visits).")

    @property
    def _title(self) -> str:
        return comparison.in_words(self.stage, self.outcomes[0])


def _stage(config: Config, opts: argparse.Namespace, asked: Asked) -> Stage:
    """The trace of the files, or the database's own past."""
    if opts.history is None:
        feeds = Path(opts.feeds) if opts.feeds else None
        return stage_of_trace(read_feed_trace(Path(opts.posts), feeds), asked.moments)
    return stage_of_past(gathered(config, opts.history), asked.moments)
