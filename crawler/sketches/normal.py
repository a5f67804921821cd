"""The normal form of a text for comparison, and what kind of text it is."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from crawler.normalization import MAX_CHARACTERS, normalized

if TYPE_CHECKING:
    from crawler.sketches.arrays import CodePoints

# Characters that nobody sees: soft hyphen, joiners, directions, zero-width spaces, byte order,
# variation selectors (the same emoji in colour or not), tags.
INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u180b-\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\ufe00-\ufe0f\ufeff\U000e0000-\U000e0fff]"
)
# What NFKC makes of the marks of Chinese and of typography. To compose a text takes ten times as
# long as all the rest; after these, nearly every text is composed.
FREQUENT = {
    mark: normalized("NFKC", mark)
    for mark in "\uff0c\uff1a\uff08\uff09\uff01\uff1b\uff1f\u2026\u00a0\u3000"
}


@lru_cache(maxsize=2)  # a text is sketched, then searched for boilerplate
def normal_text(text: str) -> str:
    """NFKC, case folded, without invisible characters, one space for all white space.

    Of longer texts only the first MAX_CHARACTERS are read, and as many are returned at most.
    """
    text = text[:MAX_CHARACTERS]
    if text.isascii():
        return " ".join(text.lower().split())
    for mark, plain in FREQUENT.items():
        text = text.replace(mark, plain)
    folded = _composed(INVISIBLE.sub("", _composed(text)).casefold())
    return " ".join(folded.split())


def _composed(text: str) -> str:
    return normalized("NFKC", text, MAX_CHARACTERS)


def code_points(text: str) -> CodePoints:
    """(n,) the text's code points; a lone surrogate stands for itself."""
    import numpy as np

    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
