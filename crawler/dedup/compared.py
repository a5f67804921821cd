"""What of a post is compared with others: its text, and whether it says enough."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from crawler.utils.text import MAX_CHARACTERS

if TYPE_CHECKING:
    from crawler.dedup.boilerplate import Sourced
    from crawler.dedup.schemes import Scheme
    from crawler.dedup.sketch import Sketch

# Records with fewer words resemble too many others: two items of a shop may differ in one word.
MIN_WORDS = 20
# Distinct words that a post must have to be compared, and words of a field that count for it.
MIN_DISTINCT_WORDS, MIN_FIELD_WORDS = 5, 7
IDEOGRAPH = "[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
WORD = re.compile(rf"{IDEOGRAPH}{{2}}|[^\W\d_\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")
LINKS = ("http://", "https://", "//", "data:")


def text_of(
    title: str | None, text: str | None, fields: Mapping[str, Any], names: Sequence[str] | None
) -> str:
    """Return the text by which a post is compared, cut to MAX_CHARACTERS.

    names: fields chosen in the site definition; None: title and main text, or else all fields
    """
    if names is not None:
        chosen = {**fields, "main_text": text}
        return _joined(chosen.get(name) for name in names)
    if text:
        return _joined([title, text[:MAX_CHARACTERS]])
    return _joined(fields.values()) or title or ""


def _joined(values: Iterable[Any]) -> str:
    """Join values, one per line, each cut to the compared length."""
    texts = (_plain(value)[:MAX_CHARACTERS] for value in values)
    return "\n".join(filter(None, texts))[:MAX_CHARACTERS]


def compared(
    scheme: Scheme,
    source: str,
    title: str | None,
    text: str | None,
    fields: Mapping[str, Any],
    names: Sequence[str] | None,
) -> tuple[Sketch | None, Sourced | None]:
    """Return the sketch of a post, and its text to learn and remove boilerplate.

    There is no sketch without text, nor of values that say little. Boilerplate is not removed from
    records, which match only the same records, nor from very long texts.
    """
    if why_not_compared(title, text, fields, names) is not None:
        return None, None
    whole = text_of(title, text, fields, names)
    if is_record(text, names, whole):
        from crawler.dedup.minhash import exactly  # compiled code, loaded with the first text

        return exactly(whole), None
    sketch = scheme.sketch(whole)
    if sketch is None or not scheme.weighs:
        return sketch, None
    from crawler.dedup.boilerplate import sourced  # compiled code, loaded with the first text

    return sketch, sourced(source, whole, title)


def why_not_compared(
    title: str | None, text: str | None, fields: Mapping[str, Any], names: Sequence[str] | None
) -> str | None:
    """Return why a post is not compared with others; None if it is.

    names: fields chosen in the site definition; None: title and main text, or else all fields

    Products with the same price and stock are not duplicates. Numbers, prices, dates and flags say
    little, and so do a few words. All values are compared, but only others show that two posts are
    the same.
    """
    if names == ():
        return "the site definition disables the comparison (duplicates = false)"
    if names is not None:
        chosen = {**fields, "title": title, "main_text": text}
        values: list[Any] = [chosen.get(name, fields.get(name)) for name in names]
    elif text:
        values = [title, text]
    else:
        values = [title, *(value for name, value in fields.items() if name != "title")]
        values[1:] = (value for value in values[1:] if _is_text(value))
    found = set[str]()
    for value in values:
        for word in _words_in(value):
            found.add(word)
            if len(found) >= MIN_DISTINCT_WORDS:
                return None
    return (
        f"it has too few words to compare, {len(found)} of {MIN_DISTINCT_WORDS}. Numbers, prices, "
        f"dates, and fields of fewer than {MIN_FIELD_WORDS} words do not count"
    )


def _is_text(value: Any) -> bool:
    """Return whether a field has enough words to say more than a flag such as `In stock`."""
    return len(list(islice(_words_in(value), MIN_FIELD_WORDS))) == MIN_FIELD_WORDS


def _words_in(value: Any) -> Iterator[str]:
    """Yield the words of texts in a value, without numbers; two ideographs count as one word."""
    if isinstance(value, str) and not value.startswith(LINKS):
        for match in WORD.finditer(value[:MAX_CHARACTERS]):
            yield match[0].casefold()
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for each in value:
            yield from _words_in(each)


def source_of(spider: str, url: str, *, is_feed: bool) -> str:
    """Return the source whose boilerplate a text may contain: a feed, or a host.

    Each spider has its own sources, as spiders extract different parts of a page.
    """
    if is_feed:
        return f"{spider} {url}"
    # urlsplit caches its results: all pages of a site have one origin.
    origin = ORIGIN.match(url)
    return f"{spider} {urlsplit(origin[0] if origin else url).netloc}"


def is_record(text: str | None, names: Sequence[str] | None, compared: str) -> bool:
    """Return whether a post's fields have so few words that only exact matches count."""
    # Split only as much as needed: a string takes about 60 bytes per word.
    return not text and names is None and len(compared.split(None, MIN_WORDS)) < MIN_WORDS


def _plain(value: Any) -> str:
    """Return a field's value as text, without links."""
    if value is None or isinstance(value, bool):
        return ""
    if isinstance(value, str):
        return "" if value.startswith(LINKS) else value
    if isinstance(value, Mapping):
        return json.dumps(value, ensure_ascii=False, default=str)
    if isinstance(value, Sequence):
        return " ".join(filter(None, map(_plain, value)))
    return str(value)
