"""What is said of a query that has no result."""

from __future__ import annotations


class QueryFailed(Exception):
    """The query has no result, in words without secrets. hangs: the database does not answer."""

    def __init__(self, reason: str, *, hangs: bool = False) -> None:
        super().__init__(reason)
        self.hangs = hangs
