"""Messages about failed checks."""

from __future__ import annotations

from collections.abc import Iterable

NAMED = 3


class Messages:
    """A list of messages; checks that succeed add nothing."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def same(self, name: str, value: object, expected: object) -> None:
        """Check that two values are equal."""
        if value != expected:
            self.texts.append(f"{name}: {value}, expected {expected}")

    def none(self, name: str, items: Iterable[str]) -> None:
        """Check that there are no items; the message lists the first few."""
        if listed := sorted(items):
            more = " …" if len(listed) > NAMED else ""
            self.texts.append(f"{name}: {len(listed)} ({', '.join(listed[:NAMED])}{more})")
