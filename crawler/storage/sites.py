"""`sites`: what a replan has to know of each spider's wrapper, as it was at the last pass.

A wrapper may be a TOML file that was named on the command line: when a replan runs, nobody knows
where it is. So each pass leaves a note here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from crawler.errors import ConfigError
from crawler.storage.client import Database, Document
from crawler.wrapper import Wrapper
from schedules.windows import Week, open_hours


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
    def of(cls, found: Document) -> Self:
        """The site that a document describes."""
        known = {name: found[name] for name in _FIELDS if name in found}
        for name in ("windows", "blackout"):
            known[name] = tuple(known.get(name, ()))
        weights = known.get("weights", ())
        known["weights"] = tuple((entry["of"], float(entry["weight"])) for entry in weights)
        return cls(name=found["_id"], **known)

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
    found = await db.sites.find_one({"_id": wrapper.name}, {"digest": 1})
    return (found or {}).get("digest") != wrapper.digest


async def note(db: Database, wrapper: Wrapper, now: datetime) -> None:
    """Write down what is to be known of a wrapper."""
    document = {name: getattr(wrapper, name) for name in _FIELDS if name != "at"}
    for name in ("windows", "blackout"):
        document[name] = list(document[name])
    # A pattern may hold dots and dollars, which do not go well with names of fields.
    document["weights"] = [{"of": key, "weight": w} for key, w in wrapper.weights.items()]
    update = {"$set": document | {"digest": wrapper.digest, "at": now}}
    await db.sites.update_one({"_id": wrapper.name}, update, upsert=True)


async def of_spiders(db: Database, spiders: Sequence[str]) -> tuple[Site, ...]:
    """The sites of these spiders, in this order; defaults where there is no note."""
    cursor = db.sites.find({"_id": {"$in": list(spiders)}})
    found = {document["_id"]: Site.of(document) async for document in cursor}
    return tuple(found.get(name) or Site(name) for name in spiders)


async def keys_in_category(db: Database, spider: str, category: str) -> list[str]:
    """`_id` of all targets of a spider that stand in a category, whatever others they stand in."""
    cursor = db.targets.find({"spider": spider, "categories": category}, {"_id": 1})
    return [found["_id"] async for found in cursor]
