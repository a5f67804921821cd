"""The edits between two contents of a page: one for each place that differs, as people read them.

Messages, the inbox and summaries show these. The texts are untrusted, so time and output are
bounded; see `crawler.utils.diff`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from crawler.utils.diff import Matcher, by_word
from crawler.utils.text import differs, is_price, price, seen_text
from crawler.utils.time import iso

# Values of one line and at most this length are shown as a whole.
WHOLE_CHARACTERS = 80
# Unchanged text before and after an edit. Channels cut texts at their end, so an edit begins early.
CONTEXT_CHARACTERS = 24
# Characters of a text that are compared, and pairs of words, in about 50 ms for each content.
MAX_COMPARED_CHARACTERS, MAX_PAIRS = 400_000, 20_000_000
# Entries of a list or a mapping that are shown.
MAX_ENTRIES = 1000
ELLIPSIS = "…"


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
        return "\n".join(map(shown, value[:MAX_ENTRIES]))
    if isinstance(value, Mapping):
        some = list(value.items())[:MAX_ENTRIES]
        return "\n".join(f"{name}: {shown(each)}" for name, each in some)
    return str(value)


def _edits_of(name: str, before: Any, after: Any, matcher: Matcher) -> Iterator[Edit]:
    old, new = (seen_text(shown(value)[:MAX_COMPARED_CHARACTERS]) for value in (before, after))
    if old == new:
        # The rest differs, or only the type of the value.
        yield Edit(name, shown(before) or None, shown(after) or None)
        return
    whole = [text for text in map(_line, (before, after)) if text is not None]
    if len(whole) == 2:
        yield Edit(name, *(text or None for text in whole))
        return
    if not old or not new:
        yield Edit(name, old or None, new or None)
        return
    changes = by_word(old, new, matcher)
    for at, change in enumerate(changes):
        if not change.old.strip() and not change.new.strip():
            continue
        following = changes[at + 1].same if at + 1 < len(changes) else ""
        start, end = _end_of(change.same), _start_of(following)
        yield Edit(
            name, *(f"{start}{text}{end}" if text else None for text in (change.old, change.new))
        )


def _line(value: Any) -> str | None:
    """Return a short value in one line; None if it is long."""
    texts = value[:WHOLE_CHARACTERS] if isinstance(value, list | tuple) else [value]
    line = seen_text(", ".join(shown(text)[: WHOLE_CHARACTERS + 1] for text in texts))
    return line if len(line) <= WHOLE_CHARACTERS and "\n" not in line else None


def _end_of(text: str) -> str:
    """Return the last words of an unchanged text, on the line of the edit after it."""
    line = text[-4 * CONTEXT_CHARACTERS :].rpartition("\n")[2]
    if len(line) <= CONTEXT_CHARACTERS:
        return line
    kept = line[-CONTEXT_CHARACTERS:]
    return f"{ELLIPSIS}{kept.partition(' ')[2] if ' ' in kept[:-1] else kept}"


def _start_of(text: str) -> str:
    """Return the first words of an unchanged text, on the line of the edit before it."""
    line = text[: 4 * CONTEXT_CHARACTERS].partition("\n")[0]
    if len(line) <= CONTEXT_CHARACTERS:
        return line
    kept = line[:CONTEXT_CHARACTERS]
    return f"{kept.rpartition(' ')[0] if ' ' in kept[1:] else kept}{ELLIPSIS}"


def _cut(text: str | None, max_characters: int) -> str | None:
    if text is None or len(text) <= max_characters:
        return text
    return text[: max_characters - 1] + ELLIPSIS
