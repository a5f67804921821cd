"""`posts.words`: what MongoDB's text index does not find in a post's title and text by itself.

The index takes for a word whatever stands between two delimiters, folds case and most accents, and
knows no scripts without blanks. So it finds no 虚拟 in 虚拟世界, no GitHub in 在GitHub上, and no
Strasse in Straße. It does not look into a wrapper's fields at all.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from crawler.searching.letters import MAX_LETTERS, indexed, is_unspaced, normal, words_of
from crawler.sketches.compared import LINKS

# A million characters of Chinese text have 3.3 MB of bigrams; MongoDB's documents end at 16 MB.
LONGEST_CHARACTERS = 1_000_000
# Delimiters of the index, for sure. There are more; what stands beside those is looked at closer.
DELIMITERS = (
    r"\t-\r -/:-@\[-^`{-~\x85\xa0-\xa7\xa9\xab\xac\xae\xb0\xb1\xb6\xbb\xbf\xd7\xf7"
    r"\u2000-\u200a\u2010-\u2029\u202f-\u203e\u2041-\u2053\u2055-\u205f\u3000-\u3003"
    r"\u3008-\u3011\u3014-\u301b\uff01\uff0c\uff0e\uff1a\uff1b\uff1f\uff61\uff64"
)
_CHUNK = re.compile(f"[^{DELIMITERS}]+")
_DELIMITER = re.compile(f"[{DELIMITERS}]")
# Folded by the index.
FINAL_SIGMA = "\u03c2"
# Capitals that it does not fold.
_CAPITALS = re.compile("[\u0130\u1c90-\u1cbf\u2c2f\ua7ae-\ua7f5\U00010000-\U0001ffff]")


def search_words(title: Any, text: Any, fields: Any) -> str | None:
    """The words to be indexed besides a post's title and text, each once; None for none.

    fields: whatever else is known of it, texts in lists and tables
    """
    shown = [value[:LONGEST_CHARACTERS] for value in (title, text) if isinstance(value, str)]
    told = [value for value in field_texts([title, fields]) if value not in (title, text)]
    known = {word for value in shown for word in words_of(value)} if told else set()
    found = dict.fromkeys(_unfound(shown)) | dict.fromkeys(_of_fields(told, known))
    return _limited(map(indexed, found)) or None


def field_texts(value: Any) -> Iterator[str]:
    """All texts in a field's value, those of its lists and tables too; no links."""
    if isinstance(value, str):
        if not value.startswith(LINKS):
            yield value
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from field_texts(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from field_texts(entry)


def _of_fields(texts: Iterable[str], known: Container[str]) -> Iterator[str]:
    room = LONGEST_CHARACTERS
    for text in texts:
        yield from (word for word in words_of(text[:room]) if word not in known)
        room -= min(len(text), room)


def _unfound(texts: Iterable[str]) -> Iterator[str]:
    """The words in what the index takes for a word but is none, or is none in normal form."""
    for text in texts:
        doubtful = {character for character in set(text) if not _is_clear(character)}
        if doubtful:
            chunks = (x for x in _CHUNK.findall(text) if not doubtful.isdisjoint(x))
            yield from words_of(" ".join(x for x in chunks if not _is_indexed(x)))


@lru_cache(maxsize=MAX_LETTERS)
def _is_clear(character: str) -> bool:
    """Whether a word of the index that has this character can be a word in normal form."""
    if _DELIMITER.match(character) or character == FINAL_SIGMA:
        return True
    if is_unspaced(character) or _CAPITALS.match(character):
        return False
    return normal(character) == character.lower()


def _is_indexed(chunk: str) -> bool:
    """One or two unspaced characters between delimiters are found as they are."""
    return len(chunk) <= 2 and all(map(is_unspaced, chunk)) and normal(chunk) == chunk


def _limited(words: Iterable[str]) -> str:
    """As many words as the limit allows."""
    kept, room = [], LONGEST_CHARACTERS
    for word in words:
        if len(word) >= room:
            kept.append(word[:room].rpartition(" ")[0])
            break
        kept.append(word)
        room -= len(word) + 1
    return " ".join(kept).strip()
