"""Messages about failed checks."""

from __future__ import annotations

from collections.abc import Iterable

NAMED = 3


class Sentences:
    """A list of messages; checks that succeed add nothing."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def same(self, name: str, found: object, wanted: object) -> None:
        """Check that two values are equal."""
        if found != wanted:
            self.said.append(f"{name}: {found}, expected {wanted}")

    def none(self, name: str, some: Iterable[str]) -> None:
        """Check that there are no items; the message lists the first few."""
        if listed := sorted(some):
            more = " …" if len(listed) > NAMED else ""
            self.said.append(f"{name}: {len(listed)} ({', '.join(listed[:NAMED])}{more})")
