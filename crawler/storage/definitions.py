"""Site definitions that the web app edits: read with a digest, and replaced only if unchanged.

The digest of a definition covers its stored keys and its TOML file, so that an edit of either one
by somebody else is noticed. An edit keeps the comments of the file.
"""

from __future__ import annotations

import asyncio
import hashlib
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import tomlkit
from pymongo.errors import DuplicateKeyError
from tomlkit.items import Array

from crawler.errors import Busy, ConfigError, WrapperError
from crawler.extract.list_wrappers import any_wrapper
from crawler.extract.site_definition import Wrapper, read_toml
from crawler.extract.stored_definition import Definition
from crawler.storage import sites
from crawler.storage.client import Database, Document
from crawler.utils.files import atomic_replace

READER = "site"
DIGEST_BYTES = 12
MAX_NAMES = 1000
CHANGED = "{}: somebody else changed this site definition in the meantime"
_writing = asyncio.Lock()
Render = Callable[[str, dict[str, Any]], str]
MAX_INLINE_CHARACTERS = 80


@dataclass(frozen=True, slots=True)
class Editable:
    """A site definition with the digest that its replacement must name.

    values: keys and values as written
    path:   TOML file that takes precedence over the database; None without one on this machine
    text:   text of that file
    """

    name: str
    values: dict[str, Any]
    digest: str
    path: Path | None = None
    text: str = ""


async def find(db: Database, name: str) -> Editable | None:
    """Return a site definition; None if no definition with this name is stored.

    Raises ConfigError if it cannot be edited here: it is a list of feeds, or secrets are withheld.
    """
    definition = (await sites.definitions(db, [name])).get(name)
    if definition is None:
        return None
    if definition.reader != READER:
        raise ConfigError(f"{name}: this is not a site with pages, so it cannot be edited here")
    path = _file_of(definition)
    if path is None and definition.withheld:
        raise ConfigError(
            f"{name}: the stored definition lacks {definition.withheld[0]}, which may be secret. "
            f"Edit {definition.source}"
        )
    if path is None:
        return Editable(name, definition.values, _digest(definition, ""))
    text = path.read_text(encoding="utf-8-sig")
    return Editable(name, read_toml(path), _digest(definition, text), path, text)


async def create(
    db: Database, wrapper: Wrapper, values: dict[str, Any], now: datetime, reader: str = READER
) -> None:
    """Store the definition of a new site; raises Busy if a site with this name exists.

    reader: name of the spider class, `cells` for a list of cells
    """
    document = sites.settings_of(wrapper) | {
        "_id": wrapper.name,
        "at": now,
        "definition": _stored(Definition.of(wrapper.name, reader, values), now),
    }
    try:
        await db.sites.insert_one(document)
    except DuplicateKeyError:
        raise Busy(f"{wrapper.name}: a site with this name exists") from None


async def keys_by_name(db: Database) -> dict[str, str]:
    """Return the stored keys of all sites, as JSON; empty for sites of spider classes."""
    query: Document = {"definition.keys": 1}
    return {
        row["_id"]: row.get("definition", {}).get("keys", "")
        async for row in db.sites.find({}, query)
    }


async def replace(
    db: Database, before: Editable, values: dict[str, Any], render: Render, now: datetime
) -> None:
    """Replace a definition in its file and in the database; raises Busy if it was changed.

    before: the definition that was edited
    render: returns the new text of a file with these keys
    """
    wrapper = any_wrapper(values, before.name)
    async with _writing:
        current = await find(db, before.name)
        if current is None or current.digest != before.digest:
            raise Busy(CHANGED.format(before.name))
        stored = (await sites.definitions(db, [before.name]))[before.name]
        definition = Definition.of(before.name, READER, values, stored.file)
        unchanged: Document = {
            "_id": before.name,
            "definition.keys": stored.keys,
            "definition.stored": stored.stored,
        }
        update = {"$set": {"definition": _stored(definition, now), "timezone": wrapper.timezone}}
        if current.path is None:
            await _update(db, unchanged, update)
            return
        try:
            # The file takes precedence. Its new content only becomes visible with the update.
            with atomic_replace(current.path) as draft:
                draft.write_text(render(current.text, values), encoding="utf-8")
                draft.chmod(current.path.stat().st_mode & 0o777)
                await _update(db, unchanged, update)
        except OSError as error:
            reason = error.strerror or error
            raise ConfigError(f"{current.path}: cannot be written: {reason}") from None


async def _update(db: Database, unchanged: Document, update: Document) -> None:
    if (await db.sites.update_one(unchanged, update)).matched_count == 0:
        raise Busy(CHANGED.format(unchanged["_id"]))


def _stored(definition: Definition, now: datetime) -> Document:
    if definition.is_too_long:
        raise WrapperError(f"{definition.name}: the definition is too long")
    return {
        "reader": definition.reader,
        "keys": definition.keys,
        "file": definition.file,
        "withheld": list(definition.withheld),
        "stored": now,
    }


def _file_of(definition: Definition) -> Path | None:
    """Return the file of a definition if it is on this machine and still defines this site."""
    path = None if definition.file is None else Path(definition.file)
    if path is None or path.suffix != ".toml" or not path.is_file():
        return None
    return path if read_toml(path).get("name") == definition.name else None


def _digest(definition: Definition, text: str) -> str:
    parts = repr((definition.keys, definition.file, definition.withheld, text))
    return hashlib.blake2b(parts.encode(), digest_size=DIGEST_BYTES).hexdigest()


async def is_stored(db: Database, name: str) -> bool:
    """Return whether the definition of a site is stored."""
    query = {"_id": name, "definition.reader": READER}
    return await db.sites.find_one(query, {"_id": 1}) is not None


async def names(db: Database) -> list[str]:
    """Return the names of the sites whose definitions can be edited, in order."""
    query = {"definition.reader": READER}
    return [
        row["_id"] async for row in db.sites.find(query, {"_id": 1}).sort("_id").limit(MAX_NAMES)
    ]


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
