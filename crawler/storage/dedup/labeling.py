"""Labels that people give to pairs of posts, applied to the stored clusters immediately."""

from __future__ import annotations

from datetime import datetime

from crawler.dedup.model import id_of
from crawler.errors import Busy, ConfigError
from crawler.storage.client import Database, Document
from crawler.storage.dedup import claims, edits, flags, labels, originals, signatures
from crawler.storage.dedup.index import HINT, META, REBUILDING
from crawler.storage.dedup.labels import Label
from crawler.storage.dedup.registry import Registry


async def label(
    db: Database,
    registry: Registry,
    posts: tuple[str, str],
    now: datetime,
    *,
    same: bool,
    by: str,
) -> Label:
    """Store that two posts are the same, or are not, and move one of them if necessary.

    Posts that have not been compared yet keep their place; the next comparison respects the label.
    Raises ConfigError for posts that are not stored, and Busy during a rebuild.
    """
    a, b = posts
    if a == b:
        raise ConfigError(f"both are the same post: {a}")
    found = set(await db.posts.distinct("_id", {"_id": {"$in": [a, b]}}))
    if missing := [post for post in posts if post not in found]:
        raise ConfigError(f"post not found: {missing[0]}. It may have been removed")
    meta = await db.meta.find_one(META) or {}
    if meta.get(REBUILDING):
        raise Busy(f"a rebuild of near-duplicates is running or was interrupted: {HINT}")
    rows = await signatures.by_id(registry, [id_of(a), id_of(b)])
    similarity = 0.0
    if len(rows) == len(posts):
        first, second = (signatures.owner_of(row).sketch for row in rows.values())
        similarity = first.similarity(second)
    before: Document = {
        "flagged": _are_together(rows), "similarity": similarity, "scheme": registry.scheme.name,
    }  # fmt: skip
    await labels.put(db, posts, now, same=same, by=by, first=before)
    if len(rows) == len(posts) and _are_together(rows) != same:
        await _move(db, registry, await _later(registry, rows), now)
    stored = await labels.of_pair(db, a, b)
    assert stored is not None
    return stored


def _are_together(rows: dict[int, Document]) -> bool:
    """Return whether two signatures are in one cluster."""
    clusters = [row.get("cluster") for row in rows.values()]
    return len(clusters) > 1 and clusters[0] is not None and clusters[0] == clusters[1]


async def _later(registry: Registry, rows: dict[int, Document]) -> Document:
    """Return the signature of the post that moves: not an original, else the later one."""
    clusters = {row["cluster"] for row in rows.values() if "cluster" in row}
    cursor = registry.clusters.find({"_id": {"$in": list(clusters)}}, {"original": 1})
    leading = {row["original"] async for row in cursor}
    return max(
        rows.values(), key=lambda row: (row["_id"] not in leading, row["created"], row["post"])
    )


async def _move(db: Database, registry: Registry, row: Document, now: datetime) -> None:
    """Claim a post again, and update all posts whose verdicts change with it."""
    left = {row["cluster"]} if "cluster" in row else set()
    freed = await edits.release_strays(registry, [row], now)
    verdicts = await claims.claim(registry, freed, now)
    await flags.confirm(db, registry, verdicts, written=())
    await flags.settle(db, registry, await originals.existing_clusters(registry, left))
