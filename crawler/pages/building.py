"""A build: decide what is to be done, do it, keep a record."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC
from pathlib import Path
from typing import Any

from crawler.errors import ConfigError
from crawler.pages.cells import Cells
from crawler.pages.planning import Plan, planned
from crawler.pages.record import Built, Record
from crawler.pages.rendering import render
from crawler.pages.sources import STATES, Sources
from crawler.pages.writing import is_there, remove, write
from crawler.utils.text import count

WRITTEN, UNCHANGED, FAILED, REMOVED = "written", "unchanged", "failed", "removed"


@dataclass
class Done:
    """What became of each page, and a line for each that failed."""

    pages: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        counts = Counter(self.pages.values())
        states = [f"{counts[s]} {s}" for s in (WRITTEN, UNCHANGED, FAILED, REMOVED) if counts[s]]
        return f"{count(len(self.pages), 'page')}: {', '.join(states)}"


def decide(cells: Cells, sources: Sources, record: Record, out: Path, *, retry: bool) -> Plan:
    """What a build would do now; reads the names in the output folder."""
    present = {path for path in (*sources.pages, *sources.files) if is_there(out / path)}
    return planned(record, sources, cells.facts, present, retry=retry)


def build(cells: Cells, sources: Sources, out: Path, *, retry: bool = True) -> Done:
    """Bring the output folder up to date.

    A page that fails is told in what is returned and its file left as it is; where the folder
    itself cannot be used, raises ConfigError.
    """
    record = Record.read(out)
    plan = decide(cells, sources, record, out, retry=retry)
    done = Done(dict.fromkeys(sources.pages, UNCHANGED))
    try:
        _remove(plan, record, out, done)
        _copy(plan, record, sources, out)
        for path in plan.render:
            _make(path, cells, sources, record, out, done)
        record.templates = sources.digest
        record.keep(out)
        # The last: a page that reads in here of a change finds itself changed.
        write(out / STATES, states(cells))
    except OSError as error:
        raise _unusable(out, error) from None
    return done


def write_states(out: Path, content: bytes) -> None:
    """Put what `states` gave beside the pages; raises ConfigError."""
    try:
        write(out / STATES, content)
    except OSError as error:
        raise _unusable(out, error) from None


def _unusable(out: Path, error: OSError) -> ConfigError:
    return ConfigError(f"{error.filename or out}: {error.strerror or error}")


def states(cells: Cells) -> bytes:
    """How all cells are, as JSON for the pages."""
    found: Mapping[str, Any] = {
        cell.key: {
            "refreshed_at": cell.refreshed_at and cell.refreshed_at.astimezone(UTC).isoformat(),
            "hash": cell.hash,
            "stale": cell.stale,
        }
        for cell in cells.all
    }
    return json.dumps(found, ensure_ascii=False, indent=0).encode()


def _remove(plan: Plan, record: Record, out: Path, done: Done) -> None:
    for path in plan.removed:
        if record.pages.pop(path).written:
            remove(out, path)
            done.pages[path] = REMOVED
    _drop(plan.dropped, record, out)


def _drop(paths: Iterable[str], record: Record, out: Path) -> None:
    for path in paths:
        del record.files[path]
        remove(out, path)


def _copy(plan: Plan, record: Record, sources: Sources, out: Path) -> None:
    for path in plan.copy:
        file = sources.files[path]
        write(out / path, file.source.read_bytes())
        record.files[path] = file.digest


def _make(path: str, cells: Cells, sources: Sources, record: Record, out: Path, done: Done) -> None:
    """Render a page and write it; what goes wrong is its own."""
    rendered = render(path, sources.pages[path], sources.folder, cells)
    problem, before = rendered.problem, record.pages.get(path)
    if problem is None:
        try:
            write(out / path, rendered.text.encode())
        except (OSError, UnicodeError) as error:
            problem = f"{out / path}: {getattr(error, 'strerror', None) or error}"
    if problem is not None:
        done.problems[path] = problem
    done.pages[path] = FAILED if problem else WRITTEN
    written = problem is None or (before is not None and before.written)
    record.pages[path] = Built(cells=rendered.asked, written=written, failed=bool(problem))
