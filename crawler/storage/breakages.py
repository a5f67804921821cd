"""How pages broke: the field `broken` of `targets`, which `targets` writes with each visit."""

from __future__ import annotations

from dataclasses import asdict

from crawler.items import Breakage, Broken, Visit
from crawler.storage.client import Document


def broken_of(stored: Document | None) -> Broken | None:
    """Return how a page broke, from the field of its target."""
    if not stored:
        return None
    how, fields = Breakage(stored["how"]), tuple(stored["fields"])
    return Broken(how, stored["since"], stored["text"], fields, stored["links"], stored["digest"])


def with_breakage(update: Document, visit: Visit) -> Document:
    """Return the update of a target with the state of its page after a visit."""
    if visit.broken is not None:
        stored = asdict(visit.broken) | {
            "how": str(visit.broken.how), "fields": list(visit.broken.fields),
        }  # fmt: skip
        return update | {"$set": update["$set"] | {"broken": stored}}
    if visit.fetched.target.broken is not None:
        return update | {"$unset": update.get("$unset", {}) | {"broken": ""}}
    return update
