"""Two texts side by side: their sentences, which of them differ, and in which words. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import NamedTuple

from crawler.dedup.post_text import normal_text
from crawler.utils.terminal import printable

# Enough to see what differs; comparing more takes long.
MOST_CHARACTERS, MOST_SENTENCES, MOST_PAIRS = 100_000, 1500, 2500
LONGEST_SENTENCE = 240
CONTEXT_ROWS = 1
# Sentences with fewer words in common do not stand for each other.
LEAST_AGREEING = 0.2
SAME, CHANGED, LEFT, RIGHT, GAP = " ", "|", "<", ">", "…"
# Full stop, exclamation and question mark of Chinese and Japanese, and what closes a quotation.
_STOPS = "\u3002\uff01\uff1f\uff61"
_CLOSING = "\"'\u201d\u2019\u300d\u300f)\\]\uff09\u3011"
_ENDS = re.compile(rf"[{_STOPS}]+[{_CLOSING}]*|[.!?…]+[{_CLOSING}]*\s+")
_PIECES = re.compile(rf"(?s).{{1,{LONGEST_SENTENCE}}}(?:\s|$)|.{{1,{LONGEST_SENTENCE // 2}}}")
# A word, a single character of scripts without spaces, or what stands between them.
_WORDS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\u3040-\u9fff]+|\s+|.")
Span = tuple[int, int]


class Row(NamedTuple):
    """A sentence of either text.

    mark:        how they differ, as `sdiff` has it; GAP: so many that are the same are left out
    left_spans, right_spans: the words that differ
    """

    mark: str
    left: str = ""
    right: str = ""
    left_spans: tuple[Span, ...] = ()
    right_spans: tuple[Span, ...] = ()
    left_out: int = 0


def rows(left: str, right: str) -> list[Row]:
    """The texts beside each other; what is the same is shown where something differs only.

    Of long ones only the beginnings.
    """
    sides = (sentences(text[:MOST_CHARACTERS])[:MOST_SENTENCES] for text in (left, right))
    found = list(_all_rows(*sides))
    near = _near_changes([row.mark != SAME for row in found])
    shown: list[Row] = []
    for row, is_near in zip(found, near, strict=True):
        if is_near:
            shown.append(row)
        elif shown and shown[-1].mark == GAP:
            shown[-1] = Row(GAP, left_out=shown[-1].left_out + 1)
        else:
            shown.append(Row(GAP, left_out=1))
    return shown


def is_long(text: str) -> bool:
    """Whether `rows` has only the beginning of a text."""
    return len(text) > MOST_CHARACTERS or len(sentences(text)) > MOST_SENTENCES


def sentences(text: str) -> list[str]:
    """A text's sentences, fit for a terminal; long ones in pieces."""
    found = []
    for line in text.splitlines():
        for sentence in _ENDS.sub(lambda end: f"{end[0]}\n", line).split("\n"):
            if shown := printable(sentence):
                found += [piece.strip() for piece in _PIECES.findall(shown)]
    return found


def _near_changes(changed: Sequence[bool]) -> list[bool]:
    return [
        any(changed[max(0, at - CONTEXT_ROWS) : at + CONTEXT_ROWS + 1])
        for at in range(len(changed))
    ]


def _all_rows(left: list[str], right: list[str]) -> Iterator[Row]:
    keys = [normal_text(one) for one in left], [normal_text(one) for one in right]
    for tag, a, b, c, d in SequenceMatcher(None, *keys, autojunk=False).get_opcodes():
        if tag == "equal":
            yield from (Row(SAME, *pair) for pair in zip(left[a:b], right[c:d], strict=True))
        else:
            for one, other in _paired(left[a:b], right[c:d]):
                yield _row(one, other)


def _row(one: str | None, other: str | None) -> Row:
    if other is None:
        return Row(LEFT, left=one or "")
    if one is None:
        return Row(RIGHT, right=other)
    return Row(CHANGED, one, other, *_differing(one, other))


def _differing(one: str, other: str) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    """Where the words are that one has and the other has not."""
    first, second = _WORDS.findall(one), _WORDS.findall(other)
    spans: tuple[list[Span], list[Span]] = [], []
    for tag, a, b, c, d in SequenceMatcher(None, first, second, autojunk=False).get_opcodes():
        if tag != "equal":
            spans[0].append(_span(first, a, b))
            spans[1].append(_span(second, c, d))
    left, right = (tuple(span for span in side if span[0] < span[1]) for side in spans)
    return left, right


def _span(words: Sequence[str], start: int, stop: int) -> Span:
    before = sum(map(len, words[:start]))
    return before, before + sum(map(len, words[start:stop]))


def _paired(left: list[str], right: list[str]) -> Iterator[tuple[str | None, str | None]]:
    """Sentences that stand for each other, in order; None: nothing does.

    The pairs are those whose words agree most, all together.
    """
    if len(left) * len(right) > MOST_PAIRS:
        yield from zip_longest(left, right)
        return
    best = _agreement(left, right)
    i = j = 0
    while i < len(left) or j < len(right):
        if j == len(right) or (i < len(left) and best[i][j] == best[i + 1][j]):
            yield left[i], None
            i += 1
        elif i == len(left) or best[i][j] == best[i][j + 1]:
            yield None, right[j]
            j += 1
        else:
            yield left[i], right[j]
            i, j = i + 1, j + 1


def _agreement(left: list[str], right: list[str]) -> list[list[float]]:
    """[i][j]: how well the sentences from i and from j on can be paired at most."""
    words = [
        [set(_WORDS.findall(normal_text(one))) - {" "} for one in side] for side in (left, right)
    ]
    best = [[0.0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for i in reversed(range(len(left))):
        for j in reversed(range(len(right))):
            shared = len(words[0][i] & words[1][j])
            agreeing = shared / max(1, len(words[0][i] | words[1][j]))
            together = agreeing + best[i + 1][j + 1] if agreeing > LEAST_AGREEING else 0.0
            best[i][j] = max(together, best[i + 1][j], best[i][j + 1])
    return best
