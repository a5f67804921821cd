"""Site definitions as plain data: keys as the database stores them, and as the text of TOML files.

A site that is defined by a TOML file or by `-a` arguments has no spider class that `scrapy crawl
NAME`, cron or the service could load. Each run therefore stores the keys of the definition as
written, so that later runs need only the site's name.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from crawler.config import VARIABLE
from crawler.errors import WrapperError

# MongoDB limits documents to 16 MB. Only a mistake or a long list of cells reaches this length.
MAX_CHARACTERS = 1_000_000
# Longer arrays of a TOML file have a line for each value.
MAX_INLINE_CHARACTERS = 80
# Headers that never carry credentials. Values of all other headers are treated as secrets.
PLAIN_HEADERS = frozenset(
    {
        "accept", "accept-language", "accept-encoding", "cache-control", "dnt", "from", "origin",
        "pragma", "referer", "upgrade-insecure-requests", "user-agent", "x-requested-with",
    }
)  # fmt: skip

# Stands for a secret where a definition is shown.
HIDDEN = "***"
# What to do about the usual mistakes in TOML, by what the parser reports.
TOML_HINTS = {
    "in a string": r". Write patterns in single quotes: '/item/\d+'",
    "Invalid value": '. Write text in straight quotes: "text"',
    "Cannot overwrite a value": ". The key or the table is there twice",
    "Cannot declare": ". The key or the table is there twice",
}


@dataclass(frozen=True, slots=True)
class Definition:
    """The definition of one site.

    name:     name of the site in the database
    reader:   name of the spider class for the site: `site`, `feeds` or `cells`
    keys:     keys and values as JSON text, with references such as `${VARIABLE}` unexpanded
    file:     absolute path of the TOML file; None: defined by `-a` arguments
    withheld: keys whose values are not stored because they may be secrets, such as `cookies.sid`
    stored:   time at which the definition was stored; None: not stored yet
    """

    name: str
    reader: str
    keys: str
    file: str | None = None
    withheld: tuple[str, ...] = ()
    stored: datetime | None = None

    @classmethod
    def of(
        cls, name: str, reader: str, values: Mapping[str, Any], file: str | None = None
    ) -> Definition:
        """Return the definition with these keys, without possible secrets.

        Values of cookies and of unusual headers are withheld unless they refer to a `${VARIABLE}`.
        The checks of a site definition only recognize secrets by names such as `token`, but a
        session cookie may have any name.
        """
        kept, withheld = dict(values), []
        for key, entry in _literal_secrets(values):
            kept[key] = {each: kept[key][each] for each in kept[key] if each != entry}
            withheld.append(f"{key}.{entry}")
        keys = json.dumps(kept, ensure_ascii=False, default=str)
        return cls(name, reader, keys, file, tuple(withheld))

    @property
    def values(self) -> dict[str, Any]:
        """Return the keys and values, ready to build a `Wrapper` from."""
        values: dict[str, Any] = json.loads(self.keys)
        return values

    @property
    def is_too_long(self) -> bool:
        """Return True if the definition is too long to be stored."""
        return len(self.keys) > MAX_CHARACTERS

    @property
    def source(self) -> str:
        """Return the place where the definition is written, for messages."""
        return self.file or "arguments (-a)"

    def has_same_keys_as(self, other: Definition) -> bool:
        """Return True if both definitions store the same keys and withhold the same values."""
        return (self.keys, self.withheld) == (other.keys, other.withheld)


def secrets_of(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return key and name of each header and cookie of a definition that may be a secret."""
    return [
        (key, name)
        for key, plain in (("headers", PLAIN_HEADERS), ("cookies", frozenset[str]()))
        for name, value in (values[key] if isinstance(values.get(key), Mapping) else {}).items()
        if name.lower() not in plain or VARIABLE.search(str(value))
    ]


def without_secrets(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a definition to show, with `***` for each value that may be a secret.

    Variables stay, because they show only their names.
    """
    shown = dict(values)
    for key, entry in _literal_secrets(values):
        shown[key] = {**shown[key], entry: HIDDEN}
    return shown


def _literal_secrets(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the headers and cookies that may be secrets and are not in a variable."""
    return [
        (key, entry)
        for key, entry in secrets_of(values)
        if not VARIABLE.search(str(values[key][entry]))
    ]


def as_list(value: Any) -> list[str]:
    """Return the texts of a key that may have one text or a list."""
    if value is None:
        return []
    return [value] if isinstance(value, str) else [str(each) for each in value]


def read_toml(path: Path) -> dict[str, Any]:
    """Return the keys of a TOML file. Raises WrapperError if the file cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise WrapperError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise WrapperError(f"{path}: not valid TOML: not UTF-8. Save the file as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        hint = next((hint for cause, hint in TOML_HINTS.items() if cause in str(error)), "")
        raise WrapperError(f"{path}: not valid TOML: {error}{hint}") from None


def toml_of(values: Mapping[str, Any]) -> str:
    """Return the TOML text of a new site definition."""
    import tomlkit  # slow, and only edits need it

    document = tomlkit.document()
    # Tables come last: keys after a table would belong to it.
    for key, value in sorted(values.items(), key=lambda pair: isinstance(pair[1], Mapping)):
        document[key] = _item(value)
    return tomlkit.dumps(document)


def edited_toml(text: str, values: Mapping[str, Any]) -> str:
    """Return the text of a TOML file with new values; keep the comments of unchanged keys."""
    import tomlkit

    document = tomlkit.parse(text)
    _merge(document, values)
    edited = tomlkit.dumps(document)
    # Unusual layouts, such as a dotted key of a table, may not survive the merge.
    return edited if tomllib.loads(edited) == values else toml_of(values)


def _merge(table: Any, values: Mapping[str, Any]) -> None:
    import tomlkit

    for key in [key for key in table if key not in values]:
        del table[key]
    for key, value in values.items():
        old = table.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            _merge(old, value)
        elif key not in table or tomlkit.item(old).unwrap() != value:
            table[key] = _item(value, is_inline=hasattr(table, "is_inline_table"))


def _item(value: Any, *, is_inline: bool = False) -> Any:
    import tomlkit

    if isinstance(value, str):
        # Backslashes of patterns are easier to read without escapes.
        is_literal = "\\" in value and "'" not in value and value.isprintable()
        return tomlkit.string(value, literal=is_literal)
    if isinstance(value, list | tuple):
        array = tomlkit.array()
        array.extend([_item(each, is_inline=True) for each in value])
        long = sum(len(str(each)) for each in value) > MAX_INLINE_CHARACTERS
        return array.multiline(long and not is_inline)
    if isinstance(value, Mapping):
        new_table: Any = tomlkit.inline_table() if is_inline else tomlkit.table()
        for key, each in value.items():
            new_table[key] = _item(each, is_inline=True)
        return new_table
    return value
