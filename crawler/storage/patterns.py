"""How many targets each pattern of a wrapper has: kept in `sites`, for all who crawl it at once.

Each target has the digest of its pattern, each page that brings new ones adds their numbers, so no
pass has to look through all targets. What a crash or a deletion has left wrong is set right when a
pattern seems full: then, once a pass, its targets are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pymongo import ReturnDocument

from crawler.extract.links import Traps
from crawler.items import Link
from crawler.storage.client import Database, Document


class Patterns:
    """The patterns of one pass's wrapper."""

    def __init__(self, db: Database, traps: Traps) -> None:
        self._db = db
        self._spider = traps.wrapper.name
        self._counted: set[str] = set()
        self.traps = traps

    async def open(self) -> None:
        """Take over what former passes have counted."""
        found = await self._db.sites.find_one({"_id": self._spider}, {"patterns": 1})
        self.traps.targets |= (found or {}).get("patterns", {})

    async def admitted(self, links: Sequence[Link], depth: int) -> list[Link]:
        """Those of new links that may become targets."""
        for pattern in self.traps.filled(links) - self._counted:
            await self._count(pattern)
        return self.traps.sifted(links, depth)

    async def added(self, links: Sequence[Link]) -> None:
        """Note links that have become targets; what others have added meanwhile is learnt."""
        new = Counter(link.pattern for link in links if link.pattern)
        if not new:
            return
        more: Document = {"$inc": {f"patterns.{name}": n for name, n in new.items()}}
        found = await self._db.sites.find_one_and_update(
            {"_id": self._spider}, more, {"patterns": 1}, return_document=ReturnDocument.AFTER
        )
        self.traps.targets |= (found or {}).get("patterns", {})

    async def _count(self, pattern: str) -> None:
        self._counted.add(pattern)
        query = {"spider": self._spider, "pattern": pattern}
        n = await self._db.targets.count_documents(query)
        await self._db.sites.update_one({"_id": self._spider}, {"$set": {f"patterns.{pattern}": n}})
        self.traps.targets[pattern] = n
