"""Findings of `scrapy doctor`: their statuses, and their text and JSON formats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from textwrap import TextWrapper
from typing import Any

from crawler.utils.text import count

# Width of the first column: the longest status and a space.
STATUS_CHARACTERS = 9
# A callback that shows the check in progress.
Say = Callable[[str], None]


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
    LAST_RUN = "last run"
    VERSIONS = "versions"
    ITEMS = "items"
    FIELDS = "fields"
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
    todo:  how to fix it; empty if nothing needs fixing or `found` includes the fix
    of:    the spider, for checks of each spider
    broken, examples: number and first examples of an invariant's violations
    """

    check: str
    status: Status
    found: str
    todo: str = ""
    of: str = ""
    broken: int = 0
    examples: tuple[str, ...] = ()


def ok(check: str, result: str, of: str = "") -> Finding:
    """Return a finding that needs no action."""
    return Finding(check, Status.OK, result, of=of)


def warning(check: str, result: str, todo: str = "", of: str = "") -> Finding:
    """Return a finding that does not prevent Freshet from running."""
    return Finding(check, Status.WARNING, result, todo, of)


def failed(check: str, result: str, todo: str = "", of: str = "") -> Finding:
    """Return a finding that has to be fixed before Freshet works."""
    return Finding(check, Status.FAILED, result, todo, of)


def lines(findings: Sequence[Finding], characters: int) -> list[str]:
    """Format the findings in columns, one paragraph each, and a last line with the counts.

    characters: width to which paragraphs are wrapped at spaces
    """
    names = [" ".join(filter(None, (finding.check, finding.of))) for finding in findings]
    width = max(map(len, names), default=0)
    rows = [
        f"{finding.status:<{STATUS_CHARACTERS - 1}} {name:<{width}}  {finding.found}"
        + (f" -> {finding.todo}" if finding.todo else "")
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


def as_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the findings as the object that `--json` prints."""
    counts, rows = _counts(findings), []
    for finding in findings:
        row = asdict(finding)
        if not finding.broken:
            del row["broken"], row["examples"]
        rows.append(row)
    return {
        "ok": not counts[Status.FAILED],
        "failed": counts[Status.FAILED],
        "warnings": counts[Status.WARNING],
        "findings": rows,
    }


def _counts(findings: Iterable[Finding]) -> Counter[Status]:
    return Counter(finding.status for finding in findings)
