"""What an update of a post has besides, so that searches find it, or the original in its place."""

from __future__ import annotations

from typing import Any

from crawler.dedup.model import Verdict
from crawler.items import Fetched
from crawler.storage.client import Document
from crawler.storage.duplicates.flags import merged
from crawler.storage.search import with_words


def shown(update: Document, post: Document, verdict: Verdict | None) -> Document:
    """An update with the words of the post as it then is, and with its verdict."""
    return merged(with_words(update, post), verdict)


def naming(update: Document, fetched: Fetched) -> Document:
    """An update with the names of the fields to compare, and of those that hold HTML, if any."""
    names = {"compare": fetched.compared, "markup": fetched.markup or None}
    for name, fields in names.items():
        update = fielded(update, name, None if fields is None else list(fields))
    return update


def fielded(update: Document, name: str, value: Any) -> Document:
    """An update with a field that has this value, or is left out where it is None."""
    operator, value = ("$unset", "") if value is None else ("$set", value)
    return update | {operator: update.get(operator, {}) | {name: value}}
