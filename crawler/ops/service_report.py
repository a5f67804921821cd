"""The totals of all runs of the service, and their summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from typing_extensions import TypedDict

from crawler.ops.schedule import NOTIFY
from crawler.utils.shapes import copied
from crawler.utils.text import count

# Counts of the summary, by their names in a run.
SUMS = {
    "visits": "visits",
    "new": "new",
    "changed": "changed",
    "gone": "gone",
    "errors": "error",
    "blocked": "blocked",
    "shells": "shell",
    "posts": "posts",
    "missed": "missed_visits",
}


class SpiderTotals(TypedDict):
    """Totals of a spider's runs. In a shared run, only those of this process count."""

    name: str
    """Name of the spider."""
    runs: int
    """Number of successful runs."""
    failed: int
    """Number of failed runs."""
    visits: int
    """Number of visits."""
    new: int
    """Visits with the outcome `new`."""
    changed: int
    """Visits with the outcome `changed`."""
    gone: int
    """Visits with the outcome `gone`."""
    errors: int
    """Visits with the outcome `error`."""
    blocked: int
    """Visits with the outcome `blocked`."""
    shells: int
    """Visits with the outcome `shell`: of pages whose content only a browser shows."""
    posts: int
    """Number of new feed posts."""
    missed: int
    """Number of planned visits that were not made."""


class ServiceReport(TypedDict):
    """Totals of the service, from its start to its end."""

    seconds: float
    """Duration in seconds."""
    replans: int
    """Number of replans."""
    prunes: int
    """Number of prunes."""
    deliveries: int
    """Number of deliveries of notifications."""
    spiders: list[SpiderTotals]
    """Totals of each spider."""


class Report:
    """Totals of all runs, by spider."""

    def __init__(self, words: Iterable[str]) -> None:
        self.names: dict[str, str] = {}
        self.sums: dict[str, Counter[str]] = {}
        self.periodic_jobs: Counter[str] = Counter()
        for word in words:
            self.add_site(word)

    def add_site(self, word: str) -> None:
        """Add a site without any runs."""
        self.names[word] = word
        self.sums[word] = Counter()

    def add(self, word: str, counts: dict[str, Any]) -> None:
        """Add the counts of a successful run."""
        self.names[word] = counts["name"]
        self.sums[word]["runs"] += 1
        for name, in_a_run in SUMS.items():
            self.sums[word][name] += int(counts[in_a_run])

    def failed(self, word: str) -> None:
        """Count a run that failed."""
        self.sums[word]["failed"] += 1

    def totals(self, seconds: float) -> ServiceReport:
        """Return all totals. seconds: duration of the service."""
        return {
            "seconds": round(seconds, 1),
            "replans": self.periodic_jobs["replan"],
            "prunes": self.periodic_jobs["prune"],
            "deliveries": self.periodic_jobs[NOTIFY],
            "spiders": [
                {**copied(SpiderTotals, sums), "name": self.names[word]}
                for word, sums in self.sums.items()
            ],
        }


def run_line(counts: dict[str, Any], seconds: float) -> str:
    """Summarize a run in one line."""
    named = {name: int(counts[of]) for name, of in SUMS.items() if name != "visits"}
    named["still due"] = int(counts["due"])
    more = "".join(f", {n} {name}" for name, n in named.items() if n)
    return f"{counts['name']}: {count(int(counts['visits']), 'visit')}{more}; {seconds:.1f} s"


def summary_lines(done: ServiceReport) -> list[str]:
    """Format the totals as text."""
    lines = []
    rows: list[dict[str, Any]] = [{**row} for row in done["spiders"]]
    for row in rows:
        runs = count(row["runs"], "run")
        line = f"{row['name']}: {runs}, {count(row['visits'], 'visit')}"
        named = {name: row[name] for name in (*SUMS, "failed") if name != "visits"}
        lines.append(line + "".join(f", {n} {name}" for name, n in named.items() if n))
    maintenance = f"{count(done['replans'], 'replan')}, {count(done['prunes'], 'prune')}"
    if done["deliveries"]:
        maintenance += f", notifications delivered {count(done['deliveries'], 'time')}"
    return [*lines, f"{maintenance}; {done['seconds']:.0f} s"]
