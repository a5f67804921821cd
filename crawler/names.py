"""Names: of spiders, and of fields as MongoDB takes them, whatever a page calls them.

A name that begins with `$` would read as an operator, one with `.` as a path, an empty one as
nothing. MongoDB's manual advises the full-width forms of both characters.
"""

from __future__ import annotations

import re
from typing import Any

# Without blanks: `_id` of a target is the name, a blank and the URL.
SPIDER_NAME = r"^[A-Za-z0-9][\w.-]{0,63}\Z"
DOLLAR, FULL_DOLLAR = "$", "\uff04"
DOT, FULL_DOT = ".", "\uff0e"
NAMELESS = "_"


def is_spider_name(name: str) -> bool:
    """Return whether a site or a spider may have this name in the database."""
    return re.match(SPIDER_NAME, name) is not None


def storable_name(name: str) -> str:
    """A name with full-width forms for each `.` and for a first `$`; `_` for an empty one."""
    if name.startswith(DOLLAR):
        name = FULL_DOLLAR + name.removeprefix(DOLLAR)
    return name.replace(DOT, FULL_DOT) or NAMELESS


def with_storable_names(value: Any) -> Any:
    """A value whose dicts have such names at any depth; of two that become one the last counts."""
    if isinstance(value, dict):
        return {storable_name(name): with_storable_names(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [with_storable_names(entry) for entry in value]
    return value
