"""What a check found, and how all of it is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from textwrap import TextWrapper
from typing import Any

from crawler.utils.text import count

# The longest status, and a space.
STATUS_CHARACTERS = 9


class Status(StrEnum):
    """OK: nothing to do. WARNING: Freshet works, but. FAILED: it does not until that is mended."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor.

    check: what was looked at, such as `mongodb write`
    found: in words
    todo:  what to do; empty where there is nothing to do, or where `found` says it
    of:    whose it is, where there are several: a spider
    broken, examples: of an invariant of `--deep`: how often it does not hold, and the first places
    """

    check: str
    status: Status
    found: str
    todo: str = ""
    of: str = ""
    broken: int = 0
    examples: tuple[str, ...] = ()


def ok(check: str, found: str, of: str = "") -> Finding:
    """All is well."""
    return Finding(check, Status.OK, found, of=of)


def warning(check: str, found: str, todo: str = "", of: str = "") -> Finding:
    """Freshet works, but somebody should know."""
    return Finding(check, Status.WARNING, found, todo, of)


def failed(check: str, found: str, todo: str = "", of: str = "") -> Finding:
    """Freshet does not work until this is mended."""
    return Finding(check, Status.FAILED, found, todo, of)


def lines(findings: Sequence[Finding], characters: int) -> list[str]:
    """Return one paragraph for each finding, in columns, and one line for all of them.

    characters: width that the paragraphs are wrapped to, by words
    """
    names = [" ".join(filter(None, (one.check, one.of))) for one in findings]
    width = max(map(len, names), default=0)
    rows = [
        f"{one.status:<{STATUS_CHARACTERS - 1}} {name:<{width}}  {one.found}"
        + (f" -> {one.todo}" if one.todo else "")
        for name, one in zip(names, findings, strict=True)
    ]
    indent = " " * (STATUS_CHARACTERS + width + 2)
    paragraph = TextWrapper(
        characters, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return [*map(paragraph.fill, rows), in_short(findings)]


def in_short(findings: Iterable[Finding]) -> str:
    """How many there are of each kind."""
    n = _counts(findings)
    return (
        f"{count(n.total(), 'check')}: {n[Status.OK]} ok, "
        f"{count(n[Status.WARNING], 'warning')}, {n[Status.FAILED]} failed"
    )


def as_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """The same for machines."""
    n = _counts(findings)
    return {
        "ok": not n[Status.FAILED],
        "failed": n[Status.FAILED],
        "warnings": n[Status.WARNING],
        "findings": [_as_dict(one) for one in findings],
    }


def _as_dict(one: Finding) -> dict[str, Any]:
    told = asdict(one)
    if not one.broken:
        del told["broken"], told["examples"]
    return told


def _counts(findings: Iterable[Finding]) -> Counter[Status]:
    return Counter(one.status for one in findings)
