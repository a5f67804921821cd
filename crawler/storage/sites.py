"""`sites`: the settings of each site as of the last run, and its site definition.

A site definition may be a TOML file that was named on the command line, which a replan cannot find,
so each run stores the settings here. For a site without a spider class the document has the whole
definition, so that the next run needs only the name.

The web app edits these definitions: they are read with a digest, and replaced only if unchanged.
The digest covers the stored keys and the TOML file, so that an edit of either one by somebody else
is noticed.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pymongo import ReturnDocument
from pymongo.errors import DuplicateKeyError

from crawler.errors import Busy, ConfigError, WrapperError
from crawler.extract.list_wrappers import any_wrapper
from crawler.extract.notification_rules import Rules, rules_in
from crawler.extract.site_definition import Wrapper
from crawler.extract.stored_definition import MAX_CHARACTERS, Definition, read_toml
from crawler.items import Wanted
from crawler.storage.client import Database, Document
from crawler.storage.notification_rules import (
    ALL_KEPT,
    ALL_WANTED,
    of_all_sites,
    wanted_in,
)
from crawler.utils.files import atomic_replace
from crawler.utils.urls import host_of
from schedules.calendar import Week, open_hours

logger = logging.getLogger(__name__)
READER = "site"
DIGEST_BYTES = 12
MAX_NAMES = 1000
CHANGED = "{}: somebody else changed this site definition in the meantime"
_writing = asyncio.Lock()
Render = Callable[[str, dict[str, Any]], str]


@dataclass(frozen=True, slots=True)
class Site:
    """The settings of a spider's site, with the names and meanings of the site definition.

    weights: pairs of a pattern (or `category:` and a category) and its weight
    at:      time of the last run; None: no run yet, and all values are defaults
    """

    name: str
    timezone: str = "UTC"
    visiting_hours: tuple[str, ...] = ()
    blackout: tuple[str, ...] = ()
    weight: float = 1.0
    weights: tuple[tuple[str, float], ...] = ()
    cost: float = 1.0
    list_interval_hours: float | None = None
    item_interval_hours: float | None = None
    min_interval_hours: float | None = None
    max_interval_hours: float | None = None
    requests_per_day: int | None = None
    requests_per_hour: int | None = None
    at: datetime | None = None

    @classmethod
    def of(cls, document: Document) -> Self:
        """Return the site that a document describes."""
        values = {name: document[name] for name in _FIELDS if name in document}
        for name in ("visiting_hours", "blackout"):
            values[name] = tuple(values.get(name, ()))
        weights = values.get("weights", ())
        values["weights"] = tuple((entry["of"], float(entry["weight"])) for entry in weights)
        return cls(name=document["_id"], **values)

    @property
    def zone(self) -> ZoneInfo:
        """Return the time zone; raise ConfigError if this machine does not have it."""
        try:
            return ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ConfigError(f"{self.name}: time zone not found: {self.timezone!r}") from None

    @property
    def open_hours(self) -> Week:
        """Return (168,) visiting hours of the local week; raise ConfigError if there are none."""
        try:
            return open_hours(self.visiting_hours, self.blackout)
        except ValueError as error:
            raise ConfigError(f"{self.name}: {error}") from None


_FIELDS = tuple(field.name for field in fields(Site) if field.name != "name")


async def is_edited(db: Database, wrapper: Wrapper) -> bool:
    """Return whether a site definition changed since the last run, or is new."""
    site = await db.sites.find_one({"_id": wrapper.name}, {"digest": 1}) or {}
    return site.get("digest") != wrapper.digest


async def note(db: Database, wrapper: Wrapper, now: datetime) -> None:
    """Store the settings of a site, and the definition of a site without a spider class.

    A definition that was read from here is not stored: it may have been replaced meanwhile.
    """
    document = settings_of(wrapper)
    definition = wrapper.definition
    update: Document = {"$set": document | {"digest": wrapper.digest, "at": now}}
    if definition is None or definition.is_too_long:
        update["$unset"] = {"definition": ""}
    elif definition.stored is None:
        update["$set"]["definition"] = _stored(definition, now)
    before = await db.sites.find_one_and_update(
        {"_id": wrapper.name}, update, {"definition.file": 1},
        upsert=True, return_document=ReturnDocument.BEFORE,
    )  # fmt: skip
    if definition is None and before and "definition" in before:
        source = before["definition"]["file"] or "arguments (-a)"
        message = "%s: a spider class defines this site now; deleted the stored definition from %s"
        logger.warning(message, wrapper.name, source)
    elif definition is not None and definition.is_too_long:
        logger.warning(
            "%s: site definition not stored, it has more than %d characters: cron needs %s",
            wrapper.name, MAX_CHARACTERS, definition.source,
        )  # fmt: skip


def settings_of(wrapper: Wrapper) -> Document:
    """Return the settings of a site as they are stored, without the time."""
    document: Document = {name: getattr(wrapper, name) for name in _FIELDS if name != "at"}
    for name in ("visiting_hours", "blackout"):
        document[name] = list(document[name])
    # Patterns may have dots and dollars, which are not safe in field names.
    document["weights"] = [{"of": key, "weight": w} for key, w in wrapper.weights.items()]
    document["notify"] = [rule.model_dump(mode="json") for rule in wrapper.notify]
    return document


async def notification_rules(db: Database) -> dict[str, Rules]:
    """Return the rules of notifications in the definitions of sites, as of their last runs."""
    rows = db.sites.find({"notify.0": {"$exists": True}}, {"notify": 1}).sort("_id")
    return {row["_id"]: rules_in(row["notify"], f"site {row['_id']}") async for row in rows}


async def wanted_events(
    db: Database, notify_file: Path, names: Iterable[str]
) -> dict[str, Wanted | None]:
    """Return the events of sites that rules of notifications select, by site, as `WantedEvents`."""
    if not (names := set(names)):
        return {}
    of_sites = await notification_rules(db)
    try:
        rules = await of_all_sites(db, notify_file)
    except ConfigError as error:
        logger.warning(ALL_KEPT, error)
        return dict.fromkeys(names, ALL_WANTED)
    return {name: wanted_in(rules, of_sites.get(name, ()), name) for name in names}


async def definitions(db: Database, names: Iterable[str] | None = None) -> dict[str, Definition]:
    """Return the stored site definitions by name, of all sites if `names` is None."""
    query: Document = {"definition": {"$exists": True}}
    if names is not None:
        query["_id"] = {"$in": list(names)}
    definitions = {}
    async for row in db.sites.find(query, {"definition": 1}).sort("_id"):
        name, of = row["_id"], row["definition"]
        definitions[name] = Definition(
            name, of["reader"], of["keys"], of["file"], tuple(of["withheld"]), of["stored"]
        )
    return definitions


async def of_spiders(db: Database, spiders: Sequence[str]) -> tuple[Site, ...]:
    """Return the sites of these spiders, in order; defaults for sites that are not stored."""
    cursor = db.sites.find({"_id": {"$in": list(spiders)}})
    sites = {document["_id"]: Site.of(document) async for document in cursor}
    return tuple(sites.get(name) or Site(name) for name in spiders)


@dataclass(frozen=True, slots=True)
class Marks:
    """The settings of a site that users change in the web app.

    paused_at: time since which the service starts no runs of the site; None: not paused
    title:     name that people see in place of the name of the site; empty: that name
    """

    paused_at: datetime | None = None
    tags: tuple[str, ...] = ()
    title: str = ""


async def marks(db: Database) -> dict[str, Marks]:
    """Return the users' settings for each site that had a run, by name."""
    cursor = db.sites.find({}, {"paused_at": 1, "tags": 1, "title": 1})
    return {
        row["_id"]: Marks(row.get("paused_at"), tuple(row.get("tags", ())), row.get("title", ""))
        async for row in cursor
    }


async def paused(db: Database) -> set[str]:
    """Return the names of the sites for which the service starts no runs."""
    cursor = db.sites.find({"paused_at": {"$exists": True}}, {"_id": 1})
    return {row["_id"] async for row in cursor}


async def pause(db: Database, name: str, now: datetime) -> None:
    """Keep the service from starting runs of a site; raises ConfigError before its first run."""
    # The time of an earlier pause is kept.
    stages: list[Document] = [{"$set": {"paused_at": {"$ifNull": ["$paused_at", now]}}}]
    await _mark(db, name, stages)


async def resume(db: Database, name: str) -> None:
    """Let the service start runs of a site again; raises ConfigError before its first run."""
    await _mark(db, name, {"$unset": {"paused_at": ""}})


async def set_tags(db: Database, name: str, tags: Sequence[str]) -> None:
    """Replace the tags of a site; raises ConfigError before its first run."""
    await _mark(db, name, {"$set": {"tags": list(tags)}})


async def set_title(db: Database, name: str, title: str) -> None:
    """Replace the name that people see; empty: the name of the site. Raises ConfigError."""
    await _mark(db, name, {"$set": {"title": title}} if title else {"$unset": {"title": ""}})


async def titles(db: Database, names: Collection[str]) -> dict[str, str]:
    """Return the names that people see of the sites that have one, by name."""
    query: Document = {"_id": {"$in": list(names)}, "title": {"$exists": True}}
    return {row["_id"]: row["title"] async for row in db.sites.find(query, {"title": 1})}


async def _mark(db: Database, name: str, update: Document | list[Document]) -> None:
    if not (await db.sites.update_one({"_id": name}, update)).matched_count:
        raise ConfigError(f"{name}: the site has had no run yet. Run it once first")


async def keys_in_category(db: Database, spider: str, category: str) -> list[str]:
    """Return the `_id`s of a spider's targets in a category."""
    cursor = db.targets.find({"spider": spider, "categories": category}, {"_id": 1})
    return [row["_id"] async for row in cursor]


async def kept_bytes(db: Database, spider: str) -> int:
    """Return the uncompressed bytes of a site's versions, as of its last run."""
    site = await db.sites.find_one({"_id": spider}, {"kept_bytes": 1}) or {}
    return int(site.get("kept_bytes", 0))


@dataclass(frozen=True, slots=True)
class Editable:
    """A site definition with the digest by which its replacement detects other edits.

    values: keys and values as written
    path:   TOML file that takes precedence over the database; None without one on this machine
    text:   text of that file
    """

    name: str
    values: dict[str, Any]
    digest: str
    path: Path | None = None
    text: str = ""


async def find_editable(db: Database, name: str) -> Editable | None:
    """Return a site definition; None if no definition with this name is stored.

    Raises ConfigError if it cannot be edited here: it is a list of feeds, or secrets are withheld.
    """
    definition = (await definitions(db, [name])).get(name)
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
    document = settings_of(wrapper) | {
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
        current = await find_editable(db, before.name)
        if current is None or current.digest != before.digest:
            raise Busy(CHANGED.format(before.name))
        stored = (await definitions(db, [before.name]))[before.name]
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


def _hosts(definition: Definition) -> set[str]:
    """Return the hosts of the start URLs; an empty one if there are none, as for cells."""
    urls = definition.values.get("start_urls") or ""
    return {host_of(url) for url in ([urls] if isinstance(urls, str) else urls)}


async def refuse_second_file(db: Database, definition: Definition) -> None:
    """Raise ConfigError if another file defines a site with this name, on other hosts.

    A run would replace the definition, and continue the targets of one site as those of the other.
    An edited copy of a file, which starts at the same hosts, replaces it.
    """
    stored = (await definitions(db, [definition.name])).get(definition.name)
    if stored is None or definition.file is None or _hosts(stored) & _hosts(definition):
        return
    try:
        path = _file_of(stored)
    except WrapperError:
        # The other file may be broken while somebody edits it.
        return
    if path is not None and not path.samefile(definition.file):
        raise ConfigError(
            f"{definition.file}: {path} defines another site with this name, "
            f"{definition.name!r}. Give one of them another name, or delete the file that you no "
            "longer use"
        )


def _digest(definition: Definition, text: str) -> str:
    parts = repr((definition.keys, definition.file, definition.withheld, text))
    return hashlib.blake2b(parts.encode(), digest_size=DIGEST_BYTES).hexdigest()


async def is_stored(db: Database, name: str) -> bool:
    """Return whether the definition of a site is stored."""
    query = {"_id": name, "definition.reader": READER}
    return await db.sites.find_one(query, {"_id": 1}) is not None


async def editable_names(db: Database) -> list[str]:
    """Return the names of the sites whose definitions can be edited, in order."""
    query = {"definition.reader": READER}
    return [
        row["_id"] async for row in db.sites.find(query, {"_id": 1}).sort("_id").limit(MAX_NAMES)
    ]
