"""What is asked of a simulation of feeds: options of the command line, checked."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path

from crawler.errors import ConfigError
from crawler.simulation import asked
from crawler.simulation.moments import Moments
from schedules.feedplans import FEED_POLICIES

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
