"""The passage of a text around a hit, ready to be shown."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from crawler.searching.letters import bare, bare_letters, is_unspaced
from crawler.searching.query import Term
from crawler.terminal import printable

WINDOW_CHARACTERS = 2000
OVERLAP_CHARACTERS = 200
# So much of a passage stands before the hit.
BEFORE = 1 / 3
LONGEST_WORD = 20
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
    stop = _word_end(text, stop, at)
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
    blank = text.find(" ", start, start + LONGEST_WORD)
    return blank + 1 if start <= blank < at else start


def _word_end(text: str, stop: int, at: int) -> int:
    if stop == len(text):
        return stop
    blank = text.rfind(" ", stop - LONGEST_WORD, stop)
    return blank if blank > at else stop


def _width(character: str) -> int:
    return 2 if unicodedata.east_asian_width(character) in WIDE else 1
