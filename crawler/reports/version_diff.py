"""The difference between two versions of a target, field by field, as structured parts to display.

Fields are compared by line, changed lines by word. Long unchanged parts are folded. The texts are
untrusted, so time and output are bounded; `compare` belongs in a sandbox if `is_large`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Literal

from typing_extensions import TypedDict

from crawler.errors import ConfigError
from crawler.storage.client import Document
from crawler.utils.diff import Matcher, by_word
from crawler.utils.sandbox import LimitExceeded, Sandbox

SegmentKind = Literal["same", "deleted", "inserted", "folded"]
PartKind = Literal["same", "changed", "folded"]
FieldKind = Literal["same", "changed", "deleted", "inserted"]
# Unchanged lines that are shown before and after a change.
CONTEXT_LINES = 2
# Unchanged text within a changed line that is shown before and after a change.
CONTEXT_CHARACTERS = 200
# Longer changed texts are shortened in the middle.
MAX_SEGMENT = 2000
# Characters of all parts; the rest of the difference is left out.
MAX_CHARACTERS = 200_000
MAX_FIELDS = 200
MAX_NAME = 200
# Comparing contents of this size takes a few milliseconds.
QUICK_CHARACTERS = 20_000
# Limits of the sandbox; the largest difference takes about 1.5 s.
MAX_SECONDS, MAX_MB = 5, 512


class Segment(TypedDict):
    """Consecutive text of one kind."""

    kind: SegmentKind
    """`same`: in both versions; `deleted`: in the first; `inserted`: in the second; `folded`."""
    text: str
    """The text; for `folded` empty."""
    characters: int
    """Number of characters in the versions; more than in `text` if it was shortened."""


class DiffPart(TypedDict):
    """Consecutive lines of a field."""

    kind: PartKind
    """`same`: unchanged; `changed`; `folded`: unchanged and left out."""
    lines: int
    """Number of lines, of the longer side."""
    segments: list[Segment]
    """The text of both versions; empty for `folded`."""


class FieldDiff(TypedDict):
    """The difference of a field."""

    name: str
    """Name of the field."""
    kind: FieldKind
    """`same`, `changed`, `deleted`: only in the first version, `inserted`: only in the second."""
    parts: list[DiffPart]
    """The lines of the field; empty for `same`."""


class StoredVersion(TypedDict):
    """A version of the content, without the content."""

    content_hash: str
    """Hash of the content."""
    at: datetime
    """Time when the content was first seen."""
    size: int
    """Uncompressed bytes of the page."""


class VersionDiff(TypedDict):
    """The difference between two versions of a target."""

    before: StoredVersion
    """The first version."""
    after: StoredVersion
    """The second version."""
    fields: list[FieldDiff]
    """All fields, at most 200, in the order of the second version."""
    truncated: bool
    """Whether a part of the difference was left out because it is too long."""


async def compared(before: Document, after: Document, sandbox: Sandbox) -> VersionDiff:
    """Return the difference between two rows of `versions`; large ones are compared in a sandbox.

    Raises ConfigError if the comparison exceeds the limits of the sandbox.
    """
    work = partial(compare, before, after)
    if not is_large(before["content"], after["content"]):
        return await asyncio.to_thread(work)
    try:
        return await sandbox.run(work)
    except LimitExceeded as problem:
        raise ConfigError(f"these versions cannot be compared: the comparison {problem}") from None


def is_large(before: Document, after: Document) -> bool:
    """Return whether comparing two contents would block other work noticeably."""
    texts = (text for content in (before, after) for text in _texts(content))
    room = QUICK_CHARACTERS
    for text in texts:
        room -= len(text)
        if room < 0:
            return True
    return False


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, entry in value.items():
            yield str(key)
            yield from _texts(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from _texts(entry)
    else:
        yield value if isinstance(value, str) else " " * 20


def compare(before: Document, after: Document) -> VersionDiff:
    """Return the difference between two rows of `versions`."""
    old, new = before["content"], after["content"]
    names = [*new, *(name for name in old if name not in new)]
    builder = DiffBuilder(Matcher(), MAX_CHARACTERS, CONTEXT_CHARACTERS)
    fields = [builder.field(name, old, new) for name in names[:MAX_FIELDS]]
    return {
        "before": version_of(before),
        "after": version_of(after),
        "fields": fields,
        "truncated": builder.is_full or len(names) > MAX_FIELDS,
    }


def version_of(row: Document) -> StoredVersion:
    """Return a row of `versions` without the content."""
    return {"content_hash": row["content_hash"], "at": row["at"], "size": row["size"]}


class DiffBuilder:
    """Builds the differences of fields, within one budget of time and of characters.

    context: characters of unchanged text within a line that are shown before and after a change
    is_full: whether more than `max_characters` were returned, so that the rest is left out
    """

    def __init__(self, matcher: Matcher, max_characters: int, context: int) -> None:
        self._matcher = matcher
        self._room = max_characters
        self._context = context
        self.is_full = False

    def field(self, name: str, old: Document, new: Document) -> FieldDiff:
        """Return the difference of a field of two contents, by line."""
        shown = name if len(name) <= MAX_NAME else f"{name[:MAX_NAME]}…"
        if name in old and name in new and old[name] == new[name]:
            return {"name": shown, "kind": "same", "parts": []}
        kind: FieldKind = (
            "deleted" if name not in new else "inserted" if name not in old else "changed"
        )
        before = field_lines(old[name]) if name in old else []
        after = field_lines(new[name]) if name in new else []
        parts = [] if self.is_full else list(self._parts(before, after))
        return {"name": shown, "kind": kind, "parts": parts}

    def _parts(self, before: Sequence[str], after: Sequence[str]) -> Iterator[DiffPart]:
        opcodes = list(self._matcher.opcodes(before, after))
        for n, (equal, i, i_end, j, j_end) in enumerate(opcodes):
            if self.is_full:
                return
            if equal:
                head = CONTEXT_LINES if n else 0
                tail = CONTEXT_LINES if n < len(opcodes) - 1 else 0
                yield from self._unchanged(before[i:i_end], head, tail)
                continue
            lines = max(i_end - i, j_end - j)
            old, new = "\n".join(before[i:i_end]), "\n".join(after[j:j_end])
            yield {"kind": "changed", "lines": lines, "segments": list(self.words(old, new))}

    def _unchanged(self, lines: Sequence[str], head: int, tail: int) -> Iterator[DiffPart]:
        """Yield unchanged lines, of which only the first `head` and last `tail` are shown."""
        # A fold takes one line, so folding one line gains nothing.
        if len(lines) <= head + tail + 1:
            yield self._same(lines)
            return
        if head:
            yield self._same(lines[:head])
        yield {"kind": "folded", "lines": len(lines) - head - tail, "segments": []}
        if tail:
            yield self._same(lines[-tail:])

    def _same(self, lines: Sequence[str]) -> DiffPart:
        text = "\n".join(lines)
        return {"kind": "same", "lines": len(lines), "segments": [self._segment("same", text)]}

    def words(self, old: str, new: str) -> Iterator[Segment]:
        """Yield the segments of two texts, compared by word, until the budget is used up."""
        if not old or not new:
            yield from self._replaced(old, new)
            return
        changes = by_word(old, new, self._matcher)
        for n, change in enumerate(changes):
            if self.is_full:
                return
            is_last = n == len(changes) - 1 and not (change.old or change.new)
            yield from self._around(change.same, is_first=n == 0, is_last=is_last)
            yield from self._replaced(change.old, change.new)

    def _replaced(self, old: str, new: str) -> Iterator[Segment]:
        if old:
            yield self._segment("deleted", old)
        if new:
            yield self._segment("inserted", new)

    def _around(self, text: str, *, is_first: bool, is_last: bool) -> Iterator[Segment]:
        """Yield the unchanged text between two changes, folded if it is long."""
        head = 0 if is_first else self._context
        tail = 0 if is_last else self._context
        left_out = len(text) - head - tail
        if left_out <= self._context:
            if text:
                yield self._segment("same", text)
            return
        if head:
            yield self._segment("same", text[:head])
        yield {"kind": "folded", "text": "", "characters": left_out}
        if tail:
            yield self._segment("same", text[-tail:])

    def _segment(self, kind: SegmentKind, text: str) -> Segment:
        shown = text
        if len(text) > MAX_SEGMENT:
            half = MAX_SEGMENT // 2 - 1
            shown = f"{text[:half]}…{text[-half:]}"
        self._room -= len(shown)
        self.is_full = self.is_full or self._room < 0
        return {"kind": kind, "text": shown, "characters": len(text)}


def field_lines(value: Any) -> list[str]:
    """Return the value of a field as lines of text: one for each entry of a list."""
    if isinstance(value, list):
        return [entry if isinstance(entry, str) else _as_text(entry) for entry in value]
    if isinstance(value, str):
        return value.splitlines() or [""]
    return [_as_text(value)]


def _as_text(value: Any) -> str:
    """Return a value as readable text: a price as `12.5 EUR`, nothing for null."""
    if value is None:
        return ""
    if isinstance(value, dict):
        if value.keys() == {"amount", "currency"}:
            return " ".join(str(part) for part in value.values() if part is not None)
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)
