"""Copies of a post with some words changed. Pure: the random generator is passed in.

A word is what stands between white space; in Chinese, Japanese and Korean two characters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

IDEOGRAPHS = "\u3040-\u312f\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
IDEOGRAPHS += "\U00020000-\U0003ffff"
WORD = re.compile(rf"[{IDEOGRAPHS}]{{1,2}}|[^\s{IDEOGRAPHS}]+")
IDEOGRAPH = re.compile(f"[{IDEOGRAPHS}]")
REPLACE, INSERT, DELETE = "replace", "insert", "delete"
KINDS = {REPLACE: (REPLACE,), "all": (REPLACE, INSERT, DELETE)}


def words_of(text: str) -> list[str]:
    """The words of a text."""
    return WORD.findall(text)


def is_cjk(text: str) -> bool:
    """Whether more than half of the characters that are no white space are ideographs."""
    written = len(text) - sum(map(str.isspace, text))
    return 2 * len(IDEOGRAPH.findall(text)) > written


def edited(
    text: str, edits: int, kinds: Sequence[str], others: Sequence[str], random: Random
) -> str:
    """The text with `edits` of its words changed, all of them where it has fewer.

    kinds:  what is done to a word: one of these each time
    others: words to put in; the new one is another than the old one
    """
    places = [found.span() for found in WORD.finditer(text)]
    chosen = random.sample(places, min(edits, len(places)))
    for start, end in sorted(chosen, reverse=True):
        word = text[start:end]
        text = text[:start] + _changed(word, random.choice(kinds), others, random) + text[end:]
    return text


def _changed(word: str, kind: str, others: Sequence[str], random: Random) -> str:
    if kind == DELETE:
        return ""
    new = _another(word, others, random)
    if kind == REPLACE:
        return new
    return word + ("" if IDEOGRAPH.match(word) else " ") + new


def _another(word: str, others: Sequence[str], random: Random) -> str:
    """A word of the same script where a few tries bring one."""
    script = bool(IDEOGRAPH.match(word))
    tries = (random.choice(others) for _ in range(100)) if others else ()
    fitting = (one for one in tries if one != word and bool(IDEOGRAPH.match(one)) == script)
    return next(fitting, word + word)
