"""Rules of notifications as sentences: when something happens somewhere, tell a channel."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from crawler.errors import ConfigError, cause_of
from crawler.extract.notification_rules import Rule
from crawler.items import Event
from crawler.reports import notifications as report
from crawler.storage import notification_rules
from crawler.storage.store import Store

# What happens, as the sentence says it, and the events of the rule.
WHAT: dict[str, tuple[str, tuple[Event, ...]]] = {
    "falls": ("a price falls", (Event.CHANGED,)),
    "rises": ("a price rises", (Event.CHANGED,)),
    "new": ("there is a new item", (Event.NEW,)),
    "changed": ("an item changes", (Event.CHANGED,)),
    "gone": ("an item is gone", (Event.GONE,)),
    "back": ("an item is back", (Event.BACK,)),
    "broken": ("a site breaks or falls silent", (Event.BROKEN, Event.SILENT)),
}
PRICED = ("falls", "rises")
DEFAULT_FIELD = "price"
_NUMBER = re.compile(r"\d{1,4}(?:[.,]\d{1,3})?")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9]+")
MAX_NAME = 40
TAKEN = "notify.toml or the definition of a site has a rule with this name. Choose another one"


def rule_of(values: Mapping[str, str], taken: Collection[str] = ()) -> Rule:
    """Return the rule that a sentence says.

    values: `what`, `percent`, `field`, `site`, `category` and `channel`; empty: any
    taken:  names of rules; the name of the rule is another one

    Raises ConfigError whose text begins with the key of a value, and ValidationError.
    """
    what, site = values.get("what", ""), values.get("site", "").strip()
    category, channel = values.get("category", "").strip(), values.get("channel", "").strip()
    if what not in WHAT:
        raise ConfigError("what: choose what happens")
    if not channel:
        raise ConfigError("channel: choose who is told")
    keys: dict[str, Any] = {
        "events": [str(event) for event in WHAT[what][1]],
        "channels": [channel],
        "sites": [site] if site else [],
        "categories": [category] if category else [],
    }
    if what in PRICED:
        percent = values.get("percent", "").strip().removesuffix("%").strip()
        if percent and _NUMBER.fullmatch(percent) is None:
            raise ConfigError("percent: not a number, such as 5")
        field, number = values.get("field", "").strip() or DEFAULT_FIELD, percent.replace(",", ".")
        by = f" by {number} %" if number and float(number) else ""
        keys["when"] = [f"{field} {what}{by}"]
    return Rule.model_validate(keys | {"name": _name(what, site, category, taken)})


def _name(what: str, site: str, category: str, taken: Collection[str]) -> str:
    words = ["price-" + what if what in PRICED else what, site, category]
    base = "-".join(filter(None, (_NOT_IN_NAMES.sub("-", word).strip("-") for word in words)))
    base = base[:MAX_NAME].strip("-")
    names = (base, *(f"{base}-{number}" for number in range(2, len(taken) + 3)))
    return next(name for name in names if name not in taken)


async def said(store: Store, values: Mapping[str, str]) -> Rule:
    """Return the new rule that a sentence says; raises ConfigError with what is wrong."""
    shown = await report.notifications(store.db, store.config.notify_file)
    try:
        return rule_of(values, [each["key"] for each in shown["rules"]])
    except ValidationError as error:
        raise ConfigError(problems_of(error)) from None


def problems_of(error: ValidationError) -> str:
    """Return what is wrong with a rule, in one line."""
    rows = error.errors(include_url=False)[:5]
    places = (f"{each['loc'][0] if each['loc'] else 'rule'}: {cause_of(each)}" for each in rows)
    return "; ".join(places)


async def add(store: Store, rule: Rule, by: str, now: datetime) -> None:
    """Store a new rule; raises ConfigError if its name is taken."""
    shown = await report.notifications(store.db, store.config.notify_file)
    if any(each["key"] == rule.name and each["source"] != "web app" for each in shown["rules"]):
        raise ConfigError(TAKEN)
    await notification_rules.add(store.db, rule, by, now)
