"""The difference between two contents as people read it: segments of text, and short edits.

Every output shows these segments: the terminal, web pages, JSON, and the edits of messages, of the
inbox and of summaries. The texts are untrusted, so time and output are bounded; see
`crawler.utils.diff`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from typing_extensions import TypedDict

from crawler.utils.diff import Matcher, by_word
from crawler.utils.text import differs, is_price, price, seen_text
from crawler.utils.time import iso

SegmentKind = Literal["same", "deleted", "inserted", "folded"]
PartKind = Literal["same", "changed", "folded"]
FieldKind = Literal["same", "changed", "deleted", "inserted"]
# Unchanged lines, and unchanged text within a changed line, shown before and after a change.
CONTEXT_LINES, CONTEXT_CHARACTERS = 2, 120
# Longer changed texts are shortened in the middle.
MAX_SEGMENT = 2000
# Characters of all segments; the rest of a difference is left out.
MAX_CHARACTERS = 200_000
MAX_FIELDS, MAX_NAME = 200, 200
# Values of one line and at most this length are an edit as a whole.
WHOLE_CHARACTERS = 80
# Unchanged text before and after an edit. Channels cut texts at their end, so an edit begins early.
EDIT_CONTEXT = 24
# Characters of a text that are compared for edits, and pairs of words, in about 50 ms for each
# content.
MAX_COMPARED_CHARACTERS, MAX_PAIRS = 400_000, 20_000_000
ELLIPSIS = "…"


class Segment(TypedDict):
    """Consecutive text of one kind."""

    kind: SegmentKind
    """`same`: in both contents; `deleted`: in the first; `inserted`: in the second; `folded`."""
    text: str
    """The text; for `folded` empty."""
    characters: int
    """Number of characters in the contents; more than in `text` if it was shortened."""


class DiffPart(TypedDict):
    """Consecutive lines."""

    kind: PartKind
    """`same`: unchanged; `changed`; `folded`: unchanged and left out."""
    lines: int
    """Number of lines, of the longer side."""
    segments: list[Segment]
    """The text of both sides; empty for `folded`."""


class FieldDiff(TypedDict):
    """The difference of a field."""

    name: str
    """Name of the field."""
    kind: FieldKind
    """`same`, `changed`, `deleted`: only in the first content, `inserted`: only in the second."""
    parts: list[DiffPart]
    """The lines of the field; empty for `same`."""


class Difference(TypedDict):
    """The difference between two contents."""

    fields: list[FieldDiff]
    """All fields, at most 200, in the order of the second content."""
    truncated: bool
    """Whether a part of the difference was left out because it is too long."""


def difference(before: Mapping[str, Any], after: Mapping[str, Any], matcher: Matcher) -> Difference:
    """Return the difference between two contents, field by field."""
    names = [*after, *(name for name in before if name not in after)]
    builder = DiffBuilder(matcher)
    fields: list[FieldDiff] = []
    for name in names[:MAX_FIELDS]:
        old, new = before.get(name), after.get(name)
        kind: FieldKind = "same"
        parts: list[DiffPart] = []
        if differs(old, new):
            is_in_both = name in before and name in after
            kind = "changed" if is_in_both else "inserted" if name in after else "deleted"
            parts = list(builder.parts(shown(old).splitlines(), shown(new).splitlines()))
        label = name if len(name) <= MAX_NAME else f"{name[:MAX_NAME]}{ELLIPSIS}"
        fields.append({"name": label, "kind": kind, "parts": parts})
    return {"fields": fields, "truncated": builder.is_full or len(names) > MAX_FIELDS}


class DiffBuilder:
    """Builds differences of texts, within one budget of time and of characters.

    context: characters of unchanged text within a line that are shown before and after a change
    is_full: whether more than `max_characters` were returned, so that the rest is left out
    """

    def __init__(
        self,
        matcher: Matcher,
        max_characters: int = MAX_CHARACTERS,
        context: int = CONTEXT_CHARACTERS,
    ) -> None:
        self._matcher = matcher
        self._room = max_characters
        self._context = context
        self.is_full = False

    def parts(
        self, before: Sequence[str], after: Sequence[str], key: Callable[[str], str] = str
    ) -> Iterator[DiffPart]:
        """Yield the parts of two texts by their lines.

        key: lines with the same key count as equal, and are shown as in the first text
        """
        opcodes = list(self._matcher.opcodes(list(map(key, before)), list(map(key, after))))
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
            shown = f"{text[:half]}{ELLIPSIS}{text[-half:]}"
        self._room -= len(shown)
        self.is_full = self.is_full or self._room < 0
        return {"kind": kind, "text": shown, "characters": len(text)}


class Edit(NamedTuple):
    """A place where a value differs, with whole words. before, after: None if there was nothing."""

    name: str
    before: str | None
    after: str | None


def edits(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, max_edits: int,
    max_characters: int,
) -> tuple[list[Edit], int]:  # fmt: skip
    """Return the edits between two contents, and the number of further ones.

    before, after:  values by field; None: there is no content
    max_characters: of each text; longer texts are cut at their end
    """
    found: list[Edit] = []
    more = 0
    old, new = before or {}, after or {}
    matcher = Matcher(MAX_PAIRS)
    for name in {**new, **old}:
        if not differs(old.get(name), new.get(name)):
            continue
        for edit in _edits_of(name, old.get(name), new.get(name), matcher):
            if len(found) < max_edits:
                found.append(Edit(name, *(_cut(text, max_characters) for text in edit[1:])))
            else:
                more += 1
    return found, more


def shown(value: Any) -> str:
    """Return a value as text: a price as `£69.60`, lists and mappings by line, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if is_price(value):
        return price(value)
    if isinstance(value, datetime):
        return iso(value if value.tzinfo else value.replace(tzinfo=UTC))
    if isinstance(value, list | tuple):
        return "\n".join(map(shown, value))
    if isinstance(value, Mapping):
        return "\n".join(f"{name}: {shown(each)}" for name, each in value.items())
    return str(value)


def _edits_of(name: str, before: Any, after: Any, matcher: Matcher) -> Iterator[Edit]:
    old, new = (seen_text(shown(value)[:MAX_COMPARED_CHARACTERS]) for value in (before, after))
    if old == new:
        # The rest differs, or only the type of the value.
        yield Edit(name, shown(before) or None, shown(after) or None)
        return
    whole = [text for text in map(short_line, (before, after)) if text is not None]
    if len(whole) == 2:
        yield Edit(name, *(text or None for text in whole))
        return
    if not old or not new:
        yield Edit(name, old or None, new or None)
        return
    builder = DiffBuilder(matcher, len(old) + len(new), 4 * EDIT_CONTEXT)
    for texts, preceding, following in _places(builder.words(old, new)):
        if any(map(str.strip, texts)):
            start, end = _end_of(preceding), _start_of(following)
            yield Edit(name, *(f"{start}{text}{end}" if text else None for text in texts))


def _places(segments: Iterable[Segment]) -> Iterator[tuple[tuple[str, str], str, str]]:
    """Yield the deleted and inserted text of each place, the text before it, and after it."""
    preceding = deleted = inserted = ""
    for segment in (*segments, Segment(kind="folded", text="", characters=0)):
        if segment["kind"] == "deleted":
            deleted = segment["text"]
        elif segment["kind"] == "inserted":
            inserted = segment["text"]
        else:
            if deleted or inserted:
                yield (deleted, inserted), preceding, segment["text"]
            preceding, deleted, inserted = segment["text"], "", ""


def short_line(value: Any) -> str | None:
    """Return a short value in one line; None if it is long."""
    texts = value[:WHOLE_CHARACTERS] if isinstance(value, list | tuple) else [value]
    line = seen_text(", ".join(shown(text)[: WHOLE_CHARACTERS + 1] for text in texts))
    return line if len(line) <= WHOLE_CHARACTERS and "\n" not in line else None


def _end_of(text: str) -> str:
    """Return the last words of an unchanged text, on the line of the edit after it."""
    line = text.rpartition("\n")[2]
    if len(line) <= EDIT_CONTEXT:
        return line
    kept = line[-EDIT_CONTEXT:]
    return f"{ELLIPSIS}{kept.partition(' ')[2] if ' ' in kept[:-1] else kept}"


def _start_of(text: str) -> str:
    """Return the first words of an unchanged text, on the line of the edit before it."""
    line = text.partition("\n")[0]
    if len(line) <= EDIT_CONTEXT:
        return line
    kept = line[:EDIT_CONTEXT]
    return f"{kept.rpartition(' ')[0] if ' ' in kept[1:] else kept}{ELLIPSIS}"


def _cut(text: str | None, max_characters: int) -> str | None:
    if text is None or len(text) <= max_characters:
        return text
    return text[: max_characters - 1] + ELLIPSIS
