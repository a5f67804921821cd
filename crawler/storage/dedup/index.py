"""Opening the index of the posts' sketches: what is stored there must be what the settings ask for.

`meta` says which scheme the stored sketches are of, and whether MongoDB or Redis keeps the claims;
`index` names the claims in Redis, so that those of an earlier time are not taken for them. While
`keeper` is MongoDB, `index` tells of a move to Redis that has not ended.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from bson import ObjectId
from pymongo import UpdateOne
from pymongo.errors import DuplicateKeyError

from crawler.config import Config
from crawler.dedup.model import ALONE, Candidate, Claim, Verdicts
from crawler.dedup.scheme import Scheme, scheme_of
from crawler.errors import BandsLost, ConfigError, StorageError
from crawler.storage import runs
from crawler.storage.client import Database, Document
from crawler.storage.dedup import boilerplate, clusters, edits, signatures
from crawler.storage.dedup import edits as leaving
from crawler.storage.dedup import mongo as inserting
from crawler.storage.dedup.registry import Claimed, Registry

if TYPE_CHECKING:
    from crawler.storage.dedup.redis import RedisBands

logger = logging.getLogger(__name__)
META: Document = {"_id": "duplicates"}
MONGODB, REDIS, REBUILDING = "mongodb", "redis", "rebuilding"
INDEX, FILLING = "index", "filling"
# Others may change what was read, or Redis may lose what was written, so often.
MAX_AGREEMENTS = FILLINGS = 10
# A pass that began longer ago and has not ended was cut off.
AT_WORK = timedelta(hours=1)
BATCH = 1000
HINT = "scrapy duplicates rebuild compares all posts anew"


@asynccontextmanager
async def opened(db: Database, config: Config) -> AsyncIterator[Registry | None]:
    """The index as the settings ask for it; None where duplicates are off.

    Claims move from MongoDB to Redis where the settings ask for that. Redis has to answer first,
    and `meta` says that they have moved when all of them are there.
    Raises StorageError where what is stored is of another scheme, or kept elsewhere.
    """
    asked = asked_of(config)
    if asked is None:
        yield None
        return
    scheme = scheme_of(config.duplicates, config.duplicate_threshold)
    if config.redis_url is None:
        await _agree(db, asked)
        async with boilerplate.stored_at_end(
            Registry.of(db, scheme, None, config.duplicate_date_days)
        ) as registry:
            yield registry
        return
    async with _connected(db, config) as bands:
        registry = Registry.of(db, scheme, bands, config.duplicate_date_days)
        meta = await _agree(db, asked)
        await refill(registry, bands, meta[INDEX])
        if meta["keeper"] != REDIS:
            await _note_move(db, asked, meta[INDEX])
        # No more than what a process left that was ended as it moved claims.
        await db.signatures.update_many({"bands": {"$exists": True}}, {"$unset": {"bands": ""}})
        async with boilerplate.stored_at_end(registry):
            yield registry


@asynccontextmanager
async def as_stored(db: Database, config: Config, *, fills: bool = True) -> AsyncIterator[Registry]:
    """The index as it is, whatever the settings ask for: to take posts out of it.

    fills: whether Redis is to hold all claims, where it has lost them
    """
    meta = await db.meta.find_one(META) or {}
    name = meta.get("scheme", config.duplicates).partition("-")[0]
    scheme = scheme_of("characters" if name == "off" else name, config.duplicate_threshold)
    if meta.get("keeper") != REDIS:
        async with boilerplate.stored_at_end(
            Registry.of(db, scheme, None, config.duplicate_date_days)
        ) as registry:
            yield registry
        return
    if config.redis_url is None:
        raise ConfigError("near-duplicates are claimed in Redis: REDIS_URL has to name it")
    async with _connected(db, config) as bands:
        registry = Registry.of(db, scheme, bands, config.duplicate_date_days)
        if fills:
            await refill(registry, bands, meta[INDEX])
        async with boilerplate.stored_at_end(registry):
            yield registry


@asynccontextmanager
async def _connected(db: Database, config: Config) -> AsyncIterator[RedisBands]:
    from crawler.storage.dedup.redis import RedisBands
    from crawler.storage.redis import open_redis

    url, seconds = config.redis_url or "", config.commit_retry_seconds
    client = await open_redis(url, retry_seconds=seconds)
    try:
        yield RedisBands(client, f"freshet:{db.name}:duplicates")
    finally:
        await client.aclose()


def asked_of(config: Config) -> Document | None:
    """What the settings ask of `meta`; None where duplicates are off."""
    if config.duplicates == "off":
        return None
    scheme = scheme_of(config.duplicates, config.duplicate_threshold)
    return {"scheme": scheme.name, "keeper": MONGODB if config.redis_url is None else REDIS}


def with_index(asked: Document) -> Document:
    """What is noted of a new index; each in Redis has a name of its own."""
    return asked | ({INDEX: ObjectId()} if asked["keeper"] == REDIS else {})


def name_of(scheme: Scheme, index: ObjectId) -> str:
    """What Redis is told of an index that is whole."""
    return f"{scheme.name} {index}"


async def _agree(db: Database, asked: Document) -> Document:
    """Note in an empty index what it is to be of; raise StorageError where it is of another.

    Returns `meta`, which names a move to Redis where one has to be made.
    """
    for _ in range(MAX_AGREEMENTS):
        found = await db.meta.find_one(META)
        if found is None:
            with suppress(DuplicateKeyError):
                await db.meta.insert_one(META | with_index(asked))
        elif (refused := await refusal(db, asked, found)) is not None:
            # Another process may have moved the claims, and begun to crawl.
            if await db.meta.find_one(META) == found:
                raise StorageError(refused)
        elif not _is_of(found, asked) and await _is_empty(db):
            await db.meta.replace_one(found, META | with_index(asked))
        elif asked["keeper"] == REDIS and INDEX not in found:
            lacking = META | {"keeper": found["keeper"], INDEX: {"$exists": False}}
            await db.meta.update_one(lacking, {"$set": {INDEX: ObjectId()}})
        elif asked["keeper"] == MONGODB and INDEX in found:
            # Redis will lack what is claimed from now on: that move has to be begun anew.
            await db.meta.update_one(found, {"$unset": {INDEX: ""}})
        else:
            return found
    raise StorageError("other processes change where claims are kept: start again")


async def refusal(db: Database, asked: Document, found: Document) -> str | None:
    """Why a crawl with these settings cannot use an index; None if it can.

    asked: see `asked_of`; found: `meta`
    """
    if found.get(REBUILDING):
        return f"near-duplicates are being rebuilt, or that was cut short: {HINT}"
    if _is_of(found, asked) or await _is_empty(db):
        return None
    is_move = found | asked == found | {"keeper": REDIS}
    if is_move and not await runs.at_work(db, AT_WORK):
        return None
    return (
        f"the stored posts are compared by {found['scheme']} with claims in {found['keeper']}, "
        f"the settings ask for {asked['scheme']} in {asked['keeper']}: {HINT}"
    )


def _is_of(found: Document, asked: Document) -> bool:
    return found | asked == found


async def _is_empty(db: Database) -> bool:
    return await db.signatures.find_one({}, {"_id": 1}) is None


async def _note_move(db: Database, asked: Document, index: ObjectId) -> None:
    """Nobody claims in MongoDB any more; raises StorageError where somebody began to."""
    moving = META | {"keeper": MONGODB, INDEX: index}
    if await db.meta.find_one(moving) is not None and not await runs.at_work(db, AT_WORK):
        await db.meta.update_one(moving, {"$set": asked})
    if await db.meta.find_one(META | {"keeper": REDIS, INDEX: index}) is None:
        raise StorageError(
            "a crawl without REDIS_URL began while claims were moved to Redis: "
            "start again when it has ended"
        )
    logger.info("Near-duplicates are claimed in Redis from now on")


async def refill(registry: Registry, bands: RedisBands, index: ObjectId) -> None:
    """Make Redis hold what MongoDB does, where it does not hold this index, or has lost it."""
    whole, filling = name_of(registry.scheme, index), f"{FILLING} {index}"
    for _ in range(FILLINGS):
        held = await bands.scheme()
        if held == whole:
            return
        logger.info("Redis holds no claims of near-duplicates; they are taken from MongoDB")
        # Two may do it at the same moment: whoever is late finds that it is done, or goes on.
        with suppress(BandsLost):
            if held == filling or await bands.empty(held, filling):
                await _fill(registry, bands)
                await bands.change(filling, whole)
    raise BandsLost("Redis loses its claims again and again: start again when it is at rest")


async def _fill(registry: Registry, bands: RedisBands) -> None:
    await _found_clusters(registry)
    cursor = registry.signatures.find({}, signatures.OF_OWNER)
    # In the order of their creation, originals own what their copies would own else.
    cursor = cursor.sort([("created", 1)]).allow_disk_use(True).batch_size(BATCH)
    while rows := await cursor.to_list(BATCH):
        await bands.put(signatures.claims_of(map(signatures.owner_of, rows)))


async def _found_clusters(registry: Registry) -> None:
    """Give posts without a cluster their own: MongoDB founds one when the first copy comes."""
    lacking: Document = {"cluster": {"$exists": False}}
    cursor = registry.signatures.find(lacking, {"_id": 1}).batch_size(BATCH)
    while rows := await cursor.to_list(BATCH):
        await registry.signatures.bulk_write(
            [UpdateOne(row | lacking, {"$set": {"cluster": ObjectId()}}) for row in rows],
            ordered=False,
        )


async def claim_shared(
    registry: Registry, candidates: Sequence[Candidate], now: datetime
) -> Claimed:
    """Store originals and copies in the clusters that the script says."""
    assert registry.shared is not None
    asked = [Claim(one.id, ObjectId().binary, one.sketch) for one in candidates]
    said = await registry.shared.claim(asked, registry.scheme.threshold)
    rows = [
        signatures.row_of(registry, candidate, (), now) | {"cluster": ObjectId(cluster)}
        for candidate, cluster in zip(candidates, said, strict=True)
    ]
    refused = await signatures.insert(registry, rows)
    stored = await signatures.by_id(registry, refused) if refused else {}
    claimed = Claimed()
    for candidate, own, row in zip(candidates, asked, rows, strict=True):
        if candidate.id in stored:
            claimed.known.append((candidate, stored[candidate.id]))
        elif candidate.id in refused:
            claimed.lost.append(candidate)
        elif row["cluster"].binary == own.cluster:
            claimed.founders.append((candidate, row["cluster"]))
        else:
            claimed.members.append((candidate, row["cluster"]))
    return claimed


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
    claim_new = inserting.claim if registry.shared is None else claim_shared
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
