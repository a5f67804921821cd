"""Normalize and hash the content of pages and feeds."""

from __future__ import annotations

import hashlib
import json
import logging
from datetime import UTC, datetime
from typing import Any

from crawler.extract.plain_text import Markup
from crawler.extract.stable_text import without_unstable
from crawler.items import Entry, Fetched, Kind, Outcome, Post
from crawler.utils.text import normalized, storable_name, with_storable_names
from crawler.utils.urls import TRACKING_PARAMETERS, canonical

logger = logging.getLogger(__name__)
# MongoDB stores integers below this.
INT64 = 2**63
MAX_FLOAT = 10**308
# MongoDB allows 100 levels of nesting, some of which Freshet's documents need.
MAX_NESTED = 90
RESULT_KEYS = {"columns", "rows"}
# Parameters of signed URLs of media files.
SIGNATURES = (
    "token", "sig", "signature", "expires", "policy", "key-pair-id", "hmac", "x-amz-*", "x-goog-*",
)  # fmt: skip


class ContentPipeline:
    """Normalizes and hashes the content of a Fetched."""

    def process_item(self, item: Any) -> Any:
        """Set `content` and `content_hash` of a Fetched; return other items unchanged."""
        if isinstance(item, Fetched) and item.reason is not None:
            # The reason may quote the page.
            item.reason = normal(item.reason)
        if isinstance(item, Fetched) and item.outcome is None:
            try:
                fill(item)
            except Exception as error:
                logger.exception("Normalizing the content of %s failed", item.target.url)
                item.outcome = Outcome.ERROR
                reason = f"cannot be normalized: {type(error).__name__}: {error}"
                item.reason = normal(reason[:300])
        return item


def fill(item: Fetched) -> None:
    """Set normalized content, posts and their hash; make field names storable after hashing."""
    if item.document is not None:
        # Different ids may have the same normal form.
        item.posts = tuple({post.id: post for post in map(post_of, item.document.entries)}.values())
    if item.content is not None:
        item.markup = tuple(
            storable_name(name)
            for name, value in item.content.items()
            if isinstance(value, Markup) or (name in item.markup and isinstance(value, str))
        )
        item.content = normal(dict(item.content))
    item.content_hash = content_hash(item)
    if item.content is not None:
        item.content = with_storable_names(item.content)
        if item.target.kind is Kind.CELL and item.content.keys() == RESULT_KEYS:
            item.content["columns"] = list(map(storable_name, item.content["columns"]))


def content_hash(fetched: Fetched) -> str:
    """Return the hash of an item's fields and text, a list page's links, or a feed's posts."""
    if fetched.document is not None:
        return digest(sorted([post.id, post.content_hash] for post in fetched.posts))
    if fetched.target.kind is Kind.LIST:
        return digest(
            sorted(
                [
                    link.kind,
                    link.url,
                    link.category or "",
                    link.lastmod.isoformat() if link.lastmod else "",
                ]
                for link in fetched.links or ()
            )
        )
    return digest(fetched.content and _compared(fetched.content))


def _compared(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of an item or a post as it is compared: its main text without counters."""
    text, details = content.get("main_text"), content.get("details")
    if isinstance(text, str):
        content = content | {"main_text": without_unstable(text)}
        # Details are parts of the page that the main text lacks, or a field of that name.
        if isinstance(details, list) and all(isinstance(line, str) for line in details):
            lines = without_unstable("\n".join(details)).split("\n")
            content["details"] = [line for line in lines if line.strip()]
    return content


def post_of(entry: Entry) -> Post:
    """Convert a feed's entry to a normalized post."""
    content = {name: normal(value) for name, value in entry.content.items()}
    published = normal(entry.published) if entry.published else None
    compared = _compared(content)
    if files := compared.get("enclosures"):
        compared["enclosures"] = [_without_parameters(url, SIGNATURES) for url in files]
    content_hash = digest([entry.url and _without_parameters(entry.url), compared])
    return Post(normal(entry.id), entry.url, published, content, content_hash)


def _without_parameters(url: str, names: tuple[str, ...] = ()) -> str:
    """Return a URL without campaign parameters and others, which may differ in every document."""
    try:
        return canonical(url, (*TRACKING_PARAMETERS, *names))
    except ValueError:
        return url


def normal(value: Any, room: int = MAX_NESTED) -> Any:
    """Normalize a value: NFC, without NUL and lone surrogates, times truncated to milliseconds.

    room: remaining levels of nesting; raises ValueError if the value is nested deeper
    """
    if isinstance(value, str):
        clean = value.replace("\0", "")
        if clean.isascii():
            return clean.strip()
        clean = clean.encode("utf-8", "replace").decode("utf-8")
        return normalized("NFC", clean).strip()
    if isinstance(value, dict | list | tuple):
        if room < 1:
            raise ValueError(f"nested deeper than {MAX_NESTED} levels")
        if isinstance(value, dict):
            return {normal(str(key)): normal(part, room - 1) for key, part in value.items()}
        return [normal(part, room - 1) for part in value]
    if isinstance(value, int) and not -INT64 <= value < INT64:
        return float(value) if abs(value) < MAX_FLOAT else str(value)
    if isinstance(value, datetime):
        value = value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
        return value.replace(microsecond=value.microsecond // 1000 * 1000)
    return value


_CANONICAL = json.JSONEncoder(
    sort_keys=True,
    ensure_ascii=False,
    separators=(",", ":"),
    default=lambda other: other.isoformat() if isinstance(other, datetime) else str(other),
)


def digest(value: Any) -> str:
    """Return the 128-bit BLAKE2b hash of a value's canonical JSON in hexadecimal."""
    text = _CANONICAL.encode(value)
    return hashlib.blake2b(text.encode("utf-8"), digest_size=16).hexdigest()
