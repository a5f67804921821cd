"""Normalize texts for full-text search, match queries, and show passages around the hits."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from crawler.dedup.compared import LINKS
from crawler.utils.terminal import printable
from crawler.utils.text import INVISIBLE, MAX_CHARACTERS, normalized

# Scripts without spaces between words, as a character class; without their digits and punctuation.
UNSPACED = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ece\u0edc-\u0edf"  # Thai, Lao
    "\u1000-\u103f\u1050-\u109d\u1780-\u17d3\u17dc\u17dd"  # Burmese, Khmer
    "\u1100-\u11ff\u3131-\u318e\ua960-\ua97c\uac00-\ud7a3\ud7b0-\ud7fb"  # Hangul
    "\u3041-\u3096\u3099\u309a\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"  # kana
    "\u3005-\u3007\u303b\u3100-\u312f\u31a0-\u31bf\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"  # Han, Bopomofo
)
_RUN = re.compile(f"[{UNSPACED}]+")
_WORD = re.compile(f"[{UNSPACED}]+|[^ {UNSPACED}]+")
# Treated as spaces, because their compatibility forms (SM, TM) would be joined to the word before.
TRADE_MARKS = "\u2120\u2122"
# Combining classes up to this one (nukta, virama, the sign that turns ka into ga) create a
# different letter; those above are accents.
MAX_LETTER_CLASS = 9
# Maximum number of cached characters; the texts of a site have a few thousand different ones.
MAX_CACHED = 65_536
# Number of characters to translate at a time, because one may become 18 letters.
PIECE_CHARACTERS = 65_536


class _Letters(dict[int, str]):
    """Table for `str.translate` that normalizes characters, filled on demand.

    It folds case, resolves compatibility forms, and replaces everything but letters and
    digits with spaces.
    """

    def __missing__(self, code: int) -> str:
        letters = self.read(chr(code))
        if len(self) < MAX_CACHED:
            self[code] = letters
        return letters

    def read(self, character: str) -> str:
        """Return the normalized letters of a character."""
        if INVISIBLE.match(character):
            return ""
        if character in TRADE_MARKS:
            return " "
        resolved = normalized("NFKC", character).casefold()
        parts = normalized("NFKC", resolved)
        return "".join(part if is_letter(part) else " " for part in parts)


class _Bare(_Letters):
    """Table that also removes accents."""

    def read(self, character: str) -> str:
        """Return the normalized letters of a character without accents."""
        letters = super().read(character)
        if is_unspaced(letters):
            return letters
        parts = normalized("NFD", letters)
        bare = (x for x in parts if unicodedata.combining(x) <= MAX_LETTER_CLASS)
        return normalized("NFC", "".join(bare))


_LETTERS, _BARE = _Letters(), _Bare()


def is_letter(character: str) -> bool:
    """Return whether a character is a letter, a digit or a combining mark."""
    return unicodedata.category(character)[0] in "LMN"


def is_unspaced(word: str) -> bool:
    """Return whether a result of `words_of` is in a script without spaces between words."""
    return _RUN.match(word) is not None


def normal(text: str) -> str:
    """Normalize at most MAX_CHARACTERS of a text; spaces replace all but letters and digits."""
    return _translated(text, _LETTERS)


def words_of(text: str) -> list[str]:
    """Return the normalized words of a text; a run of unspaced characters is one word."""
    return _words(normal(text))


def bare(text: str) -> str:
    """Return the words of a text without accents, with a space before and after each word."""
    return f" {' '.join(_words(bare_letters(text)))} "


def bare_letters(text: str) -> str:
    """Normalize a text and remove accents; spaces replace all but letters and digits."""
    return _translated(text, _BARE)


def indexed(word: str) -> str:
    """Return the index form of a word; for unspaced runs bigrams, as 虚拟 拟世 世界."""
    if len(word) < 2 or not is_unspaced(word):
        return word
    return " ".join(map("".join, pairwise(word)))


def _translated(text: str, table: _Letters) -> str:
    if text.isascii() and len(text) <= PIECE_CHARACTERS:
        return text.translate(table)
    text = normalized("NFC", text, MAX_CHARACTERS)
    letters, room = [], MAX_CHARACTERS
    for start in range(0, len(text), PIECE_CHARACTERS):
        letters.append(text[start : start + PIECE_CHARACTERS].translate(table)[:room])
        room -= len(letters[-1])
        if room <= 0:
            break
    return normalized("NFC", "".join(letters))


def _words(letters: str) -> list[str]:
    return letters.split() if letters.isascii() else _WORD.findall(letters)


# What people type: a minus, and a phrase in quotes or a word; a minus inside of a word is none.
_TYPED = re.compile(
    '(?:(?<=\\s)|^)(-?)(?:["\u201c\u201d\u201e]([^"\u201c\u201d\u201e]*)["\u201c\u201d]|(\\S+))'
)
# Maximum number of words that the server looks for in texts; matches are then checked in full.
MAX_NEEDED = 12
# Of PCRE: the next to a word is neither a letter nor a digit, and a letter may have accents.
_BEFORE, _AFTER, _ACCENTS = r"(?<![\p{L}\p{N}])", r"(?![\p{L}\p{N}])", r"\p{M}*"
# Characters that may belong to the word next to them, also as signs that resolve to letters.
_PART = r"[\p{L}\p{N}\p{M}\p{Cf}\p{S}]"
# Letters with accents are below this code; scripts with other ones have no accents.
END_OF_ACCENTED = 0x2000
# Maximum number of words or bigrams in a query to the index; its results are then matched in full.
MAX_LOOKED_UP = 100
_QUOTES = re.compile('["\u201c\u201d\u201e]')


@dataclass(frozen=True)
class Term:
    """One or several consecutive normalized words; unspaced runs are one word each."""

    words: tuple[str, ...]

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Pattern that finds the term in a result of `bare`, as whole words."""
        parts: list[str] = []
        for word in bare(" ".join(self.words)).split():
            run = is_unspaced(word)
            if parts and run:
                parts.append(" ?")
            parts.append(re.escape(word) if run else f" {re.escape(word)}(?= )")
        return re.compile("".join(parts))

    @property
    def is_single(self) -> bool:
        """Return whether the term is a single word of the index."""
        return len(self.words) == 1 and " " not in indexed(self.words[0])


@dataclass(frozen=True)
class Needed:
    """Regular expressions (PCRE) of which a match has one.

    plain:    in the title, the text or the additional words
    accented: the same with accents, only for texts that are not ASCII; empty: no such form
    words:    only in the additional words; empty: no such form
    """

    plain: str
    accented: str = ""
    words: str = ""


@dataclass(frozen=True)
class Query:
    """Search query.

    terms:   terms to search for
    without: terms that must not occur
    every:   whether all terms have to occur, or only one of them
    """

    terms: tuple[Term, ...]
    without: tuple[Term, ...] = ()
    every: bool = True

    @classmethod
    def of(cls, given: Iterable[str], without: Iterable[str] = (), *, every: bool = True) -> Query:
        """Parse search terms; each text is a word or phrase, or contains quoted phrases."""
        return cls(_terms(given), _terms(without), every)

    @classmethod
    def parse(cls, text: str) -> Query:
        """Parse what people type: words, phrases in quotes, and both with a minus to exclude."""
        given: list[str] = []
        without: list[str] = []
        for match in _TYPED.finditer(text):
            minus, phrase, word = match.groups()
            (without if minus else given).append(word if phrase is None else phrase)
        return cls(_terms(given), _terms(without))

    @property
    def tokens(self) -> list[str]:
        """The words and bigrams of the terms as the index has them, the longest first."""
        words = (word for term in self.terms for word in term.words)
        tokens = dict.fromkeys(token for word in words for token in indexed(word).split())
        return sorted(tokens, key=len, reverse=True)

    @property
    def needed(self) -> list[Needed]:
        """Patterns that the stored texts of every match have, for the server to leave out others.

        The texts of a match have them all, but not every post with all of them matches.
        """
        words = dict.fromkeys(word for term in self.terms for word in bare_words(term.words))
        return [_needed(word) for word in [*words][:MAX_NEEDED]]

    @property
    def excluding(self) -> list[str]:
        """Patterns (PCRE) of which no match has one in its title or text.

        Only for single words of ASCII; `matches` decides for the others.
        """
        words = (term.words[0] for term in self.without if len(term.words) == 1)
        plain = [word for word in words if word.isascii()][:MAX_NEEDED]
        return [f"(?<!{_PART}){re.escape(word)}(?!{_PART})" for word in plain]

    @property
    def look_ups(self) -> list[str]:
        """MongoDB $text queries that together find all possible matches, and few others."""
        if self.every or len(self.terms) == 1:
            return [_all_of(word for term in self.terms for word in term.words)]
        singles = [term.words[0] for term in self.terms if term.is_single]
        rest = [_all_of(term.words) for term in self.terms if not term.is_single]
        words = [" ".join(singles[:MAX_LOOKED_UP])] if singles else []
        return words + rest[:MAX_LOOKED_UP]

    def matches(self, texts: Sequence[str]) -> bool:
        """Return whether a post with these texts matches; MongoDB also matches parts of words."""
        searched = "\n".join(map(bare, texts))
        if any(term.pattern.search(searched) for term in self.without):
            return False
        matched = (term.pattern.search(searched) is not None for term in self.terms)
        return all(matched) if self.every else any(matched)

    @property
    def is_one_character(self) -> bool:
        """Return whether the query is a single character of an unspaced script."""
        words = [word for term in self.terms for word in term.words]
        return len(words) == 1 and len(words[0]) == 1 and is_unspaced(words[0])


def bare_words(words: Iterable[str]) -> list[str]:
    """Return normalized words without accents."""
    return [part for word in words for part in bare(word).split()]


def _needed(word: str) -> Needed:
    if is_unspaced(word):
        return Needed(re.escape(word), words=indexed(word) if len(word) > 1 else "")
    letters = _accented()
    parts = (f"[{letter}{letters.get(letter, '')}]{_ACCENTS}" for letter in word)
    return Needed(f"{_BEFORE}{re.escape(word)}{_AFTER}", f"{_BEFORE}{''.join(parts)}{_AFTER}")


@cache
def _accented() -> dict[str, str]:
    """Return the small letters with accents by the letter without."""
    found: dict[str, str] = {}
    for code in range(LAST_ASCII + 1, END_OF_ACCENTED):
        letter = chr(code)
        base = bare_letters(letter)
        if len(base) == 1 and base != letter and letter == letter.lower() and base.isalpha():
            found[base] = found.get(base, "") + letter
    return found


def _terms(given: Iterable[str]) -> tuple[Term, ...]:
    phrases = (words_of(phrase) for argument in given for phrase in _split(argument))
    # Drop words that only consist of accents.
    searched = (tuple(x for x in words if not bare(x).isspace()) for words in phrases)
    return tuple(dict.fromkeys(Term(words) for words in searched if words))


def _split(given: str) -> Iterator[str]:
    """Split an argument into words and quoted phrases; ignore an unclosed quote."""
    parts = _QUOTES.split(given)
    if len(parts) < 3:
        yield given
        return
    for i, part in enumerate(parts):
        if i % 2 and i < len(parts) - 1:
            yield part
        else:
            yield from part.split()


def _all_of(words: Iterable[str]) -> str:
    """Return a $text query for all of these words: MongoDB requires quoted phrases to occur."""
    phrases: dict[str, None] = {}
    room = MAX_LOOKED_UP
    for word in words:
        # The word, or bigrams of an unspaced run.
        pieces = indexed(word).split()[:room]
        if not pieces:
            break
        room -= len(pieces)
        phrases[" ".join(pieces)] = None
    if len(phrases) == 1 and " " not in (only := next(iter(phrases))):
        return only
    return " ".join(f'"{phrase}"' for phrase in phrases)


WINDOW_CHARACTERS = 2000
OVERLAP_CHARACTERS = 200
# Share of a passage that precedes the hit.
BEFORE = 1 / 3
MAX_WORD_CHARACTERS = 20
MORE = "…"
WIDE = frozenset("WF")
# White space, a decomposed Korean syllable, or a character with its combining marks.
_CLUSTER = re.compile(
    r"\s+|[\u1100-\u11ff\ua960-\ua97c\ud7b0-\ud7fb]+"
    r"|.[\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u3099\u309a\uff9e\uff9f]*"
)
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Passage:
    """Passage of a text in one line. marks: positions of the hits, in order."""

    text: str
    marks: tuple[Span, ...] = ()


def passage(texts: Iterable[str], terms: Sequence[Term], columns: int) -> Passage:
    """Return the passage around the first hit in `texts`, else the start of the first text.

    columns: width in terminal columns; Chinese, Japanese and Korean characters take two
    """
    first = ""
    for text in texts:
        first = first or text
        for start in range(0, len(text), WINDOW_CHARACTERS - OVERLAP_CHARACTERS):
            window = text[start : start + WINDOW_CHARACTERS]
            if spans := marks(window, terms):
                at = start + spans[0][0]
                return marked(_cut(text, at, columns), terms)
    return marked(_cut(first, 0, columns), terms)


def marked(text: str, terms: Sequence[Term]) -> Passage:
    """Return a printable text with the positions of its hits."""
    shown = printable(text)
    return Passage(shown, marks(shown, terms))


def marks(text: str, terms: Iterable[Term]) -> tuple[Span, ...]:
    """Return the positions of the terms in a text, in order; merge overlapping ones."""
    # Computing the places is slow, so check for hits first.
    searched = bare(text)
    if not any(term.pattern.search(searched) for term in terms):
        return ()
    letters, places = _with_places(text)
    spans = sorted(
        (places[match.start() + match[0].startswith(" ")][0], places[match.end() - 1][1])
        for term in terms
        for match in term.pattern.finditer(letters)
    )
    joined: list[Span] = []
    for start, stop in spans:
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], stop)
        else:
            joined.append((start, stop))
    return tuple(joined)


def _with_places(text: str) -> tuple[str, list[Span]]:
    """Return the result of `bare`, and the place in the text of each of its characters."""
    letters, places = [" "], [(0, 0)]
    for cluster in _CLUSTER.finditer(text):
        for letter in bare_letters(cluster[0]):
            before = letters[-1]
            if letter == before == " ":
                continue
            if " " not in (letter, before) and is_unspaced(letter) != is_unspaced(before):
                letters.append(" ")
                places.append((cluster.start(), cluster.start()))
            letters.append(letter)
            places.append(cluster.span())
    letters.append(" ")
    places.append((len(text), len(text)))
    return "".join(letters), places


def _cut(text: str, at: int, columns: int) -> str:
    """Return as much of a text around position `at` as fits; cut only very long words."""
    room = columns - 2 * len(f"{MORE} ")
    start = stop = _back(text, at, round(room * BEFORE))
    while stop < len(text) and room > 0:
        room -= _width(text[stop])
        stop += 1
    if stop < len(text):
        space_at = text.rfind(" ", stop - MAX_WORD_CHARACTERS, stop)
        stop = space_at if space_at > at else stop
    before = _more(text[start - 1]) if start else ""
    after = _more(text[stop])[::-1] if stop < len(text) else ""
    return f"{before}{text[start:stop].rstrip()}{after}"


def _more(neighbor: str) -> str:
    """Return an ellipsis, with a space unless it cuts a word."""
    return f"{MORE} " if neighbor.isspace() else MORE


def _back(text: str, at: int, room: int) -> int:
    """Return the start of a passage with at most `room` columns before position `at`."""
    start = at
    while start and room > 0:
        start -= 1
        room -= _width(text[start])
    if not start:
        return 0
    space_at = text.find(" ", start, start + MAX_WORD_CHARACTERS)
    return space_at + 1 if start <= space_at < at else start


def _width(character: str) -> int:
    return 2 if unicodedata.east_asian_width(character) in WIDE else 1


# The bigrams of a million characters of Chinese text take 3.3 MB; MongoDB's limit is 16 MB.
MAX_INDEXED_CHARACTERS = 1_000_000
# Known delimiters of MongoDB's index. It has more; words next to those are checked separately.
DELIMITERS = (
    r"\t-\r -/:-@\[-^`{-~\x85\xa0-\xa7\xa9\xab\xac\xae\xb0\xb1\xb6\xbb\xbf\xd7\xf7"
    r"\u2000-\u200a\u2010-\u2029\u202f-\u203e\u2041-\u2053\u2055-\u205f\u3000-\u3003"
    r"\u3008-\u3011\u3014-\u301b\uff01\uff0c\uff0e\uff1a\uff1b\uff1f\uff61\uff64"
)
_CHUNK = re.compile(f"[^{DELIMITERS}]+")
_DELIMITER = re.compile(f"[{DELIMITERS}]")
# The index folds this letter.
FINAL_SIGMA = "\u03c2"
LAST_ASCII = 0x7F
# Number of characters from which a search for each ASCII character is faster than a set.
LONG_TEXT = 2_000
# Capitals that the index does not fold.
_CAPITALS = re.compile("[\u0130\u1c90-\u1cbf\u2c2f\ua7ae-\ua7f5\U00010000-\U0001ffff]")


def search_words(title: Any, text: Any, fields: Any) -> str | None:
    """Return the words to index in addition to a post's title and text; None if there are none.

    These are the words of other fields, and words that MongoDB's index does not split or fold as
    `words_of` does.

    fields: the other fields of the post; texts in lists and dicts are included
    """
    main = [value[:MAX_INDEXED_CHARACTERS] for value in (title, text) if isinstance(value, str)]
    others = [value for value in field_texts([title, fields]) if value not in (title, text)]
    words, room = list[str](), MAX_INDEXED_CHARACTERS
    for value in others:
        words += words_of(value[:room])
        room -= min(len(value), room)
    if words:
        main_words = {word for value in main for word in words_of(value)}
        words = [word for word in words if word not in main_words]
    words = list(dict.fromkeys([*_misindexed(main), *words]))
    kept = " ".join([word if word.isascii() else indexed(word) for word in words])
    if len(kept) >= MAX_INDEXED_CHARACTERS:
        kept = kept[:MAX_INDEXED_CHARACTERS].rpartition(" ")[0]
    return kept.strip() or None


def field_texts(value: Any) -> Iterator[str]:
    """Yield all texts in a field's value, including its lists and dicts; skip links."""
    if isinstance(value, str):
        if not value.startswith(LINKS):
            yield value
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from field_texts(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from field_texts(entry)


def _misindexed(texts: Iterable[str]) -> Iterator[str]:
    """Yield normalized words that differ from the words in MongoDB's index."""
    for text in texts:
        doubtful = {character for character in _distinct(text) if not _is_clear(character)}
        if doubtful:
            chunks = (x for x in _CHUNK.findall(text) if not doubtful.isdisjoint(x))
            # The index finds one or two unspaced characters between delimiters without bigrams.
            yield from words_of(
                " ".join(
                    chunk
                    for chunk in chunks
                    if len(chunk) > 2 or not all(map(is_unspaced, chunk)) or normal(chunk) != chunk
                )
            )


def _distinct(text: str) -> Iterable[str]:
    """Return the different characters of a text; of a long one ten times as fast as a set does."""
    if len(text) < LONG_TEXT:
        return set(text)
    characters = [letter for letter in map(chr, range(LAST_ASCII + 1)) if letter in text]
    if not text.isascii():
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
        characters += map(chr, np.unique(codes[codes > LAST_ASCII]).tolist())
    return characters


@lru_cache(maxsize=MAX_CACHED)
def _is_clear(character: str) -> bool:
    """Return whether the index treats a character in the same way as `normal`."""
    if _DELIMITER.match(character) or character == FINAL_SIGMA:
        return True
    if is_unspaced(character) or _CAPITALS.match(character):
        return False
    return normal(character) == character.lower()
