"""`scrapy simulate overload`: try, and what came of it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from crawler.simulation.overload import comparison
from crawler.simulation.overload.asked import Asked
from crawler.simulation.overload.curves import draw
from crawler.simulation.overload.results import Result, course_of, tried


@dataclass(frozen=True, slots=True)
class OverloadSimulation:
    """What came of each policy."""

    asked: Asked
    results: list[Result]

    @classmethod
    def of(
        cls, file: str | None, opts: argparse.Namespace, say: Callable[[str], None]
    ) -> OverloadSimulation:
        """Simulate what is asked; raises FreshetError."""
        asked = Asked.of(file, opts)
        course, results = course_of(asked.mix), list[Result]()
        for at, policy in enumerate(asked.policies, 1):
            say(f"{policy} ({at} of {len(asked.policies)})")
            results.append(tried(asked.mix, course, policy))
        return cls(asked, results)

    def write(self) -> None:
        """Write the picture that is asked for; raises FreshetError."""
        if self.asked.plot:
            title = comparison.in_words(self.asked.mix)
            draw(self.asked.plot, self.results, self.asked.mix.cells.load, title)

    def in_json(self) -> dict[str, Any]:
        """All figures."""
        return comparison.in_json(self.asked.mix, self.results)

    def show(self, console: Console) -> None:
        """Print the tables."""
        console.print(comparison.in_words(self.asked.mix), soft_wrap=True)
        console.print(comparison.of_policies(self.results), comparison.of_groups(self.results))
        for one in self.results:
            console.print(*comparison.by_hour(one))
