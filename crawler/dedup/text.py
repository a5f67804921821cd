"""The normal form in which texts are compared."""

from __future__ import annotations

import html
import re
import unicodedata
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from crawler.utils.text import INVISIBLE, MAX_CHARACTERS, normalized

if TYPE_CHECKING:
    from crawler.dedup.points import CodePoints, Values

# The most frequent replacements of NFKC: Chinese punctuation, typographic marks. Normalizing takes
# ten times as long as everything else, and after these replacements few texts need it.
FREQUENT = {
    mark: normalized("NFKC", mark)
    for mark in "\uff0c\uff1a\uff08\uff09\uff01\uff1b\uff1f\u2026\u00a0\u3000"
}
# Typographic quotes and dashes: sites and their feeds often differ in these, and short or Chinese
# texts would fall below the threshold.
TYPOGRAPHIC = {
    mark: plain
    for plain, marks in (
        ("'", "\u2018\u2019\u201a\u201b"),
        ('"', "\u201c\u201d\u201e\u201f\u00ab\u00bb"),
        ("-", "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"),
    )
    for mark in marks
}
REPLACED = FREQUENT | TYPOGRAPHIC
# Texts of ASCII and Latin-1 in which only the case and white space are not normal.
PLAIN = re.compile("[\x00-\x7f\xa1-\xa7\xa9\xac\xae\xb0\xb1\xb6\xb7\xbf-\xff]*")
# Texts of feeds are often escaped twice. The patterns are narrower than those of `html.unescape`,
# which takes quadratic time for a long number.
ENTITY = re.compile("&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,31});")
# Punctuation that becomes a space; other punctuation is dropped, like the apostrophe of "it's".
SEPARATORS = "-/\\_"
# Dropped except between digits, so that 1.5 and 15 stay different.
IN_NUMBERS = ".,:"
# Scripts whose accents and vowel points are often left out: Latin, Greek, Cyrillic, Hebrew, Arabic.
# In others, such as Thai, Hindi and Japanese, marks are a part of the spelling.
ACCENTED = re.compile("[\xc0-\u06ff\u1ab0-\u1aff\u1dc0-\u1fff\u20d0-\u20ff]")
TATWEEL = "\u0640"
# The first code point after the punctuation of Chinese and Japanese.
END_OF_FOLDED = 0x3040
# Letters that Unicode does not decompose into a letter and a mark, and Arabic ones that are typed
# in place of each other.
LETTERS = str.maketrans(
    "\u0131\u0111\u0142\xf8\u0127\u0649\u06cc\u06a9\u0629", "idloh\u064a\u064a\u0643\u0647"
)


def normal_text(text: str) -> str:
    """Normalize a text: NFKC, case folded, plain quotes and dashes, nothing invisible.

    White space becomes single spaces. Reads and returns at most MAX_CHARACTERS.
    """
    text = text[:MAX_CHARACTERS]
    if text.isascii():
        return " ".join(text.lower().split())
    if PLAIN.fullmatch(text):
        return " ".join(text.casefold().split())
    for mark, plain in REPLACED.items():
        text = text.replace(mark, plain)
    text = INVISIBLE.sub("", normalized("NFKC", text, MAX_CHARACTERS))
    folded = normalized("NFKC", text.casefold(), MAX_CHARACTERS)
    return " ".join(folded.split())


@lru_cache(maxsize=2)  # called twice for each text: for its sketch, and for its boilerplate
def compared_points(text: str) -> CodePoints:
    """Return the (n,) code points by which a text is compared: its normal text, folded.

    Character references of HTML are replaced. Accents, vowel points and most punctuation are
    dropped, and spaces in Chinese and Japanese: copies often differ in these. A text of nothing
    but punctuation is not folded.
    """
    from crawler.dedup.points import folded  # compiled code, loaded with the first text

    text = text[:MAX_CHARACTERS]
    if "&" in text:
        text = ENTITY.sub(lambda match: html.unescape(match[0]), text)
    points = code_points(normal_text(text))
    result = folded(points, _letters())
    if not result.size:
        return points
    result = result.copy()
    result.setflags(write=False)
    return result


@cache
def _letters() -> Values:
    """Return the table of `folded`."""
    import numpy as np

    from crawler.dedup import points

    table = np.arange(END_OF_FOLDED, dtype=np.uint32)
    for code in range(END_OF_FOLDED):
        character = chr(code)
        category = unicodedata.category(character)
        if character in SEPARATORS:
            table[code] = points.SPACE
        elif character in IN_NUMBERS:
            table[code] = points.BETWEEN_DIGITS
        elif category.startswith("P") or character == TATWEEL:
            table[code] = points.DROP
        elif category == "Nd":
            table[code] = ord("0") + unicodedata.digit(character)
        elif ACCENTED.match(character):
            letter = normalized("NFD", character)[0].translate(LETTERS)
            table[code] = points.DROP if category == "Mn" else ord(letter)
    return table


def code_points(text: str) -> CodePoints:
    """Return the (n,) code points of a text, including lone surrogates."""
    import numpy as np

    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
