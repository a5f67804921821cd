"""Write site definitions as TOML: new ones, and edits that keep the comments of a file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

import tomlkit
from tomlkit.items import Array

MAX_INLINE_CHARACTERS = 80


def toml_of(values: Mapping[str, Any]) -> str:
    """Return the TOML text of a new site definition."""
    document = tomlkit.document()
    # Tables come last: keys after a table would belong to it.
    for key, value in sorted(values.items(), key=lambda pair: isinstance(pair[1], Mapping)):
        document[key] = _item(value)
    return tomlkit.dumps(document)


def edited_toml(text: str, values: Mapping[str, Any]) -> str:
    """Return a TOML file with other values, and the comments of unchanged keys."""
    document = tomlkit.parse(text)
    _merge(document, values)
    edited = tomlkit.dumps(document)
    # Unusual layouts, such as a dotted key of a table, may not survive the merge.
    return edited if tomllib.loads(edited) == values else toml_of(values)


def _merge(table: Any, values: Mapping[str, Any]) -> None:
    for key in [key for key in table if key not in values]:
        del table[key]
    for key, value in values.items():
        old = table.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            _merge(old, value)
        elif key not in table or tomlkit.item(old).unwrap() != value:
            table[key] = _item(value, is_inline=hasattr(table, "is_inline_table"))


def _item(value: Any, *, is_inline: bool = False) -> Any:
    if isinstance(value, str):
        # Backslashes of patterns are easier to read without escapes.
        is_literal = "\\" in value and "'" not in value and value.isprintable()
        return tomlkit.string(value, literal=is_literal)
    if isinstance(value, list | tuple):
        array: Array = tomlkit.array()
        array.extend([_item(each, is_inline=True) for each in value])
        long = sum(len(str(each)) for each in value) > MAX_INLINE_CHARACTERS
        return array.multiline(long and not is_inline)
    if isinstance(value, Mapping):
        is_nested = any(isinstance(each, Mapping) for each in value.values())
        made: Any = tomlkit.inline_table() if is_inline or not is_nested else tomlkit.table()
        if not is_inline:
            made = tomlkit.table()
        for key, each in value.items():
            made[key] = _item(each, is_inline=True)
        return made
    return value
