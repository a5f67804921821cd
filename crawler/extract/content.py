"""The content of pages and feeds as it is stored, compared and hashed."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from crawler.extract.noise import without_noise
from crawler.extract.plain_text import Markup
from crawler.extract.unstable_text import without_unstable
from crawler.items import Entry, Fetched, Kind, Noise, Outcome, Post
from crawler.utils.exact_json import INT64, exact_number
from crawler.utils.text import (
    normalized,
    seen,
    storable_name,
    with_storable_names,
    without_surrogates,
)
from crawler.utils.urls import TRACKING_PARAMETERS, canonical

logger = logging.getLogger(__name__)
# MongoDB allows 100 levels of nesting, some of which Freshet's documents need.
MAX_NESTED = 90
RESULT_KEYS = {"columns", "rows"}
# Parameters of signed URLs of media files.
SIGNATURES = (
    "*token*", "*sig", "*signature*", "*hash*", "*hmac*", "expire*", "exp", "policy", "key-pair-id",
    "hdne*", "verify", "nonce", "timestamp", "ts", "time", "auth*", "x-amz-*", "x-goog-*",
)  # fmt: skip
# A path that names its file, and values of parameters that are signatures, times and the like.
FILE = re.compile(r"/[^/?#;]*[^/?#;.]\.[A-Za-z][A-Za-z0-9]{1,4}\Z")
TOKEN = re.compile(r"(?=[^0-9]*[0-9])[A-Za-z0-9%+/=._~-]{8,}")
_CANONICAL = json.JSONEncoder(
    sort_keys=True,
    ensure_ascii=False,
    separators=(",", ":"),
    default=lambda other: other.isoformat() if isinstance(other, datetime) else str(other),
)


def fill_safely(item: Fetched) -> None:
    """Call `fill`, unless that was done before; an exception fails only this page."""
    if item.outcome is not None or item.content_hash is not None:
        return
    try:
        fill(item)
    except Exception as error:
        logger.exception("Normalizing the content of %s failed", item.target.url)
        reason = f"cannot be normalized: {type(error).__name__}: {error}"
        item.outcome, item.reason = Outcome.ERROR, normal(reason[:300])


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
    noise, unordered = fetched.random_text, fetched.unordered
    return digest(fetched.content and comparable(fetched.content, noise, unordered))


def comparable(
    content: dict[str, Any], noise: Noise | None = None, unordered: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the content of an item as it is compared: without counters and random text.

    unordered: values whose lines or entries are compared in any order
    """
    content = _without_counters(content)
    content = content if noise is None else without_noise(content, noise)
    return content | {name: _in_order(content[name]) for name in unordered if name in content}


def _in_order(value: Any) -> Any:
    if isinstance(value, str):
        return "\n".join(sorted(value.split("\n")))
    return sorted(value, key=digest) if isinstance(value, list) else value


def _without_counters(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of an item or a post as it is compared: its main text without counters.

    Invisible characters are not compared either.
    """
    content = {name: seen(value) for name, value in content.items()}
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
    published, stated = (normal(date) if date else None for date in (entry.published, entry.stated))
    compared = _without_counters(content)
    if files := compared.get("enclosures"):
        compared["enclosures"] = list(map(_file_of, files))
    content_hash = digest([entry.url and _without_parameters(entry.url), compared])
    return Post(
        normal(entry.id), entry.url, published, content, content_hash, stated, entry.has_offset
    )


def _file_of(url: str) -> str:
    """Return the URL of a media file as it is compared: without parameters that sign it.

    If the path names the file, long values with digits are tokens, whatever their names.
    """
    path, _, query = url.partition("#")[0].partition("?")
    if query and FILE.search(path):
        kept = [pair for pair in query.split("&") if not TOKEN.fullmatch(pair.partition("=")[2])]
        url = "?".join(filter(None, (path, "&".join(kept))))
    return _without_parameters(url, SIGNATURES)


def _without_parameters(url: str, names: tuple[str, ...] = ()) -> str:
    """Return a URL without campaign parameters and others, which may differ in every document."""
    try:
        return canonical(url, (*TRACKING_PARAMETERS, *names))
    except ValueError:
        return url


def normal(value: Any, room: int = MAX_NESTED) -> Any:
    """Normalize a value: NFC, without NUL and lone surrogates, times truncated to milliseconds.

    Integers that MongoDB cannot store become text with all their digits, unless a float is exact.

    room: remaining levels of nesting; raises ValueError if the value is nested deeper
    """
    if isinstance(value, str):
        clean = value.replace("\0", "")
        if clean.isascii():
            return clean.strip()
        return normalized("NFC", without_surrogates(clean)).strip()
    if isinstance(value, dict | list | tuple):
        if room < 1:
            raise ValueError(f"nested deeper than {MAX_NESTED} levels")
        if isinstance(value, dict):
            return {normal(str(key)): normal(part, room - 1) for key, part in value.items()}
        return [normal(part, room - 1) for part in value]
    if isinstance(value, int) and not -INT64 <= value < INT64:
        number = exact_number(Decimal(value))
        return str(number) if isinstance(number, str) else number
    if isinstance(value, datetime):
        value = value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
        return value.replace(microsecond=value.microsecond // 1000 * 1000)
    return value


def digest(value: Any) -> str:
    """Return the 128-bit BLAKE2b hash of a value's canonical JSON in hexadecimal."""
    text = _CANONICAL.encode(value)
    return hashlib.blake2b(text.encode("utf-8"), digest_size=16).hexdigest()
