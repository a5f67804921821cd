"""MongoDB: the server, a write, and whether the database is as this Freshet wants it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from crawler.config import Config
from crawler.errors import FreshetError, StorageError
from crawler.frontier.lifecycle import make_whole
from crawler.ops.doctor_sites import Site
from crawler.ops.findings import Finding, Status, failed, ok, warning
from crawler.storage import health, indexes, invariants, leases, runs, sites, targets
from crawler.storage import recovery as interrupted
from crawler.storage import redis as redis_health
from crawler.storage.client import Database
from crawler.storage.dedup import index as opening
from crawler.storage.dedup.index import as_stored
from crawler.storage.due import MAX_COUNTED, Fetches, LastRun, last_run
from crawler.storage.embedded import EmbeddedServer
from crawler.storage.health import Server
from crawler.storage.indexes import Lack
from crawler.storage.invariants import Broken, Invariant
from crawler.storage.leases import Holder
from crawler.storage.redis import RedisServer
from crawler.storage.schema import VERSION
from crawler.utils.text import count, megabytes, span
from crawler.utils.time import Clock

CHECK = "last run"
# From this share of failed pages on something is wrong with the site, or with its definition.
MANY_FAILED = 0.1
# Workers of a run that are named.
MOST_SHOWN = 3


async def check_passes(db: Database, sites: Sequence[Site], now: datetime) -> list[Finding]:
    """One line for each spider."""
    working = await leases.at_work(db, leases.CRAWL)
    names = [site.wrapper.name for site in sites]
    return [
        of_spider(
            name, await last_run(db, name, now), working.get(f"{leases.CRAWL}{name}", []), now
        )
        for name in names
    ]


def of_spider(
    name: str, found: LastRun | None, working: Sequence[Holder], now: datetime
) -> Finding:
    """What the database says of a spider. working: the processes that run it now."""
    if found is None:
        if working:
            return ok(CHECK, f"the first one is running on {_listed(working)}", of=name)
        return ok(CHECK, f"none so far: scrapy crawl {name}", of=name)
    due = _due(found, now)
    if working:
        return ok(CHECK, f"running on {_listed(working)}; {due}", of=name)
    ago = span((now - found.latest).total_seconds())
    if found.finished is not None:
        return _with_failures(name, f"ended {ago} ago ({found.reason}); {due}", found.fetches, now)
    todo = "nothing: the next run repairs the log; why it ended may stand in its log"
    return warning(CHECK, f"interrupted {ago} ago; {due}", todo, of=name)


def _listed(working: Sequence[Holder]) -> str:
    more = f" and {len(working) - MOST_SHOWN} more" if len(working) > MOST_SHOWN else ""
    return "; ".join(map(str, working[:MOST_SHOWN])) + more


def _with_failures(name: str, said: str, fetches: Fetches | None, now: datetime) -> Finding:
    """How a run ended, and what failed when something was fetched for the last time."""
    if fetches is None or not fetches.failed:
        return ok(CHECK, said, of=name)
    ago = span((now - fetches.at).total_seconds())
    share = fetches.failed / fetches.visits
    which = "all of" if share == 1 else f"{fetches.failed:,} of"
    said += f"; {which} {count(fetches.visits, 'page')} failed {ago} ago"
    if fetches.reason is not None:
        said += f", most often: {fetches.reason} ({fetches.url})"
    if share < MANY_FAILED:
        return ok(CHECK, said, of=name)
    # A site that is down keeps Freshet from nothing else: health checks go by the exit code.
    return warning(CHECK, said, f"scrapy targets {name} --errors lists them", of=name)


def _due(found: LastRun, now: datetime) -> str:
    if found.since is None:
        return "nothing is due"
    more = " or more" if found.due == MAX_COUNTED else ""
    waits = span((now - found.since).total_seconds())
    return f"{count(found.due, 'target')}{more} due, the first since {waits}"


DISKS_CHECK, VERSIONS = "data folder", "versions"
GB, MB = 1024**3, 1024**2
# Of a database: below it is time to look. A run ends with less than FRESHET_MIN_FREE_MB.
LITTLE_GB = 2.0
# Of locks.
LOCKS_GB = 0.05
WAY_OUT = "set FRESHET_DATA_DIR to a folder that can be written"


def check_disks(config: Config) -> list[Finding]:
    """Nothing is left there; a folder that is not there yet is judged by its parent."""
    folder = config.data_dir.expanduser().absolute()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if problem := _problem(there):
        return [failed(DISKS_CHECK, f"{folder}: {problem}", WAY_OUT)]
    limits = (LOCKS_GB, LOCKS_GB) if config.mongo_uri else (least_gb(config), LITTLE_GB)
    return [room(DISKS_CHECK, shutil.disk_usage(there).free, str(folder), *limits)]


async def versions(db: Database, spiders: Sequence[str], config: Config) -> list[Finding]:
    """How many bytes of versions each spider keeps; nothing of those that have none."""
    found = [(name, await sites.kept_bytes(db, name)) for name in spiders]
    return [of_versions(name, kept, config.max_site_mb * MB) for name, kept in found if kept]


def of_versions(name: str, kept_bytes: int, most_bytes: float) -> Finding:
    """Whether a spider's versions are within their bound; most_bytes: 0 if there is none."""
    said = f"{megabytes(kept_bytes)} kept"
    if not most_bytes:
        return ok(VERSIONS, f"{said}, without a bound", of=name)
    said += f", at most {megabytes(most_bytes)}"
    if kept_bytes <= most_bytes:
        return ok(VERSIONS, said, of=name)
    todo = "the next run removes the oldest; raise FRESHET_MAX_SITE_MB to keep more"
    return warning(VERSIONS, said, todo, of=name)


def least_gb(config: Config) -> float:
    """The free space of a database's disk below which a run ends."""
    return config.min_free_mb * MB / GB


def room(
    check: str,
    free_bytes: float,
    where: str,
    least_gb: float,
    little_gb: float = LITTLE_GB,
) -> Finding:
    """Whether a disk has room: not enough with less than `least_gb`, hardly below `little_gb`."""
    free_gb = free_bytes / GB
    found = f"{where}: {free_gb:,.1f} GB free"
    if free_gb < least_gb:
        return failed(check, found, "make room: scrapy prune, or a larger disk")
    if free_gb < little_gb:
        return warning(check, found, "make room soon: scrapy prune, or a larger disk")
    return ok(check, found)


def _problem(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder} is no folder"
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return os.strerror(error.errno) if error.errno else str(error)


RUNNING, UNCOMPARED = "no run in progress", "posts are compared"
AT_WORK = timedelta(hours=1)
Say = Callable[[str], None]
REPAIR = "scrapy doctor --deep --repair adds them to the log"
VISIT = "scrapy doctor --deep --repair makes their targets due; then run scrapy crawl"
REMOVE = "scrapy doctor --deep --repair removes what was never acknowledged"
REBUILD = "scrapy duplicates rebuild"
ADVICE = {
    Invariant.LAST_LOGGED: REPAIR,
    Invariant.NEWEST: VISIT,
    Invariant.REQUESTED: REPAIR,
    Invariant.VERSION_LOGGED: REMOVE,
    Invariant.HAS_VERSION: VISIT,
    Invariant.POST_TARGET: VISIT,
    Invariant.POST_LOGGED: VISIT,
}


async def repair(db: Database, config: Config, now: datetime, say: Say) -> list[Finding]:
    """Repair what needs no page to be fetched, make due what does; findings of the time after."""
    if await runs.at_work(db, AT_WORK):
        return [failed(RUNNING, "a run is in progress or was interrupted", "repeat it after that")]
    async with as_stored(db, config) as registry:
        for spider in await targets.spiders(db):
            say(f"repairing the log of {spider}")
            since = await interrupted.logged_since(db, spider)
            await make_whole(db, registry, spider, since, now)
    await invariants.check(db, say, repair_at=now)
    return await examine(db, say)


async def examine(db: Database, say: Say) -> list[Finding]:
    """Return one finding for each invariant."""
    found = []
    if await runs.at_work(db, AT_WORK):
        found.append(
            warning(
                RUNNING, "a run is in progress or was interrupted: its writes are incomplete",
                "repeat the check when it has ended",
            )
        )  # fmt: skip
    report = await invariants.check(db, say)
    found += [_of_law(law, broken) for law, broken in report.broken.items()]
    if report.uncompared:
        said = f"{report.uncompared:,} posts with a text have not been compared"
        found.append(warning(UNCOMPARED, said, f"{REBUILD} compares them"))
    return found


def _of_law(law: Invariant, broken: Broken) -> Finding:
    if not broken.count:
        return ok(law, "always")
    more = ", …" if broken.count > len(broken.examples) else ""
    said = f"{broken.count:,} times not: {', '.join(broken.examples)}{more}"
    todo = ADVICE.get(law, REBUILD)
    return Finding(
        law, Status.FAILED, said, todo, broken=broken.count, examples=tuple(broken.examples)
    )


SKEW_SECONDS = 1.0
CLOCKS_CHECK = "clock"
CLOCKS_ADVICE = "set the clocks of all machines by NTP: timedatectl set-ntp true"


def of_mongodb(ahead_seconds: float, max_seconds: float) -> Finding:
    """Return how far apart the two clocks are, and what Freshet makes of it.

    ahead_seconds: MongoDB's clock less this machine's
    max_seconds:   from here on nothing runs
    """
    if abs(ahead_seconds) > max_seconds:
        found = f"{_told('MongoDB', ahead_seconds)}, more than FRESHET_MAX_CLOCK_SKEW_SECONDS"
        return failed(CLOCKS_CHECK, f"{found}: nothing runs", CLOCKS_ADVICE)
    if abs(ahead_seconds) > SKEW_SECONDS:
        return warning(
            CLOCKS_CHECK, f"{_told('MongoDB', ahead_seconds)}; runs go by MongoDB's", CLOCKS_ADVICE
        )
    return _agrees("MongoDB", ahead_seconds)


def of_redis(product: str, ahead_seconds: float) -> Finding:
    """Return how far apart two clocks are; no time of Redis's is compared with any other.

    product:       of the server, such as Valkey
    ahead_seconds: its clock less this machine's
    """
    if abs(ahead_seconds) > SKEW_SECONDS:
        return warning(CLOCKS_CHECK, _told(product, ahead_seconds), CLOCKS_ADVICE)
    return _agrees(product, ahead_seconds)


def _told(whose: str, ahead_seconds: float) -> str:
    way = "ahead of" if ahead_seconds > 0 else "behind"
    return f"{whose} is {abs(ahead_seconds):,.3g} s {way} this machine"


def _agrees(whose: str, ahead_seconds: float) -> Finding:
    return ok(CLOCKS_CHECK, f"{whose} agrees with this machine to {abs(ahead_seconds):.3f} s")


# $unionWith came with 4.4; the tests run on 6.0.
NEEDED, TESTED = (4, 4), (6, 0)
# A crawl waits for its batches; a visit more than once.
SLOW_MS, SLOW_WRITE_MS = 50.0, 500.0
SERVER, WRITE, DATA, INDEXES = "mongodb", "mongodb write", "mongodb data", "mongodb indexes"
CLAIMS = "near-duplicates"


async def check(db: Database, config: Config) -> list[Finding]:
    """All of it; raises StorageError when the server goes away."""
    server = await health.server(db)
    clock = of_mongodb(server.ahead_seconds, config.max_clock_skew_seconds)
    found = [*of_server(server, config), clock, await _write(db, config)]
    version = await health.data_version(db)
    found.append(data(db.name, version))
    if version == VERSION:
        found += of_indexes(await indexes.lacking(db))
        found += await _claims(db, config)
    return found


async def _claims(db: Database, config: Config) -> list[Finding]:
    """Whether crawls with these settings can compare posts with those that are stored."""
    asked, stored = opening.wanted_meta(config), await db.meta.find_one(opening.META)
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
        gigabytes = least_gb(config)
        found.append(room("mongodb disk", server.free_bytes, "the server's data", gigabytes))
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


# Before 5.0 a script that read the time could not write.
CLAIMS_NEEDED = (5, 0)
CLAIMS_SERVER, SCRIPTS, MEMORY, KEPT = "redis", "redis scripts", "redis memory", "redis persistence"
LOSES = (
    "a crash loses what was at work (it is visited again) and all claims of near-duplicates "
    "(the next crawl takes them from MongoDB, and others wait for it)"
)


async def check_claims(url: str, config: Config) -> list[Finding]:
    """All of it, or why it cannot be asked."""
    try:
        server = await redis_health.redis_server(url, config.mongo_timeout_seconds)
    except FreshetError as error:
        return [failed(CLAIMS_SERVER, str(error))]
    return of_server_claims(server)


def of_server_claims(server: RedisServer) -> list[Finding]:
    """What a server says of itself."""
    return [
        _version(server),
        _scripts(server),
        _memory(server),
        _persistence(server),
        of_redis(server.product, server.ahead_seconds),
    ]


def _version(server: RedisServer) -> Finding:
    version = ".".join(map(str, server.version)) if server.version else "of unknown version"
    said = f"{server.product} {version}, {server.round_trip_ms:.1f} ms there and back"
    if server.version and server.version < CLAIMS_NEEDED:
        return failed(CLAIMS_SERVER, said, "Freshet needs Redis 5 or newer, or Valkey")
    return ok(CLAIMS_SERVER, said)


def _scripts(server: RedisServer) -> Finding:
    if server.runs_scripts:
        return ok(SCRIPTS, "a script has written and read")
    return failed(SCRIPTS, "a script could not read what it wrote", "use a server that runs Lua")


def _memory(server: RedisServer) -> Finding:
    if server.policy is None:
        return warning(MEMORY, "the server does not tell its policy", "let the user run INFO")
    limit = f"{server.memory_bytes / 1024**2:,.0f} MB" if server.memory_bytes else "no limit"
    said = f"{limit}, maxmemory-policy {server.policy}"
    if server.policy == "noeviction":
        return ok(MEMORY, said)
    todo = "set maxmemory-policy noeviction: a full server would drop keys that are needed"
    return warning(MEMORY, said, todo)


def _persistence(server: RedisServer) -> Finding:
    if server.is_failing:
        return failed(KEPT, "the server cannot write its file", "look at its disk and its log")
    if server.is_kept is None:
        return warning(KEPT, "the server does not tell whether it keeps its data")
    if not server.is_kept:
        return warning(KEPT, f"appendonly is off: {LOSES}", "set appendonly yes")
    return ok(KEPT, "appendonly is on: a crash loses a second at most")


EMBEDDED_CHECK = "embedded server"


def check_embedded(config: Config, *, start: bool) -> tuple[Finding, bool]:
    """What is found, and whether the server answers; it is started where that is wanted."""
    server = EmbeddedServer.of(config)
    try:
        if start:
            server.start()
    except StorageError as error:
        return failed(EMBEDDED_CHECK, str(error)), False
    pid = server.pid()
    if server.answers():
        return ok(EMBEDDED_CHECK, f"process {pid} answers, data in {server.folder}"), True
    if pid is not None:
        what, _, todo = server.unresponsive().partition(": ")
        return failed(EMBEDDED_CHECK, what, todo), False
    return ok(
        EMBEDDED_CHECK, f"not running, the next command starts it; data in {server.folder}"
    ), False
