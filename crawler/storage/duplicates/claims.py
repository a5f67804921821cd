"""What the posts of a batch are: originals, or duplicates of what is stored.

Every step may be repeated, so a batch that met a lost connection is simply claimed again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from crawler.dedup.model import ALONE, Candidate, Claim, Verdicts
from crawler.storage.client import Document
from crawler.storage.duplicates import (
    boilerplate,
    clusters,
    edits,
    inserting,
    leaving,
    shared,
    signatures,
)
from crawler.storage.duplicates.registry import Registry

logger = logging.getLogger(__name__)
ROUNDS = 10


async def claim(registry: Registry, candidates: Iterable[Candidate], now: datetime) -> Verdicts:
    """The verdict on each post, by its key, with its claim stored.

    Of one key the last candidate counts; of posts that come together the earliest is original.
    An edit may let go of copies: they are claimed again, and their verdicts come along. So are
    posts that have something which these show to be boilerplate of their source.
    """
    given = list({candidate.id: candidate for candidate in candidates}.values())
    found = Verdicts()
    weighed = await boilerplate.weigh(registry, given, now)
    await _claim(registry, weighed, found, now)
    copies = [
        (one, original)
        for one in weighed.candidates
        if (original := found.get(one.key, ALONE).duplicate_of)
    ]
    if registry.boilerplate is not None and copies:
        again = await boilerplate.weigh_copies(registry, copies)
        await _claim(registry, again, found, now)
    return found


async def _claim(
    registry: Registry, weighing: boilerplate.Weighing, found: Verdicts, now: datetime
) -> None:
    waiting = weighing.candidates
    for _ in range(ROUNDS):
        if not waiting:
            break
        waiting.sort(key=lambda one: (one.created, one.key))
        waiting = await _once(registry, waiting, found, now)
    for candidate in waiting:
        logger.warning("%s: its duplicates come and go; taken for an original", candidate.key)
        found[candidate.key] = ALONE
    await boilerplate.note(registry, weighing.again)


async def _once(
    registry: Registry, waiting: Sequence[Candidate], found: Verdicts, now: datetime
) -> list[Candidate]:
    """Claim; those that have to be claimed again."""
    edited = [candidate.id for candidate in waiting if candidate.edited]
    stored = await signatures.by_id(registry, edited) if edited else {}
    claim_new = inserting.claim if registry.shared is None else shared.claim
    claimed = await claim_new(registry, [one for one in waiting if one.id not in stored], now)
    found |= dict.fromkeys((one.key for one in claimed.alone), ALONE)
    found |= await clusters.verdicts(registry, claimed.members, now)
    found |= await clusters.standing(registry, claimed.founders, now)
    known = [(one, stored[one.id]) for one in waiting if one.id in stored] + claimed.known
    return claimed.lost + (await _known(registry, known, found, now) if known else [])


async def _known(
    registry: Registry, known: Sequence[tuple[Candidate, Document]], found: Verdicts, now: datetime
) -> list[Candidate]:
    """Posts that are stored stand where they were, or are claimed anew with whom they let go."""
    if late := [(one, row) for one, row in known if signatures.is_late(one, row)]:
        await _keep(registry, late, found, now)
        known = [(one, row) for one, row in known if not signatures.is_late(one, row)]
    standing: dict[int, Candidate] = {}
    # Posts that share no cluster leave together: a source that was learned has many of them.
    shared = await clusters.there(
        registry, {row["cluster"] for _, row in known if "cluster" in row}
    )
    lone = [
        replace(one, edited=False, **_earlier(one, row))
        for one, row in known
        if row.get("cluster") not in shared and row["sketch"] != one.sketch.encode()
    ]
    await leaving.release(registry, [one.key for one in lone], now, _fenced(lone))
    again, left = lone, {one.id for one in lone}
    for candidate, row in known:
        if candidate.id in left:
            continue
        one = replace(candidate, **_earlier(candidate, row))
        stands, others = await _stands(registry, one, row, now)
        again += others
        if stands:
            standing[one.id] = one
    await signatures.raise_fences(registry, standing.values())
    found |= dict.fromkeys((one.key for one in standing.values()), ALONE)
    # Read again: they may have got their first copies since, or have been released.
    rows = await signatures.by_id(registry, standing)
    members = [(standing[id_], row["cluster"]) for id_, row in rows.items() if "cluster" in row]
    found |= await clusters.standing(registry, members, now)
    return again + [one for id_, one in standing.items() if id_ not in rows]


async def _keep(
    registry: Registry,
    late: Sequence[tuple[Candidate, Document]],
    found: Verdicts,
    now: datetime,
) -> None:
    """What newer visits have claimed stays; in Redis these claims were made before it was known."""
    owners = [signatures.owner_of(row) for _, row in late]
    if registry.shared is not None:
        own = zip(late, owners, strict=True)
        await registry.shared.release(
            [Claim(one.id, owner.cluster.binary, one.sketch) for (one, _), owner in own]
        )
        await registry.shared.put(signatures.claims_of(owners))
    found |= dict.fromkeys((one.key for one, _ in late), ALONE)
    stored = [owner.claimed_again() for owner in owners]
    members = [(one, to.cluster) for one, to in zip(stored, owners, strict=True) if to.cluster]
    found |= await clusters.standing(registry, members, now)


def _fenced(candidates: Iterable[Candidate]) -> dict[str, Mapping[str, int]]:
    return {one.key: one.fences for one in candidates}


def _earlier(candidate: Candidate, stored: Document) -> dict[str, Any]:
    """What a post has that is stored already: it is as old as the older says."""
    return {
        "created": min(candidate.created, stored["created"]),
        "seen": min(candidate.seen or candidate.created, stored["seen"]),
        "source": stored["source"],
        "fences": signatures.fences_of(stored) | candidate.fences,
    }


async def _stands(
    registry: Registry, candidate: Candidate, stored: Document, now: datetime
) -> tuple[bool, list[Candidate]]:
    """Whether a stored post stays what it is, and the posts that have to be claimed anew."""
    if stored.get("item") != candidate.item:
        await signatures.set_items(registry, {candidate.id: candidate.item})
    if stored["sketch"] == candidate.sketch.encode():
        if signatures.is_earlier(candidate, stored):
            await signatures.predate(registry, candidate)
        return True, []
    edited = await edits.judge(registry, candidate, stored)
    if not edited.stays:
        await leaving.release(registry, [candidate.key], now, _fenced([candidate]))
        return False, [replace(candidate, edited=False)]
    strays = await edits.let_go(registry, edited.strays, now)
    if not await edits.renew(registry, candidate, stored):
        return False, [candidate, *strays]
    return True, strays
