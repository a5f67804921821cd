"""What a word is, for the search index and for the query alike.

Chinese, Japanese, Korean, Thai and their like are runs here, looked up by two characters at a time:
most of them put no blanks between words, and a Korean word has its particles glued to it.
"""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise

from crawler.normalization import MAX_CHARACTERS, normalized
from crawler.sketches.normal import INVISIBLE

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
