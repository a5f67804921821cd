"""Kinds of targets, and outcomes of visits."""

from __future__ import annotations

from enum import StrEnum

# Prefix of a cell's name, which takes the place of the URL of other targets.
CELL = "cell:"


class Kind(StrEnum):
    """Kind of a target."""

    LIST = "list"
    ITEM = "item"
    FEED = "feed"
    CELL = "cell"


class Outcome(StrEnum):
    """Outcome of a visit. SHELL: only a browser would show the content of the page."""

    NEW = "new"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    NOT_MODIFIED = "not_modified"
    GONE = "gone"
    ERROR = "error"
    BLOCKED = "blocked"
    SHELL = "shell"


# Outcomes of visits that could not read their page.
FAILED = (Outcome.ERROR, Outcome.BLOCKED, Outcome.SHELL)
SEEN = frozenset({Outcome.NEW, Outcome.CHANGED, Outcome.UNCHANGED, Outcome.NOT_MODIFIED})
