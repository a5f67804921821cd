"""Unicode normalization in linear time and bounded memory, for texts from outside.

`unicodedata` sorts the combining marks of a letter by insertion, with the interpreter locked: a
million marks in a row take hours, and no signal ends it. Some characters grow as well: NFKC makes
18 characters of U+FDFA. All normalization therefore goes through this module.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import Literal

Form = Literal["NFC", "NFD", "NFKC", "NFKD"]
# Marks on one letter, as in the Stream-Safe Text Format (UAX #15); real languages need 8.
MAX_MARKS = 30
# Characters of a text that are compared and searched, before and after normalization.
MAX_CHARACTERS = 1_000_000
# Of longer texts so many characters are normalized at a time.
PIECE_CHARACTERS = 65_536
# The last combining mark is below; with the table of all Unicode the first use would take longer.
END_OF_MARKS = 0x1F000
# Characters that become combining marks, but are none by their own class.
BECOME_MARKS = "\u0f73\u0f75\u0f81\uff9e\uff9f"
# Characters that never combine with what is before them.
APART = re.compile("[\x00-\x7f\u3400-\u9fff]")


def normalized(form: Form, text: str, longest: int | None = None) -> str:
    """Return a text in a normal form; marks beyond MAX_MARKS on one letter are dropped.

    longest: characters to read of the text, and to return
    """
    text = with_few_marks(text[:longest])
    # To ask is many times as fast, and nearly all texts are as they should be.
    if text.isascii() or unicodedata.is_normalized(form, text):
        return text
    parts, room = [], longest
    for piece in _pieces(text):
        # A mark may become two of them.
        part = with_few_marks(unicodedata.normalize(form, piece))[:room]
        parts.append(part)
        if room is not None and (room := room - len(part)) <= 0:
            break
    return "".join(parts)


def with_few_marks(text: str) -> str:
    """Return a text without the combining marks beyond the first MAX_MARKS in a row."""
    if text.isascii():
        return text
    mark, long_run = _patterns()
    # Each long run has a mark at one of these places, and most texts have none there.
    return long_run.sub(r"\1", text) if mark.search(text[::MAX_MARKS]) else text


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """A combining mark, and a run of too many with those to keep as its group."""
    marks = (chr(code) for code in range(0x300, END_OF_MARKS) if unicodedata.combining(chr(code)))
    mark = f"[{''.join(marks)}{BECOME_MARKS}]"
    return re.compile(mark), re.compile(f"({mark}{{{MAX_MARKS}}}){mark}++")


def _pieces(text: str) -> Iterator[str]:
    """Parts of a text that can be normalized one by one; one of usual length is one part."""
    start = 0
    while len(text) - start > PIECE_CHARACTERS:
        end = start + PIECE_CHARACTERS
        # Where nothing can be split safely within a whole piece, the text is not one to read.
        safe = APART.search(text, end, end + PIECE_CHARACTERS)
        end = safe.start() if safe else end
        yield text[start:end]
        start = end
    yield text[start:]
