"""What is asked of any simulation: options of the command line, checked."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from crawler.errors import ConfigError
from crawler.simulation import pictures
from crawler.simulation.moments import Moments
from crawler.traces.files import HOUR_SECONDS

DATE_LENGTH = len("2024-01-31")
DAY_HOURS, LONGEST_DAYS = 24, 365.0


def moments(start: str | None, split: str | None, stop: str | None) -> Moments:
    """The times of `--from`, `--split` and `--to`; ConfigError names the one that is wrong."""
    return _moment("--from", start), _moment("--split", split), _moment("--to", stop)


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


def policies(
    named: list[str] | None, there_are: tuple[str, ...], kind: str = ""
) -> tuple[str, ...]:
    """Each policy once, the first there is by default; ConfigError for what is none."""
    for policy in named or ():
        if policy not in there_are:
            raise ConfigError(
                f"--policy {policy}: no such policy{kind}; there are {', '.join(there_are)}"
            )
    return tuple(dict.fromkeys(named or there_are[:1]))


def period(text: str | None, usual_hours: float) -> float:
    """Hours between replans, from days as `--replan-every` has them; the usual if nothing is."""
    if text is None:
        return float(usual_hours)
    try:
        days = float(text)
    except ValueError:
        days = 0.0
    if not 1 / DAY_HOURS <= days <= LONGEST_DAYS:
        raise ConfigError(f"--replan-every {text}: give days, 1/24 to {LONGEST_DAYS:g}")
    return days * DAY_HOURS


def picture(path: Path | None) -> Path | None:
    """The file of `--plot`, if it has a name that can be drawn to."""
    if path is not None:
        pictures.check_name(path)
        if path.is_dir():
            raise ConfigError(f"--plot {path}: is a folder")
        folder("--plot", path.parent)
    return path


def folder(option: str, path: Path | None) -> Path | None:
    """A folder that can be written to or made; nothing is made before the work is done."""
    if path is not None:
        there = next(one for one in (path, *path.absolute().parents) if one.exists())
        if not there.is_dir() or not os.access(there, os.W_OK):
            raise ConfigError(f"{option} {path}: {there} is no folder that can be written to")
    return path
