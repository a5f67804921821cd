"""The names of items: as people read them, and as lists are sorted by them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from crawler.utils.text import normalized, seen_text

# Fields that name an item, the best first.
NAMES = ("title", "name", "headline")
MAX_NAME_CHARACTERS = 200
# The end of a path that names a file, and what separates words in a URL.
SUFFIX, SEPARATORS = re.compile(r"\.[A-Za-z][A-Za-z0-9]{1,4}\Z"), re.compile(r"[-_+\s]+")


def name_of(content: Mapping[str, Any] | None, url: str) -> str:
    """Return the name of an item: its title, or what its URL says of it.

    content: title, main text and fields; None: not stored
    """
    for field in NAMES:
        value = (content or {}).get(field)
        if isinstance(value, str) and (name := " ".join(seen_text(value[:1000]).split())):
            return name[:MAX_NAME_CHARACTERS]
    try:
        parts = urlsplit(url)
    except ValueError:
        return url[:MAX_NAME_CHARACTERS]
    segment = unquote(parts.path.rstrip("/").rpartition("/")[2])
    words = SEPARATORS.sub(" ", SUFFIX.sub("", segment)).strip()
    name = words[:1].upper() + words[1:] or parts.hostname or url
    return (f"{name} ({parts.query})" if parts.query else name)[:MAX_NAME_CHARACTERS]


def sort_name(name: str) -> str:
    """Return a name in lower case and without accents: lists are sorted and searched by it."""
    text = normalized("NFKD", name[:MAX_NAME_CHARACTERS].casefold(), MAX_NAME_CHARACTERS)
    return "".join(letter for letter in text if not unicodedata.combining(letter))
