"""MongoDB: the server, a write, and whether the database is as this Freshet wants it."""

from __future__ import annotations

from crawler.config import Config
from crawler.doctor import clocks, disks
from crawler.doctor.findings import Finding, failed, ok, warning
from crawler.errors import StorageError
from crawler.storage import health, indexes
from crawler.storage.client import Database
from crawler.storage.duplicates import opening
from crawler.storage.health import Server
from crawler.storage.indexes import Lack
from crawler.storage.schema import VERSION
from crawler.utils.time import Clock

# $unionWith came with 4.4; the tests run on 6.0.
NEEDED, TESTED = (4, 4), (6, 0)
# A crawl waits for its batches; a visit more than once.
SLOW_MS, SLOW_WRITE_MS = 50.0, 500.0
SERVER, WRITE, DATA, INDEXES = "mongodb", "mongodb write", "mongodb data", "mongodb indexes"
CLAIMS = "near-duplicates"


async def check(db: Database, config: Config) -> list[Finding]:
    """All of it; raises StorageError when the server goes away."""
    server = await health.server(db)
    clock = clocks.of_mongodb(server.ahead_seconds, config.max_clock_skew_seconds)
    found = [*of_server(server, config), clock, await _write(db, config)]
    version = await health.data_version(db)
    found.append(data(db.name, version))
    if version == VERSION:
        found += of_indexes(await indexes.lacking(db))
        found += await _claims(db, config)
    return found


async def _claims(db: Database, config: Config) -> list[Finding]:
    """Whether crawls with these settings can compare posts with those that are stored."""
    asked, stored = opening.asked_of(config), await db.meta.find_one(opening.META)
    if asked is None or stored is None:
        return []
    if refused := await opening.refusal(db, asked, stored):
        said, _, todo = refused.rpartition(": ")
        return [failed(CLAIMS, said, todo)]
    said = f"compared by {stored['scheme']}, claims are in {stored['keeper']}"
    if asked["keeper"] != stored["keeper"]:
        said += f", the next crawl moves them to {asked['keeper']}"
    return [ok(CLAIMS, said)]


def of_server(server: Server, config: Config) -> list[Finding]:
    """What a server says of itself."""
    version = ".".join(map(str, server.version))
    said = f"{version}, {_kind(server)}, {server.round_trip_ms:.1f} ms there and back"
    if server.version < NEEDED:
        found = [failed(SERVER, said, "Freshet needs MongoDB 4.4 or newer")]
    elif server.version < TESTED:
        found = [warning(SERVER, said, "the tests run on 6.0: take that or a newer one")]
    elif server.round_trip_ms > SLOW_MS:
        found = [warning(SERVER, said, "let it run near the crawls: each batch waits for it")]
    else:
        found = [ok(SERVER, said)]
    if server.members == 2:
        todo = "add a third member: when one of two is away, nothing can be written"
        found.append(warning(SERVER, f"replica set {server.replica_set} has two members", todo))
    if server.free_bytes is not None:
        gigabytes = disks.least_gb(config)
        found.append(disks.room("mongodb disk", server.free_bytes, "the server's data", gigabytes))
    return found


def _kind(server: Server) -> str:
    if server.replica_set:
        return f"replica set {server.replica_set} of {server.members}"
    return "a router of shards" if server.is_router else "standing alone"


async def _write(db: Database, config: Config) -> Finding:
    try:
        taken_ms = await health.write(db, Clock().now(), config.mongo_timeout_seconds)
    except StorageError as error:
        todo = "look at the server's log, disk and journal, and at the user's role (readWrite)"
        return failed(WRITE, f"cannot be written with majority and journal: {error}", todo)
    said = f"written by a majority, in the journal after {taken_ms:.1f} ms, read and removed"
    if taken_ms > SLOW_WRITE_MS:
        return warning(WRITE, said, "look at the server's disk, and at the lag of the members")
    return ok(WRITE, said)


def data(name: str, version: int | None) -> Finding:
    """The version of the data beside that of this Freshet. name: of the database."""
    if version is None:
        return ok(DATA, f"{name}: none yet; the first command makes the collections")
    if version > VERSION:
        said = f"{name}: version {version}, this Freshet knows up to {VERSION}"
        return failed(DATA, said, "upgrade Freshet, or name another database")
    if version < VERSION:
        said = f"{name}: version {version}, the next command brings it to {VERSION}"
        return warning(DATA, said, "make a backup first; stop all other workers meanwhile")
    return ok(DATA, f"{name}: version {version}")


def of_indexes(lacks: list[Lack]) -> list[Finding]:
    """The schema's indexes that are not there."""
    if not lacks:
        return [ok(INDEXES, "all are there")]
    return [_lacking(lack) for lack in lacks]


def _lacking(lack: Lack) -> Finding:
    is_wrong = "is not as it should be" if lack.differs else "is missing"
    said = f"{lack.name} of {lack.collection} {is_wrong}"
    todo = f"in mongosh: {lack.command}"
    if lack.unique:
        return failed(INDEXES, f"{said}: it keeps two from claiming the same", todo)
    return warning(INDEXES, f"{said}: queries are slow", todo)
