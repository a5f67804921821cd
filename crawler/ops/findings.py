"""Findings of `scrapy doctor`: their statuses, and their text and JSON formats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from textwrap import TextWrapper
from typing import Literal

from typing_extensions import TypedDict

from crawler.utils.shapes import copied
from crawler.utils.text import count

# Width of the first column: the longest status and a space.
STATUS_CHARACTERS = 9


class Check(StrEnum):
    """Names of the checks. With `--deep`, the name of each invariant is a check, too."""

    PYTHON = "python"
    FOLDER = "folder"
    NAMES = "names"
    SETTINGS = "settings"
    DATA_FOLDER = "data folder"
    EMBEDDED = "embedded server"
    MONGODB = "mongodb"
    MONGODB_DISK = "mongodb disk"
    MONGODB_WRITE = "mongodb write"
    MONGODB_DATA = "mongodb data"
    MONGODB_INDEXES = "mongodb indexes"
    CLOCK = "clock"
    NEAR_DUPLICATES = "near-duplicates"
    SERVICE = "service"
    LAST_RUN = "last run"
    VERSIONS = "versions"
    RETENTION = "retention"
    ITEMS = "items"
    FIELDS = "fields"
    NOTIFICATIONS = "notifications"
    NO_RUN = "no run in progress"
    COMPARED = "posts are compared"
    REDIS = "redis"
    REDIS_SCRIPTS = "redis scripts"
    REDIS_MEMORY = "redis memory"
    REDIS_PERSISTENCE = "redis persistence"
    WRAPPER = "wrapper"
    ROBOTS = "robots.txt"


class Status(StrEnum):
    """Severity of a finding. WARNING: Freshet works. FAILED: fix it before running Freshet."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    check: name of the check, such as `mongodb write`
    found: the result in words
    fix:  how to fix it; empty if nothing needs fixing or `found` includes the fix
    of:    the spider, for checks of each spider
    broken, examples: number and first examples of an invariant's violations
    """

    check: str
    status: Status
    found: str
    fix: str = ""
    of: str = ""
    broken: int = 0
    examples: tuple[str, ...] = ()


def ok(check: str, result: str, of: str = "") -> Finding:
    """Return a finding that needs no action."""
    return Finding(check, Status.OK, result, of=of)


def warning(check: str, result: str, fix: str = "", of: str = "") -> Finding:
    """Return a finding that does not prevent Freshet from running."""
    return Finding(check, Status.WARNING, result, fix, of)


def failed(check: str, result: str, fix: str = "", of: str = "") -> Finding:
    """Return a finding that has to be fixed before Freshet works."""
    return Finding(check, Status.FAILED, result, fix, of)


def lines(findings: Sequence[Finding], characters: int) -> list[str]:
    """Format the findings in columns, one paragraph each, and a last line with the counts.

    characters: width to which paragraphs are wrapped at spaces
    """
    names = [" ".join(filter(None, (finding.check, finding.of))) for finding in findings]
    width = max(map(len, names), default=0)
    rows = [
        f"{finding.status:<{STATUS_CHARACTERS - 1}} {name:<{width}}  {finding.found}"
        + (f" -> {finding.fix}" if finding.fix else "")
        for name, finding in zip(names, findings, strict=True)
    ]
    indent = " " * (STATUS_CHARACTERS + width + 2)
    paragraph = TextWrapper(
        characters, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    counts = _counts(findings)
    total = (
        f"{count(counts.total(), 'check')}: {counts[Status.OK]} ok, "
        f"{count(counts[Status.WARNING], 'warning')}, {counts[Status.FAILED]} failed"
    )
    return [*map(paragraph.fill, rows), total]


class FindingReport(TypedDict):
    """The result of one check."""

    check: str
    """Name of the check, such as `mongodb write`."""
    status: Literal["ok", "warning", "failed"]
    """`ok`, `warning`: Freshet works, or `failed`: fix it before you run Freshet."""
    found: str
    """The result in words."""
    fix: str
    """How to fix the problem; empty if nothing needs fixing or `found` includes the fix."""
    of: str
    """Spider or file, for checks of each site; else empty."""
    broken: int
    """With `--deep`: number of violations of an invariant."""
    examples: list[str]
    """With `--deep`: the first violations."""


class DoctorReport(TypedDict):
    """Results of all checks."""

    ok: bool
    """Whether no check failed."""
    failed: int
    """Number of checks that failed."""
    warnings: int
    """Number of warnings."""
    findings: list[FindingReport]
    """Results in the order of the checks."""


def doctor_report(findings: Sequence[Finding]) -> DoctorReport:
    """Return the findings with their counts."""
    counts = _counts(findings)
    return {
        "ok": not counts[Status.FAILED],
        "failed": counts[Status.FAILED],
        "warnings": counts[Status.WARNING],
        "findings": [
            {
                **copied(FindingReport, finding),
                "check": str(finding.check),
                "status": finding.status.value,
                "examples": list(finding.examples),
            }
            for finding in findings
        ],
    }


def _counts(findings: Iterable[Finding]) -> Counter[Status]:
    return Counter(finding.status for finding in findings)
