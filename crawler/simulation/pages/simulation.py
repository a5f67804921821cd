"""`scrapy simulate pages`: read, try, and what came of it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from math import inf
from pathlib import Path
from typing import Any

from rich.console import Console

from crawler.config import Config
from crawler.replanning.orders import PAGES
from crawler.simulation.pages import comparison
from crawler.simulation.pages.asked import Asked
from crawler.simulation.pages.curves import draw
from crawler.simulation.pages.runs import Outcome, check_budgets, run, run_all, run_daily
from crawler.simulation.pages.stages import Stage, stage_of_past, stage_of_trace
from crawler.simulation.past import current_budget, gathered
from crawler.traces.pages import read_trace
from crawler.traces.visits import write_visits
from crawler.utils.text import amount

PAPERS = "groups"


@dataclass(frozen=True, slots=True)
class PageSimulation:
    """What came of each pair of policy and budget, and what there is to compare with."""

    asked: Asked
    stage: Stage
    outcomes: list[Outcome]
    references: list[Outcome]

    @classmethod
    def of(
        cls, config: Config, opts: argparse.Namespace, say: Callable[[str], None]
    ) -> PageSimulation:
        """Simulate what is asked; raises FreshetError."""
        asked = Asked.of(opts)
        stage = _stage(config, opts, asked)
        budgets = asked.budgets or (current_budget(config, opts.history, PAGES),)
        pairs = tuple(product(asked.policies, budgets))
        check_budgets(stage, asked.manner, pairs)
        outcomes = run_all(stage, asked.manner, pairs, say)
        references = [run_daily(stage)]
        if asked.plot and PAPERS not in asked.policies:
            references.append(run(stage, asked.manner, PAPERS, inf))
        return cls(asked, stage, outcomes, references)

    def write(self) -> None:
        """Write the files that are asked for; raises FreshetError."""
        if folder := self.asked.visits_out:
            for outcome in self.outcomes:
                write_visits(folder / outcome.file, self.stage.names, outcome.visits)
        if self.asked.plot:
            draw(self.asked.plot, self.outcomes, self.references, self._title)

    def in_json(self) -> dict[str, Any]:
        """All figures."""
        manner = self.asked.manner
        return comparison.in_json(self.stage, manner, self.outcomes, self.references)

    def show(self, console: Console) -> None:
        """Print the tables."""
        everything = [*self.outcomes, *self.references]
        console.print(self._title, soft_wrap=True)
        console.print(comparison.by_page(everything), comparison.by_source(everything))
        for note in comparison.notes(self.outcomes):
            console.print(note, soft_wrap=True)
        if not self.asked.budgets:
            budget = amount(self.outcomes[0].budget)
            console.print(f"The budget is the current one, {budget} requests a day (--budget).")

    @property
    def _title(self) -> str:
        return comparison.in_words(self.stage, self.outcomes[0])


def _stage(config: Config, opts: argparse.Namespace, asked: Asked) -> Stage:
    """The trace of the files, or the database's own past."""
    if opts.history is None:
        pages = Path(opts.pages) if opts.pages else None
        return stage_of_trace(read_trace(Path(opts.changes), pages), asked.moments)
    return stage_of_past(gathered(config, opts.history), asked.moments)
