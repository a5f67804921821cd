"""What a user looks for: words and phrases, none of which can be an operator."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from crawler.searching.letters import bare, indexed, is_unspaced, words_of

# So many words, or two characters each, the server looks up; what it finds is compared with all.
MOST_LOOKED_UP = 100
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
        words = [" ".join(singles[:MOST_LOOKED_UP])] if singles else []
        return words + rest[:MOST_LOOKED_UP]

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
    found = (tuple(_words(text)) for one in given for text in _split(one))
    return tuple(dict.fromkeys(Term(words) for words in found if words))


def _words(text: str) -> Iterator[str]:
    """The words of a text; a lone accent is none."""
    return (word for word in words_of(text) if not bare(word).isspace())


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
    room = MOST_LOOKED_UP
    for word in words:
        pieces = indexed(word).split()[:room]
        if not pieces:
            return
        room -= len(pieces)
        yield " ".join(pieces)
