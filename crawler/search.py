"""The passage of a text around a hit, ready to be shown."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

from crawler.dedup.post_text import INVISIBLE, LINKS
from crawler.utils.terminal import printable
from crawler.utils.text import MAX_CHARACTERS, normalized

# For a class of a regular expression. Digits and punctuation of these scripts are left out.
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
# Letters by their compatibility form, which would be glued to the word before.
TRADE_MARKS = "\u2120\u2122"
# Of a nukta, a virama or the sign that makes ka to ga (classes up to 9) a letter is another one.
LAST_CLASS_OF_LETTERS = 9
# Characters whose letters are kept; all texts of one site have some thousands.
MAX_LETTERS = 65_536
# Characters that are translated at a time: one may become 18 letters.
PIECE_CHARACTERS = 65_536


class _Letters(dict[int, str]):
    """A table for `str.translate` to the normal form, filled as characters come up.

    Case is folded and forms for compatibility are resolved; what is no letter is a blank.
    """

    def __missing__(self, code: int) -> str:
        found = self.read(chr(code))
        if len(self) < MAX_LETTERS:
            self[code] = found
        return found

    def read(self, character: str) -> str:
        if INVISIBLE.match(character):
            return ""
        if character in TRADE_MARKS:
            return " "
        resolved = normalized("NFKC", character).casefold()
        parts = normalized("NFKC", resolved)
        return "".join(part if is_letter(part) else " " for part in parts)


class _Bare(_Letters):
    """The same without accents."""

    def read(self, character: str) -> str:
        letters = super().read(character)
        if is_unspaced(letters):
            return letters
        parts = normalized("NFD", letters)
        bare = (x for x in parts if unicodedata.combining(x) <= LAST_CLASS_OF_LETTERS)
        return normalized("NFC", "".join(bare))


_LETTERS, _BARE = _Letters(), _Bare()


def is_letter(character: str) -> bool:
    """Letters, digits and what is written upon them."""
    return unicodedata.category(character)[0] in "LMN"


def is_unspaced(word: str) -> bool:
    """Whether a word of `words_of` is a run of characters without blanks between its words."""
    return _RUN.match(word) is not None


def normal(text: str) -> str:
    """A text in normal form, blanks in place of what is no letter; MAX_CHARACTERS of it."""
    return _translated(text, _LETTERS)


def words_of(text: str) -> list[str]:
    """The words of a text in their normal form; runs of unspaced characters are one each."""
    return _words(normal(text))


def bare(text: str) -> str:
    """The words of a text without accents, a blank before and after each."""
    return f" {' '.join(_words(bare_letters(text)))} "


def bare_letters(text: str) -> str:
    """A text without accents, blanks in place of what is no letter."""
    return _translated(text, _BARE)


def indexed(word: str) -> str:
    """A word as the index knows it: of a run each two neighbours, as 虚拟 拟世 世界 of 虚拟世界."""
    if len(word) < 2 or not is_unspaced(word):
        return word
    return " ".join(map("".join, pairwise(word)))


def _translated(text: str, table: _Letters) -> str:
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


# So many words, or two characters each, the server looks up; what it finds is compared with all.
MAX_LOOKED_UP = 100
_QUOTES = re.compile('["\u201c\u201d\u201e]')


@dataclass(frozen=True)
class Term:
    """A word, or several in a row, in normal form; of scripts without blanks whole runs."""

    words: tuple[str, ...]

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Finds the term in what `letters.bare` gives, whole words only."""
        parts: list[str] = []
        for word in bare(" ".join(self.words)).split():
            run = is_unspaced(word)
            if parts and run:
                parts.append(" ?")
            parts.append(re.escape(word) if run else f" {re.escape(word)}(?= )")
        return re.compile("".join(parts))

    @property
    def is_single(self) -> bool:
        """Whether it is one word of the index."""
        return len(self.words) == 1 and " " not in indexed(self.words[0])


@dataclass(frozen=True)
class Query:
    """A search. every: all terms have to occur, else one of them; without: none of these may."""

    terms: tuple[Term, ...]
    without: tuple[Term, ...] = ()
    every: bool = True

    @classmethod
    def of(cls, given: Iterable[str], without: Iterable[str] = (), *, every: bool = True) -> Query:
        """A query as it is typed: each text is a word, or a phrase, or has phrases in quotes."""
        return cls(_terms(given), _terms(without), every)

    @property
    def look_ups(self) -> list[str]:
        """For MongoDB's $text: what finds all that can match, and little besides."""
        if self.every or len(self.terms) == 1:
            return [_all_of(word for term in self.terms for word in term.words)]
        singles = [term.words[0] for term in self.terms if term.is_single]
        rest = [_all_of(term.words) for term in self.terms if not term.is_single]
        words = [" ".join(singles[:MAX_LOOKED_UP])] if singles else []
        return words + rest[:MAX_LOOKED_UP]

    def matches(self, texts: Sequence[str]) -> bool:
        """Whether a post with these texts is a hit. The server takes parts of words for words."""
        told = "\n".join(map(bare, texts))
        if any(term.pattern.search(told) for term in self.without):
            return False
        found = (term.pattern.search(told) is not None for term in self.terms)
        return all(found) if self.every else any(found)

    @property
    def is_one_character(self) -> bool:
        """Whether all of it is one character of a script without blanks."""
        words = [word for term in self.terms for word in term.words]
        return len(words) == 1 and len(words[0]) == 1 and is_unspaced(words[0])


def _terms(given: Iterable[str]) -> tuple[Term, ...]:
    phrases = (words_of(phrase) for argument in given for phrase in _split(argument))
    # A lone accent is a word only in normal form.
    searched = (tuple(x for x in words if not bare(x).isspace()) for words in phrases)
    return tuple(dict.fromkeys(Term(words) for words in searched if words))


def _split(given: str) -> Iterator[str]:
    """The words and phrases of one argument; a quote that is not closed is none."""
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
    """A look-up of what has all of these words: what is in quotes has to occur."""
    phrases = dict.fromkeys(_phrases(words))
    if len(phrases) == 1 and " " not in (only := next(iter(phrases))):
        return only
    return " ".join(f'"{phrase}"' for phrase in phrases)


def _phrases(words: Iterable[str]) -> Iterator[str]:
    """Words, and runs by two characters, as many as are looked up."""
    room = MAX_LOOKED_UP
    for word in words:
        pieces = indexed(word).split()[:room]
        if not pieces:
            return
        room -= len(pieces)
        yield " ".join(pieces)


WINDOW_CHARACTERS = 2000
OVERLAP_CHARACTERS = 200
# So much of a passage stands before the hit.
BEFORE = 1 / 3
MAX_WORD_CHARACTERS = 20
MORE = "…"
WIDE = frozenset("WF")
# A character with what is written upon it; Korean syllables in parts; white space.
_CLUSTER = re.compile(
    r"\s+|[\u1100-\u11ff\ua960-\ua97c\ud7b0-\ud7fb]+"
    r"|.[\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u3099\u309a\uff9e\uff9f]*"
)
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Passage:
    """Text of one line. marks: where the hits are in it, in order."""

    text: str
    marks: tuple[Span, ...] = ()


def passage(texts: Iterable[str], terms: Sequence[Term], columns: int) -> Passage:
    """What stands around the first hit in some texts, else the beginning of the first text.

    columns: room of a terminal; Chinese, Japanese and Korean characters take two
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
    """A text as it can be shown, with its hits."""
    shown = printable(text)
    return Passage(shown, marks(shown, terms))


def marks(text: str, terms: Iterable[Term]) -> tuple[Span, ...]:
    """Where the terms are in a text, in order; what overlaps is one."""
    told = bare(text)
    if not any(term.pattern.search(told) for term in terms):
        return ()
    read, places = _read(text)
    found = sorted(
        (places[match.start() + match[0].startswith(" ")][0], places[match.end() - 1][1])
        for term in terms
        for match in term.pattern.finditer(read)
    )
    return tuple(_joined(found))


def _joined(spans: Iterable[Span]) -> Iterator[Span]:
    last: Span | None = None
    for span in spans:
        if last is not None and span[0] <= last[1]:
            last = last[0], max(last[1], span[1])
            continue
        if last is not None:
            yield last
        last = span
    if last is not None:
        yield last


def _read(text: str) -> tuple[str, list[Span]]:
    """What `bare` gives, and for each character of it where it stands in the text."""
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
    """So much of a text as has room, a part of it before the hit; whole words if they are short."""
    room = columns - 2 * len(f"{MORE} ")
    start = stop = _back(text, at, round(room * BEFORE))
    while stop < len(text) and room > 0:
        room -= _width(text[stop])
        stop += 1
    if stop < len(text):
        blank = text.rfind(" ", stop - MAX_WORD_CHARACTERS, stop)
        stop = blank if blank > at else stop
    before = _more(text[start - 1]) if start else ""
    after = _more(text[stop])[::-1] if stop < len(text) else ""
    return f"{before}{text[start:stop].rstrip()}{after}"


def _more(neighbour: str) -> str:
    """A sign that there is more, part of the word that it cuts."""
    return f"{MORE} " if neighbour.isspace() else MORE


def _back(text: str, at: int, room: int) -> int:
    start = at
    while start and room > 0:
        start -= 1
        room -= _width(text[start])
    if not start:
        return 0
    blank = text.find(" ", start, start + MAX_WORD_CHARACTERS)
    return blank + 1 if start <= blank < at else start


def _width(character: str) -> int:
    return 2 if unicodedata.east_asian_width(character) in WIDE else 1


# A million characters of Chinese text have 3.3 MB of bigrams; MongoDB's documents end at 16 MB.
MAX_INDEXED_CHARACTERS = 1_000_000
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
    shown = [value[:MAX_INDEXED_CHARACTERS] for value in (title, text) if isinstance(value, str)]
    told = [value for value in field_texts([title, fields]) if value not in (title, text)]
    known = {word for value in shown for word in words_of(value)} if told else set()
    words, room = dict.fromkeys(_unfound(shown)), MAX_INDEXED_CHARACTERS
    for value in told:
        words |= dict.fromkeys(word for word in words_of(value[:room]) if word not in known)
        room -= min(len(value), room)
    return _limited(map(indexed, words)) or None


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


def _unfound(texts: Iterable[str]) -> Iterator[str]:
    """The words in what the index takes for a word but is none, or is none in normal form."""
    for text in texts:
        doubtful = {character for character in set(text) if not _is_clear(character)}
        if doubtful:
            chunks = (x for x in _CHUNK.findall(text) if not doubtful.isdisjoint(x))
            # One or two unspaced characters between delimiters are found as they are.
            yield from words_of(
                " ".join(
                    chunk
                    for chunk in chunks
                    if len(chunk) > 2 or not all(map(is_unspaced, chunk)) or normal(chunk) != chunk
                )
            )


@lru_cache(maxsize=MAX_LETTERS)
def _is_clear(character: str) -> bool:
    """Whether a word of the index that has this character can be a word in normal form."""
    if _DELIMITER.match(character) or character == FINAL_SIGMA:
        return True
    if is_unspaced(character) or _CAPITALS.match(character):
        return False
    return normal(character) == character.lower()


def _limited(words: Iterable[str]) -> str:
    """As many words as the limit allows."""
    kept, room = [], MAX_INDEXED_CHARACTERS
    for word in words:
        if len(word) >= room:
            kept.append(word[:room].rpartition(" ")[0])
            break
        kept.append(word)
        room -= len(word) + 1
    return " ".join(kept).strip()
