"""What is asked of a simulation of pages: options of the command line, checked."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

from crawler.errors import ConfigError
from crawler.simulation import asked
from crawler.simulation.moments import Moments
from crawler.simulation.pages.runs import Manner
from crawler.utils import time as units
from schedules.schedule import WEEK_HOURS
from schedules.terms import POLICIES

LONGEST_DAYS = 365.0


@dataclass(frozen=True, slots=True)
class Asked:
    """Policies and budgets, how to try them, from when to when, and what to write.

    budgets: requests a day; none: the budget of the current plan
    """

    policies: tuple[str, ...]
    budgets: tuple[float, ...]
    manner: Manner
    moments: Moments
    visits_out: Path | None
    plot: Path | None

    @classmethod
    def of(cls, opts: argparse.Namespace) -> Asked:
        """The options; ConfigError names the one that is wrong."""
        return cls(
            asked.policies(opts.policy, POLICIES),
            tuple(dict.fromkeys(_amount("--budget", text) for text in opts.budget or ())),
            Manner(
                asked.period(opts.replan_every, WEEK_HOURS), _cap(opts.daily_cap), opts.closed_loop
            ),
            asked.moments(opts.start, opts.split, opts.stop),
            asked.folder("--visits-out", opts.visits_out),
            asked.picture(opts.plot),
        )


def _amount(option: str, text: str) -> float:
    """Requests a day, more than none."""
    try:
        amount = units.per_day(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from None
    if not amount:
        raise ConfigError(f"{option} {text}: a policy without requests sees nothing")
    return amount


def _cap(text: str | None) -> int | None:
    """Requests at most on a day."""
    return None if text is None else max(1, math.floor(_amount("--daily-cap", text)))
