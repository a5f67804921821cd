"""Sentences on what is not as it should be."""

from __future__ import annotations

from collections.abc import Iterable

NAMED = 3


class Sentences:
    """A list of them; nothing is added where all is well."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def same(self, name: str, found: object, wanted: object) -> None:
        """Both are to be equal."""
        if found != wanted:
            self.said.append(f"{name}: {found}, should be {wanted}")

    def none(self, name: str, some: Iterable[str]) -> None:
        """There is to be nothing; the first few are named."""
        if listed := sorted(some):
            more = " …" if len(listed) > NAMED else ""
            self.said.append(f"{name}: {len(listed)} ({', '.join(listed[:NAMED])}{more})")
