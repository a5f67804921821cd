"""What is asked of a simulation: options of the command line, checked."""

from __future__ import annotations

import argparse
import math
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from crawler import units
from crawler.errors import ConfigError
from crawler.simulation import curves
from crawler.simulation.runs import Manner, Pair
from crawler.traces import HOUR_SECONDS
from schedules.score import DAY_HOURS
from schedules.terms import POLICIES

LONGEST_DAYS = 365.0
DATE_LENGTH = len("2024-01-31")


@dataclass(frozen=True, slots=True)
class Asked:
    """Pairs of policy and budget, how to try them, from when to when, and what to write.

    start, split, stop: hours since 1970 (UTC); None where nothing was asked
    """

    pairs: tuple[Pair, ...]
    manner: Manner
    start: float | None
    split: float | None
    stop: float | None
    visits_out: Path | None
    plot: Path | None

    @classmethod
    def of(cls, opts: argparse.Namespace) -> Asked:
        """The options; ConfigError names the one that is wrong."""
        return cls(
            _pairs(opts.policy or POLICIES[:1], opts.budget),
            Manner(_period(opts.replan_every), _cap(opts.daily_cap), opts.closed_loop),
            _moment("--from", opts.start),
            _moment("--split", opts.split),
            _moment("--to", opts.stop),
            _folder("--visits-out", opts.visits_out),
            _picture(opts.plot),
        )


def _pairs(policies: list[str] | tuple[str, ...], budgets: list[str]) -> tuple[Pair, ...]:
    """Each policy with each budget, once."""
    for policy in policies:
        if policy not in POLICIES:
            raise ConfigError(f"--policy {policy}: no such policy; there are {', '.join(POLICIES)}")
    amounts = [_amount("--budget", text) for text in budgets]
    return tuple((p, b) for p in dict.fromkeys(policies) for b in dict.fromkeys(amounts))


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


def _period(text: str) -> float:
    """Days between replans, in hours."""
    try:
        days = float(text)
    except ValueError:
        days = 0.0
    if not 1 / DAY_HOURS <= days <= LONGEST_DAYS:
        raise ConfigError(f"--replan-every {text}: give days, 1/24 to {LONGEST_DAYS:g}")
    return days * DAY_HOURS


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


def _picture(path: Path | None) -> Path | None:
    if path is not None:
        curves.check_name(path)
        if path.is_dir():
            raise ConfigError(f"--plot {path}: is a folder")
        _folder("--plot", path.parent)
    return path


def _folder(option: str, folder: Path | None) -> Path | None:
    """A folder that can be written to or made; nothing is made before the work is done."""
    if folder is not None:
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if not there.is_dir() or not os.access(there, os.W_OK):
            raise ConfigError(f"{option} {folder}: {there} is no folder that can be written to")
    return folder
