"""What an update of a post has besides, so that searches find it, or the original in its place."""

from __future__ import annotations

from collections.abc import Sequence

from crawler.sketches.claim import Verdict
from crawler.storage.client import Document
from crawler.storage.duplicates.flags import merged
from crawler.storage.search import with_words


def shown(update: Document, post: Document, verdict: Verdict | None) -> Document:
    """An update with the words of the post as it then is, and with its verdict."""
    return merged(with_words(update, post), verdict)


def naming(update: Document, compared: Sequence[str] | None) -> Document:
    """An update with the fields that a wrapper wants compared, or without where it names none."""
    if compared is None:
        return update | {"$unset": {"compare": ""}}
    return update | {"$set": update["$set"] | {"compare": list(compared)}}
