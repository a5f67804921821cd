"""`sites`: what a replan has to know of each site, as it was at the last run, and its definition.

A definition may be a TOML file that was named on the command line, and a replan cannot find it.
So each run leaves a note here. Of a site without a spider class the note holds the
whole definition, so that the next run needs the name only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pymongo import ReturnDocument

from crawler.errors import ConfigError
from crawler.extract.definition import MAX_CHARACTERS, Definition
from crawler.extract.wrapper import Wrapper
from crawler.storage.client import Database, Document
from schedules.windows import Week, open_hours

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Site:
    """A spider's site. Names and meanings are the wrapper's.

    weights: pairs of a pattern (or `category:` and a category) and its weight
    at:      when the note was written; None: never, and all here is the default
    """

    name: str
    timezone: str = "UTC"
    windows: tuple[str, ...] = ()
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
        """The site that a document describes."""
        values = {name: document[name] for name in _FIELDS if name in document}
        for name in ("windows", "blackout"):
            values[name] = tuple(values.get(name, ()))
        weights = values.get("weights", ())
        values["weights"] = tuple((entry["of"], float(entry["weight"])) for entry in weights)
        return cls(name=document["_id"], **values)

    @property
    def zone(self) -> ZoneInfo:
        """Its time zone; ConfigError where this machine knows none of that name."""
        try:
            return ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ConfigError(
                f"{self.name}: no time zone {self.timezone!r} is known here"
            ) from None

    @property
    def open_hours(self) -> Week:
        """(168,) hours of the local week in which it may be visited; ConfigError where none."""
        try:
            return open_hours(self.windows, self.blackout)
        except ValueError as error:
            raise ConfigError(f"{self.name}: {error}") from None


_FIELDS = tuple(field.name for field in fields(Site) if field.name != "name")


async def is_edited(db: Database, wrapper: Wrapper) -> bool:
    """Whether a wrapper is another than at the last run, or was never noted."""
    site = await db.sites.find_one({"_id": wrapper.name}, {"digest": 1}) or {}
    return site.get("digest") != wrapper.digest


async def note(db: Database, wrapper: Wrapper, now: datetime) -> None:
    """Write down what is to be known of a wrapper, and the definition of a site without a class.

    A definition that was stored before stays: it may have been replaced since it was read.
    """
    document: Document = {name: getattr(wrapper, name) for name in _FIELDS if name != "at"}
    for name in ("windows", "blackout"):
        document[name] = list(document[name])
    # A pattern may hold dots and dollars, which do not go well with names of fields.
    document["weights"] = [{"of": key, "weight": w} for key, w in wrapper.weights.items()]
    definition = wrapper.definition
    update: Document = {"$set": document | {"digest": wrapper.digest, "at": now}}
    if definition is None or definition.is_too_long:
        update["$unset"] = {"definition": ""}
    elif definition.stored is None:
        update["$set"]["definition"] = {
            "reader": definition.reader,
            "keys": definition.keys,
            "file": definition.file,
            "withheld": list(definition.withheld),
            "stored": now,
        }
    before = await db.sites.find_one_and_update(
        {"_id": wrapper.name}, update, {"definition.file": 1},
        upsert=True, return_document=ReturnDocument.BEFORE,
    )  # fmt: skip
    if definition is None and before and "definition" in before:
        source = before["definition"]["file"] or "arguments (-a)"
        message = "%s: its spider class defines it now; the definition from %s is no longer stored"
        logger.warning(message, wrapper.name, source)
    elif definition is not None and definition.is_too_long:
        logger.warning(
            "%s: the site definition has more than %d characters and is not stored: cron needs %s",
            wrapper.name, MAX_CHARACTERS, definition.source,
        )  # fmt: skip


async def definitions(db: Database, names: Iterable[str] | None = None) -> dict[str, Definition]:
    """The stored definitions by name, of all sites if `names` is None."""
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
    """The sites of these spiders, in this order; defaults where there is no note."""
    cursor = db.sites.find({"_id": {"$in": list(spiders)}})
    sites = {document["_id"]: Site.of(document) async for document in cursor}
    return tuple(sites.get(name) or Site(name) for name in spiders)


async def keys_in_category(db: Database, spider: str, category: str) -> list[str]:
    """`_id` of all targets of a spider that are in a category, whatever others they are in."""
    cursor = db.targets.find({"spider": spider, "categories": category}, {"_id": 1})
    return [row["_id"] async for row in cursor]


async def kept_bytes(db: Database, spider: str) -> int:
    """Bytes of the versions that a site keeps, as of its last run; before compression."""
    site = await db.sites.find_one({"_id": spider}, {"kept_bytes": 1}) or {}
    return int(site.get("kept_bytes", 0))
