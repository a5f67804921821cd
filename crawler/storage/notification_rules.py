"""`notification_rules`: rules of notifications that users write in the web app.

Rules of `notify.toml` and of site definitions are in files. All three kinds have the same keys.
`notify.toml` and the web app share one namespace for the names of rules.
"""

from __future__ import annotations

from datetime import datetime

from pymongo.errors import DuplicateKeyError

from crawler.errors import ConfigError
from crawler.extract.notification_rules import (
    MAX_RULES,
    Rule,
    Rules,
    rules_in,
)
from crawler.storage.client import Database, Document

SOURCE = "web app"


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


def _fields(rule: Rule, by: str, now: datetime) -> Document:
    return {"keys": rule.model_dump(mode="json"), "by": by, "at": now}
