"""What is asked of a simulation of overload: options of the command line, checked."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

from crawler.errors import ConfigError
from crawler.simulation import asked
from crawler.simulation.overload import mixes
from crawler.simulation.overload.mixes import Mix
from schedules.dispatch import POLICIES

MOST_LOAD = 1000.0


@dataclass(frozen=True, slots=True)
class Asked:
    """A mix of cells, the policies to try on it, a picture to draw."""

    mix: Mix
    policies: tuple[str, ...]
    plot: Path | None

    @classmethod
    def of(cls, file: str | None, opts: argparse.Namespace) -> Asked:
        """The options; ConfigError names the one that is wrong."""
        policies = asked.policies(opts.policy or list(POLICIES), POLICIES)
        plot, load = asked.picture(opts.plot), _load(opts.load)
        path = None if file is None else Path(file)
        return cls(mixes.read(path, load, equal_costs=opts.equal_costs), policies, plot)


def _load(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        load = float(text)
    except ValueError:
        load = math.nan
    if not 0 < load <= MOST_LOAD:
        raise ConfigError(
            f"--load {text}: give seconds of work a second, such as 1.05 or 2 "
            f"(more than 0, {MOST_LOAD:g} at most)"
        )
    return load
