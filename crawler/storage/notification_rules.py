"""`notification_rules`: rules of notifications that users write in the web app.

Rules of `notify.toml` and of site definitions are in files. All three kinds have the same keys.
`notify.toml` and the web app share one namespace for the names of rules.
"""

from __future__ import annotations

import logging
import math
import time
from datetime import datetime
from pathlib import Path

from pymongo.errors import DuplicateKeyError

from crawler.errors import ConfigError
from crawler.extract.notification_rules import (
    DEFAULT_FAILURES,
    MAX_RULES,
    Rule,
    Rules,
    read_keys,
    rules_in,
    wanted_by,
)
from crawler.items import Event, Wanted
from crawler.storage.client import Database, Document

logger = logging.getLogger(__name__)
SOURCE = "web app"
# A run reads the rules of notifications again after this time.
WANTED_SECONDS = 60.0
# While rules cannot be read, no event may be lost.
ALL_WANTED = Wanted(frozenset(Event), frozenset({DEFAULT_FAILURES}))
ALL_KEPT = "Rules of notifications are invalid, all events are kept: %s"


async def read(db: Database) -> Rules:
    """Return all rules by name; raises ConfigError for a rule that this version cannot read."""
    rows = db.notification_rules.find({}, {"keys": 1}).sort("_id").limit(MAX_RULES)
    return rules_in([row["keys"] async for row in rows], SOURCE)


async def find(db: Database, name: str) -> tuple[Rule, int] | None:
    """Return a rule and the number of its edits; None if there is no such rule."""
    row = await db.notification_rules.find_one({"_id": name})
    if row is None:
        return None
    return rules_in([row["keys"]], SOURCE)[0], row["edits"]


async def add(db: Database, rule: Rule, by: str, now: datetime) -> None:
    """Store a new rule; raises ConfigError if its name is taken, or there are too many rules."""
    if await db.notification_rules.count_documents({}, limit=MAX_RULES) == MAX_RULES:
        raise ConfigError(f"There are {MAX_RULES} rules already. Remove one first")
    try:
        await db.notification_rules.insert_one(
            {"_id": rule.name, "edits": 0} | _fields(rule, by, now)
        )
    except DuplicateKeyError:
        raise ConfigError(f"There is a rule named {rule.name!r} already") from None


async def replace(db: Database, rule: Rule, edits: int | None, by: str, now: datetime) -> None:
    """Store a rule in place of the one with its name.

    edits: number of edits that the stored rule must have; None: any. Raises ConfigError if somebody
           has changed or removed the rule since.
    """
    query: Document = {"_id": rule.name} | ({} if edits is None else {"edits": edits})
    update: Document = {"$set": _fields(rule, by, now), "$inc": {"edits": 1}}
    if not (await db.notification_rules.update_one(query, update)).matched_count:
        raise ConfigError(
            "Someone has changed or removed this rule in the meantime. Open it again in a new tab, "
            "and copy your changes to it"
        )


async def remove(db: Database, name: str) -> Rule | None:
    """Remove a rule and return it; None if there is no such rule."""
    row = await db.notification_rules.find_one_and_delete({"_id": name})
    return None if row is None else rules_in([row["keys"]], SOURCE)[0]


async def of_site_only(db: Database, site: str) -> list[str]:
    """Return the names of the stored rules that are about one site and no other, at most 100."""
    cursor = db.notification_rules.find({"keys.sites": [site]}, {"_id": 1}).sort("_id").limit(100)
    return [row["_id"] async for row in cursor]


def _fields(rule: Rule, by: str, now: datetime) -> Document:
    return {"keys": rule.model_dump(mode="json"), "by": by, "at": now}


async def of_all_sites(db: Database, file: Path) -> Rules:
    """Return the rules of `notify.toml` and of the web app; raises ConfigError for invalid ones."""
    return (*rules_in(read_keys(file).get("rules"), str(file)), *await read(db))


def wanted_in(rules: Rules, of_site: Rules, site: str) -> Wanted | None:
    """Return the events of a site that rules select; None if no rule is about the site.

    of_site: rules of the site's definition
    """
    wanted = wanted_by((*rules, *of_site), site)
    return wanted if wanted.events else None


class WantedEvents:
    """The events of a site that rules select, for a process that marks them.

    file:    `notify.toml`. If it is invalid, all events are wanted, so that none is lost until it
             is corrected, and a warning is logged.
    of_site: rules of the site's definition
    """

    def __init__(self, db: Database, file: Path, of_site: Rules, site: str) -> None:
        self._db, self._file, self._of_site, self._site = db, file, of_site, site
        self._wanted: Wanted | None = None
        self._read_at, self._problem = -math.inf, ""

    async def read(self) -> Wanted | None:
        """Return the wanted events; None if no rule is about the site."""
        if time.monotonic() - self._read_at >= WANTED_SECONDS:
            try:
                rules = await of_all_sites(self._db, self._file)
                self._wanted, self._problem = wanted_in(rules, self._of_site, self._site), ""
            except ConfigError as error:
                problem, self._wanted = str(error), ALL_WANTED
                if problem != self._problem:
                    logger.warning(ALL_KEPT, problem)
                self._problem = problem
            self._read_at = time.monotonic()
        return self._wanted
