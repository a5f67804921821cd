"""Fill reports from documents and objects whose fields have the same names."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import NoneType
from typing import Any, NotRequired, TypeVar, get_args, get_origin

from typing_extensions import get_type_hints

Report = TypeVar("Report", bound=Mapping[str, object])
# Types of fields that have an empty value.
EMPTY = (NoneType, bool, int, float, list, dict)


def copied(report: type[Report], source: Mapping[str, Any] | object) -> Report:
    """Return a report with the values of a document, or of an object's attributes.

    A value that is not stored is null if the field may be null, else False, 0, [] or {}. Fields of
    other types are left out then. Add them, and what differs: `{**copied(VisitRow, row), "id":
    str(row["_id"])}`. mypy checks the types of what is added, and the tests of JSON output check
    the whole.
    """
    values: dict[str, Any] = {}
    for name, empty in _fields(report).items():
        value = source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)
        if value is None and empty is not None:
            value = empty()
        if value is not None or empty is NoneType:
            # Flags may be stored as 0 and 1.
            values[name] = bool(value) if empty is bool else value
    return values  # type: ignore[return-value]


@cache
def _fields(report: type) -> dict[str, type | None]:
    """Return the type of the empty value of each required field; None without one."""
    fields: dict[str, type | None] = {}
    for name, hint in get_type_hints(report, include_extras=True).items():
        origin: Any = get_origin(hint)
        if origin is not NotRequired:
            kind = NoneType if NoneType in get_args(hint) else hint if origin is None else origin
            fields[name] = kind if kind in EMPTY else None
    return fields
