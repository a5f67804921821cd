"""What the posts of a batch are: originals, or duplicates of what is stored.

Every step may be repeated, so a batch that met a lost connection is simply claimed again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from crawler.sketches.claim import ALONE, Candidate, Verdicts
from crawler.storage.client import Document
from crawler.storage.duplicates import clusters, edits, inserting, leaving, shared, signatures
from crawler.storage.duplicates.registry import Registry

logger = logging.getLogger(__name__)
ROUNDS = 10


async def claim(registry: Registry, candidates: Iterable[Candidate], now: datetime) -> Verdicts:
    """The verdict on each post, by its key, with its claim stored.

    Of one key the last candidate counts; of posts that come together the earliest is original.
    An edit may let go of copies: they are claimed anew, and their verdicts come along.
    """
    waiting = list({candidate.id: candidate for candidate in candidates}.values())
    found: Verdicts = {}
    for _ in range(ROUNDS):
        if not waiting:
            return found
        waiting.sort(key=lambda one: (one.created, one.key))
        waiting = await _once(registry, waiting, found, now)
    for candidate in waiting:
        logger.warning("%s: its duplicates come and go; taken for an original", candidate.key)
        found[candidate.key] = ALONE
    return found


async def _once(
    registry: Registry, waiting: Sequence[Candidate], found: Verdicts, now: datetime
) -> list[Candidate]:
    """Claim; those that have to be claimed again."""
    edited = [candidate.id for candidate in waiting if candidate.edited]
    stored = await signatures.by_id(registry, edited) if edited else {}
    how = inserting if registry.shared is None else shared
    claimed = await how.claim(registry, [one for one in waiting if one.id not in stored], now)
    found |= dict.fromkeys((one.key for one in claimed.originals), ALONE)
    joined, again, before = await clusters.join(registry, claimed.copies, now)
    found |= joined
    stored |= await signatures.by_id(registry, [one.id for one in before]) if before else {}
    stored |= {one.id: row for one, row in claimed.known}
    standing: list[tuple[Candidate, Document]] = []
    for candidate in waiting:
        if candidate.id in stored:
            again += await _known(registry, candidate, stored[candidate.id], standing, now)
    found |= dict.fromkeys((one.key for one, _ in standing), ALONE)
    members = [(one, row["cluster"]) for one, row in standing if "cluster" in row]
    found |= await clusters.verdicts(registry, members, now)
    return again


async def _known(
    registry: Registry,
    candidate: Candidate,
    stored: Document,
    standing: list[tuple[Candidate, Document]],
    now: datetime,
) -> list[Candidate]:
    """A post that is stored stands where it was, or it is claimed anew with whom it lets go."""
    candidate = replace(candidate, created=min(candidate.created, stored["created"]))
    strays: list[Candidate] = []
    if stored.get("ghost"):
        await edits.renew(registry, candidate, stored)
    elif stored["sketch"] != candidate.sketch.encode():
        edited = await edits.judge(registry, candidate, stored)
        if not edited.stays:
            await leaving.release(registry, [candidate.key], now)
            return [replace(candidate, edited=False)]
        strays = edited.strays
        await leaving.release(registry, [stray.key for stray in strays], now)
        await edits.renew(registry, candidate, stored)
    elif candidate.created < stored["created"]:
        await signatures.predate(registry, candidate)
    standing.append((candidate, stored))
    return strays
