"""The doctor's checks of servers: MongoDB and what it stores, the data folder, Redis, clocks."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Sequence
from datetime import datetime, timedelta

from crawler.config import Config
from crawler.errors import FreshetError, StorageError
from crawler.frontier.lifecycle import repair_log
from crawler.ops.doctor_sites import Site
from crawler.ops.findings import Check, Finding, Say, Status, failed, ok, warning
from crawler.storage import health, invariants, leases, recovery, runs, sites, targets
from crawler.storage.client import Database
from crawler.storage.dedup import index
from crawler.storage.due import MAX_COUNTED, LastRun, last_run
from crawler.storage.embedded import EmbeddedServer
from crawler.storage.health import IndexProblem, Server
from crawler.storage.invariants import Invariant
from crawler.storage.leases import Holder
from crawler.storage.redis import RedisServer, redis_server
from crawler.storage.schema import VERSION
from crawler.utils.text import count, megabytes, span
from crawler.utils.time import Clock

# $unionWith came with MongoDB 4.4; the tests run on 6.0.
MIN_MONGODB, TESTED_MONGODB = (4, 4), (6, 0)
# Before Redis 5.0 a script that read the time could not write.
MIN_REDIS = (5, 0)
# A crawl waits for its batches; a visit more than once.
SLOW_MS, SLOW_WRITE_MS = 50.0, 500.0
GB, MB = 1024**3, 1024**2
# Of a database's disk: below it is time to look. A run ends with less than FRESHET_MIN_FREE_MB.
LITTLE_GB = 2.0
# Of the data folder's disk, where it holds only locks.
LOCKS_GB = 0.05
MAX_SKEW_SECONDS = 1.0
# From this share of failed pages on something is wrong with the site, or with its definition.
MANY_FAILED = 0.1
# Workers of a run that are named.
MAX_SHOWN = 3
# An unfinished run that began longer ago does not run any more.
LONGEST_RUN = timedelta(hours=1)

SET_CLOCKS = "set the clocks of all machines by NTP: timedatectl set-ntp true"
LOSES = (
    "a crash loses leased entries (they are visited again) and all near-duplicate claims "
    "(the next crawl restores them from MongoDB while other crawls wait)"
)
REPAIR = "scrapy doctor --deep --repair adds them to the log"
VISIT = "scrapy doctor --deep --repair makes their targets due; then run scrapy crawl"
REMOVE = "scrapy doctor --deep --repair removes what was never acknowledged"
REBUILD = "scrapy duplicates rebuild"
# What to do about an invariant that does not hold; REBUILD for those of near-duplicates.
ADVICE = {
    Invariant.LAST_LOGGED: REPAIR,
    Invariant.NEWEST: VISIT,
    Invariant.REQUESTED: REPAIR,
    Invariant.VERSION_LOGGED: REMOVE,
    Invariant.HAS_VERSION: VISIT,
    Invariant.POST_TARGET: VISIT,
    Invariant.POST_LOGGED: VISIT,
}


def check_data_folder(config: Config) -> list[Finding]:
    """Return whether the data folder can be written; one that is missing goes by its parent."""
    folder = config.data_dir.expanduser().absolute()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    problem = ""
    if not existing.is_dir():
        problem = f"{existing} is no folder"
    else:
        try:
            with tempfile.TemporaryFile(dir=existing):
                pass
        except OSError as error:
            problem = os.strerror(error.errno) if error.errno else str(error)
    if problem:
        todo = "set FRESHET_DATA_DIR to a folder that can be written"
        return [failed(Check.DATA_FOLDER, f"{folder}: {problem}", todo)]
    limits = (LOCKS_GB, LOCKS_GB) if config.mongo_uri else (min_free_gb(config), LITTLE_GB)
    free_bytes = shutil.disk_usage(existing).free
    return [judge_room(Check.DATA_FOLDER, free_bytes, str(folder), *limits)]


def min_free_gb(config: Config) -> float:
    """Return the free space of a database's disk below which a run ends."""
    return config.min_free_mb * MB / GB


def judge_room(
    check: str, free_bytes: float, where: str, min_gb: float, little_gb: float = LITTLE_GB
) -> Finding:
    """Return whether a disk has room: not enough below `min_gb`, little below `little_gb`."""
    free_gb = free_bytes / GB
    result = f"{where}: {free_gb:,.1f} GB free"
    if free_gb < min_gb:
        return failed(check, result, "free disk space (scrapy prune) or use a larger disk")
    if free_gb < little_gb:
        return warning(check, result, "free disk space soon (scrapy prune) or use a larger disk")
    return ok(check, result)


def check_embedded(config: Config, *, start: bool) -> tuple[Finding, bool]:
    """Return the finding, and whether the embedded server answers; `start` starts it."""
    server = EmbeddedServer.of(config)
    try:
        if start:
            server.start()
    except StorageError as error:
        return failed(Check.EMBEDDED, str(error)), False
    pid = server.pid()
    if server.answers():
        return ok(Check.EMBEDDED, f"process {pid} answers, data in {server.folder}"), True
    if pid is not None:
        message, _, todo = server.unresponsive().partition(": ")
        return failed(Check.EMBEDDED, message, todo), False
    message = f"not running; the next command starts it; data in {server.folder}"
    return ok(Check.EMBEDDED, message), False


async def check_mongodb(db: Database, config: Config) -> list[Finding]:
    """Return the findings of the server and of Freshet's database; raises StorageError."""
    server = await health.server(db)
    clock = judge_clock("MongoDB", server.ahead_seconds, config.max_clock_skew_seconds)
    findings = [*judge_mongodb(server, config), clock, await _check_write(db, config)]
    version = await health.data_version(db)
    findings.append(judge_data_version(db.name, version))
    if version != VERSION:
        return findings
    findings += judge_indexes(await health.index_problems(db))
    # Whether crawls with these settings can compare posts with those that are stored.
    wanted = index.wanted_meta(config)
    stored = await db.meta.find_one(index.META)
    if wanted is None or stored is None:
        return findings
    if refused := await index.refusal(db, wanted, stored):
        message, _, todo = refused.rpartition(": ")
        return [*findings, failed(Check.NEAR_DUPLICATES, message, todo)]
    message = f"compared by {stored['scheme']}, claims are in {stored['keeper']}"
    if wanted["keeper"] != stored["keeper"]:
        message += f", the next crawl moves them to {wanted['keeper']}"
    return [*findings, ok(Check.NEAR_DUPLICATES, message)]


async def _check_write(db: Database, config: Config) -> Finding:
    try:
        taken_ms = await health.write(db, Clock().now(), config.mongo_timeout_seconds)
    except StorageError as error:
        message = f"write with majority and journal failed: {error}"
        todo = "check the server's log, disk and journal, and the user's role (readWrite)"
        return failed(Check.MONGODB_WRITE, message, todo)
    message = f"written by a majority, journaled after {taken_ms:.1f} ms, read and removed"
    if taken_ms > SLOW_WRITE_MS:
        todo = "check the server's disk and the replication lag"
        return warning(Check.MONGODB_WRITE, message, todo)
    return ok(Check.MONGODB_WRITE, message)


def judge_mongodb(server: Server, config: Config) -> list[Finding]:
    """Return the findings of a server's version, replica set, delay and disk."""
    kind = "mongos" if server.is_router else "standalone"
    if server.replica_set:
        kind = f"replica set {server.replica_set} of {server.members}"
    version = ".".join(map(str, server.version))
    message = f"{version}, {kind}, {server.round_trip_ms:.1f} ms round trip"
    if server.version < MIN_MONGODB:
        findings = [failed(Check.MONGODB, message, "Freshet needs MongoDB 4.4 or newer")]
    elif server.version < TESTED_MONGODB:
        todo = "upgrade to 6.0, the oldest version tested, or newer"
        findings = [warning(Check.MONGODB, message, todo)]
    elif server.round_trip_ms > SLOW_MS:
        todo = "run it closer to the crawls: each batch waits for a round trip"
        findings = [warning(Check.MONGODB, message, todo)]
    else:
        findings = [ok(Check.MONGODB, message)]
    if server.members == 2:
        message = f"replica set {server.replica_set} has two members"
        todo = "add a third member: with two, writes fail if one is unavailable"
        findings.append(warning(Check.MONGODB, message, todo))
    if server.free_bytes is not None:
        where, min_gb = "the server's data", min_free_gb(config)
        findings.append(judge_room(Check.MONGODB_DISK, server.free_bytes, where, min_gb))
    return findings


def judge_clock(whose: str, ahead_seconds: float, max_seconds: float = math.inf) -> Finding:
    """Return how far apart a server's clock and this machine's are.

    ahead_seconds: the server's clock less this machine's
    max_seconds:   from here on nothing runs; without a limit for Redis, none of whose times is
                   compared with any other
    """
    skew_seconds, way = abs(ahead_seconds), "ahead of" if ahead_seconds > 0 else "behind"
    message = f"{whose} is {skew_seconds:,.3g} s {way} this machine"
    if skew_seconds > max_seconds:
        message += ", more than FRESHET_MAX_CLOCK_SKEW_SECONDS: nothing runs"
        return failed(Check.CLOCK, message, SET_CLOCKS)
    if skew_seconds > MAX_SKEW_SECONDS:
        message += f"; runs go by {whose}'s" if max_seconds < math.inf else ""
        return warning(Check.CLOCK, message, SET_CLOCKS)
    return ok(Check.CLOCK, f"{whose} agrees with this machine to {skew_seconds:.3f} s")


def judge_data_version(name: str, version: int | None) -> Finding:
    """Return whether this Freshet can use the data. name: of the database."""
    if version is None:
        message = f"{name}: no data yet; the first command creates the collections"
        return ok(Check.MONGODB_DATA, message)
    if version > VERSION:
        message = f"{name}: version {version}, but this Freshet supports versions up to {VERSION}"
        return failed(Check.MONGODB_DATA, message, "upgrade Freshet or use another database")
    if version < VERSION:
        message = f"{name}: version {version}, the next command migrates it to {VERSION}"
        todo = "first make a backup and stop all other workers"
        return warning(Check.MONGODB_DATA, message, todo)
    return ok(Check.MONGODB_DATA, f"{name}: version {version}")


def judge_indexes(lacks: Sequence[IndexProblem]) -> list[Finding]:
    """Return a finding for each index of the schema that is missing or different."""
    findings = []
    for lack in lacks:
        is_wrong = "differs from the schema" if lack.differs else "is missing"
        message = f"{lack.name} of {lack.collection} {is_wrong}"
        todo = f"in mongosh: {lack.command}"
        if lack.unique:
            message += ": duplicates are not prevented"
            findings.append(failed(Check.MONGODB_INDEXES, message, todo))
        else:
            message += ": queries without it are slow"
            findings.append(warning(Check.MONGODB_INDEXES, message, todo))
    return findings or [ok(Check.MONGODB_INDEXES, "complete")]


async def check_runs(db: Database, sites: Sequence[Site], now: datetime) -> list[Finding]:
    """Return one finding for each spider."""
    running = await leases.active(db, leases.CRAWL)
    names = [site.wrapper.name for site in sites]
    return [
        judge_run(
            name, await last_run(db, name, now), running.get(f"{leases.CRAWL}{name}", []), now
        )
        for name in names
    ]


def judge_run(
    name: str, state: LastRun | None, workers: Sequence[Holder], now: datetime
) -> Finding:
    """Return how a spider's last run went. workers: the processes that run it now."""
    on = "; ".join(map(str, workers[:MAX_SHOWN]))
    if len(workers) > MAX_SHOWN:
        on += f" and {len(workers) - MAX_SHOWN} more"
    if state is None:
        message = f"the first one is running on {on}" if on else f"none so far: scrapy crawl {name}"
        return ok(Check.LAST_RUN, message, of=name)
    due = "nothing is due"
    if state.since is not None:
        more = " or more" if state.due == MAX_COUNTED else ""
        waits = span((now - state.since).total_seconds())
        due = f"{count(state.due, 'target')}{more} due, the first since {waits}"
    if on:
        return ok(Check.LAST_RUN, f"running on {on}; {due}", of=name)
    ago = span((now - state.latest).total_seconds())
    if state.finished is None:
        todo = "no action needed: the next run repairs the change log; check its log for the cause"
        return warning(Check.LAST_RUN, f"interrupted {ago} ago; {due}", todo, of=name)
    message, fetches = f"ended {ago} ago ({state.reason}); {due}", state.fetches
    if fetches is None or not fetches.failed:
        return ok(Check.LAST_RUN, message, of=name)
    ago = span((now - fetches.at).total_seconds())
    share = fetches.failed / fetches.visits
    which = "all of" if share == 1 else f"{fetches.failed:,} of"
    message += f"; {which} {count(fetches.visits, 'page')} failed {ago} ago"
    if fetches.reason is not None:
        message += f", most often: {fetches.reason} ({fetches.url})"
    if share < MANY_FAILED:
        return ok(Check.LAST_RUN, message, of=name)
    # No failure: a site that is down keeps Freshet from nothing else, and health checks of
    # containers go by the exit code.
    return warning(Check.LAST_RUN, message, f"scrapy targets {name} --errors lists them", of=name)


async def check_versions(db: Database, spiders: Sequence[str], config: Config) -> list[Finding]:
    """Return how many bytes of versions each spider keeps, unless it has none."""
    sizes = [(name, await sites.kept_bytes(db, name)) for name in spiders]
    return [judge_versions(name, size, config.max_site_mb * MB) for name, size in sizes if size]


def judge_versions(name: str, size: int, max_size: float) -> Finding:
    """Return whether a spider's versions are within their limit of bytes; 0: no limit."""
    message = f"{megabytes(size)} kept"
    if not max_size:
        return ok(Check.VERSIONS, f"{message}, no limit", of=name)
    message += f", at most {megabytes(max_size)}"
    if size <= max_size:
        return ok(Check.VERSIONS, message, of=name)
    todo = "the next run removes the oldest; raise FRESHET_MAX_SITE_MB to keep more"
    return warning(Check.VERSIONS, message, todo, of=name)


async def repair(db: Database, config: Config, now: datetime, say: Say) -> list[Finding]:
    """Repair what needs no fetch, make the rest due; return the invariants' findings after that."""
    if await runs.is_any_running(db, LONGEST_RUN):
        message = "a run is in progress or was interrupted"
        return [failed(Check.NO_RUN, message, "re-run when it has ended")]
    async with index.as_stored(db, config) as registry:
        for spider in await targets.spiders(db):
            say(f"repairing the log of {spider}")
            since = await recovery.logged_since(db, spider)
            await repair_log(db, registry, spider, since, now)
    await invariants.check(db, say, repair_at=now)
    return await check_invariants(db, say)


async def check_invariants(db: Database, say: Say) -> list[Finding]:
    """Return one finding for each invariant."""
    findings = []
    if await runs.is_any_running(db, LONGEST_RUN):
        message = "a run is in progress or was interrupted: its writes are incomplete"
        findings.append(warning(Check.NO_RUN, message, "re-run when it has ended"))
    report = await invariants.check(db, say)
    for invariant, broken in report.broken.items():
        if not broken.count:
            findings.append(ok(invariant, "holds everywhere"))
            continue
        more = ", …" if broken.count > len(broken.examples) else ""
        message = f"{count(broken.count, 'violation')}: {', '.join(broken.examples)}{more}"
        todo, examples = ADVICE.get(invariant, REBUILD), tuple(broken.examples)
        findings.append(
            Finding(invariant, Status.FAILED, message, todo, broken=broken.count, examples=examples)
        )
    if report.uncompared:
        message = f"{report.uncompared:,} posts with text have not been compared"
        findings.append(warning(Check.COMPARED, message, f"{REBUILD} compares them"))
    return findings


async def check_redis(url: str, config: Config) -> list[Finding]:
    """Return the findings of a Redis server, or why it cannot be asked."""
    try:
        server = await redis_server(url, config.mongo_timeout_seconds)
    except FreshetError as error:
        return [failed(Check.REDIS, str(error))]
    return judge_redis(server)


def judge_redis(server: RedisServer) -> list[Finding]:
    """Return the findings of a server's version, scripts, memory, persistence and clock."""
    version = ".".join(map(str, server.version)) if server.version else "of unknown version"
    message = f"{server.product} {version}, {server.round_trip_ms:.1f} ms round trip"
    if server.version and server.version < MIN_REDIS:
        findings = [failed(Check.REDIS, message, "Freshet needs Redis 5 or newer, or Valkey")]
    else:
        findings = [ok(Check.REDIS, message)]
    if server.runs_scripts:
        findings.append(ok(Check.REDIS_SCRIPTS, "Lua scripts can read and write"))
    else:
        message, todo = (
            "a Lua script could not read the value it wrote",
            "use a server with Lua scripting",
        )
        findings.append(failed(Check.REDIS_SCRIPTS, message, todo))
    limit = f"{server.memory_bytes / MB:,.0f} MB" if server.memory_bytes else "no limit"
    message = f"{limit}, maxmemory-policy {server.policy}"
    if server.policy == "noeviction":
        findings.append(ok(Check.REDIS_MEMORY, message))
    elif server.policy is None:
        message = "the server does not report its maxmemory-policy"
        findings.append(warning(Check.REDIS_MEMORY, message, "allow the user to run INFO"))
    else:
        todo = "set maxmemory-policy noeviction: a full server would evict keys that Freshet needs"
        findings.append(warning(Check.REDIS_MEMORY, message, todo))
    kept = Check.REDIS_PERSISTENCE
    if server.is_failing:
        message, todo = "the server cannot write its persistence file", "check its disk and its log"
        findings.append(failed(kept, message, todo))
    elif server.is_kept is None:
        findings.append(warning(kept, "the server does not report whether persistence is on"))
    elif server.is_kept:
        findings.append(ok(kept, "appendonly is on: a crash loses at most one second"))
    else:
        findings.append(warning(kept, f"appendonly is off: {LOSES}", "set appendonly yes"))
    return [*findings, judge_clock(server.product, server.ahead_seconds)]
