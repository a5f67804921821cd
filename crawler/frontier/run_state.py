"""What one process counts of a run, and what it knows at the end. No input or output."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field

from crawler.errors import HOST_ERRORS, FreshetError
from crawler.frontier.lifecycle import Counts, EndState, RunWarnings, counts_of
from crawler.items import FAILED, LinkCounts, Visit

logger = logging.getLogger(__name__)
# Maximum number of unmatched links that a process keeps as examples.
MAX_UNMATCHED_LINKS = 200
# Number of failed visits with the same problem that a run logs, and of problems that it counts.
MAX_SAME_PROBLEM, MAX_PROBLEMS = 10, 1000


@dataclass(frozen=True, slots=True)
class Tally:
    """State of a run when a process leaves it.

    counts:        sums over all processes; None if another process sums up the run
    sums_up:       whether this process sums up the run, as the last one
    workers:       number of processes that took part; 1 if another process sums up the run
    others:        number of processes that are still running
    visits_of_all: number of visits of all processes so far
    """

    counts: Counter[str] | None = None
    sums_up: bool = True
    workers: int = 1
    others: int = 0
    visits_of_all: int = 0


@dataclass(slots=True)
class FailureLog:
    """Logs failed visits; of many with the same problem, only the first ones.

    spider:  name of the spider
    example: URL and reason of the last failed visit of this process; empty without one
    """

    spider: str
    example: str = ""
    _visits: Counter[str] = field(default_factory=Counter)

    def note(self, visit: Visit, *, is_of_host: bool) -> None:
        """Log a failed visit. is_of_host: its cause is logged once for all pages of its host."""
        url, reason = visit.fetched.target.url, visit.reason or ""
        self.example = f"{url}: {reason or visit.outcome}"
        if visit.fetched.shared_fetch or is_of_host or reason.endswith(HOST_ERRORS):
            return
        problem = f"{visit.outcome}: {reason}"
        if len(self._visits) < MAX_PROBLEMS or problem in self._visits:
            self._visits[problem] += 1
        n = self._visits[problem]
        if n == MAX_SAME_PROBLEM:
            problem += f" (no more are logged; scrapy targets {self.spider} --errors lists all)"
        if n <= MAX_SAME_PROBLEM:
            logger.warning("%s: %s", url, problem)


@dataclass(slots=True)
class RunState:
    """Counts of a run, and its state at the end.

    counts:    counts of the run; only of this process until it has left the run
    own:       counts of only this process, once it has left the run
    links:     examples of links that this process has seen
    failures:  failed visits of this process
    second_requests: number of second requests of this process, which find random text
    due_at_start: number of targets that were due when the run began
    prepares:  whether this process prepares the run
    is_full:   whether this is a full run, which ignores the plan's caps
    is_baseline: whether the first crawl of the site is not complete
    tally:     the run when this process left it
    warnings:  warnings about the run, once it is summed up
    end_state: state of the spider after the run, once the run is summed up
    reason:    reason why the run ended
    error:     error that ended the run; Busy if another process is already running the spider
    flaw:      error that did not end the run, but makes it fail at its end
    """

    failures: FailureLog
    counts: Counter[str] = field(default_factory=Counter)
    own: Counter[str] = field(default_factory=Counter)
    links: LinkCounts = field(default_factory=lambda: LinkCounts(MAX_UNMATCHED_LINKS))
    second_requests: int = 0
    due_at_start: int = 0
    prepares: bool = True
    is_full: bool = False
    is_baseline: bool = False
    tally: Tally = Tally()
    warnings: RunWarnings = field(default_factory=RunWarnings)
    end_state: EndState | None = None
    reason: str = ""
    error: FreshetError | None = None
    flaw: FreshetError | None = None

    def count(self, visit: Visit, *, is_of_host: bool) -> Counts:
        """Count a stored visit, and return its counts. is_of_host: as in `FailureLog.note`."""
        counts = counts_of(visit)
        for name, value in counts.items():
            self.counts[name] += value  # type: ignore[assignment]
        if visit.outcome in FAILED:
            self.failures.note(visit, is_of_host=is_of_host)
        if visit.fetched.link_counts is not None:
            self.links.merge(visit.fetched.link_counts)
        return counts

    @property
    def found_nothing(self) -> bool:
        """Return whether the run must not end as a success, although no part of it failed."""
        end = self.end_state
        return self.warnings.found_nothing or (end is not None and end.never_read)
