"""The doctor's checks of servers: MongoDB and its data, the data folder, Redis, clocks."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from crawler.config import Config
from crawler.errors import ConfigError, FreshetError, StorageError
from crawler.frontier.lifecycle import repair_log
from crawler.ops.findings import Check, Finding, Status, failed, ok, warning
from crawler.storage import health, leases, pruning, recovery, runs, schema, sites, targets
from crawler.storage.client import VERSION, Database
from crawler.storage.dedup import index
from crawler.storage.embedded import EmbeddedServer
from crawler.storage.health import Invariant, Server
from crawler.storage.leases import Holder
from crawler.storage.redis import RedisServer, redis_server
from crawler.storage.runs import MAX_COUNTED, LastRun, last_run
from crawler.storage.schema import IndexProblem
from crawler.utils.process import Say
from crawler.utils.text import count, megabytes, span
from crawler.utils.time import Clock

if TYPE_CHECKING:
    from crawler.notify.rounds import NotifyStatus

# $unionWith came with MongoDB 4.4; the tests run on 6.0.
MIN_MONGODB, TESTED_MONGODB = (4, 4), (6, 0)
# Before Redis 5.0 a script that read the time could not write.
MIN_REDIS = (5, 0)
# Round trips and writes slower than this slow a crawl down: it waits for each batch.
SLOW_MS, SLOW_WRITE_MS = 50.0, 500.0
GB, MB = 1024**3, 1024**2
# Free space of a database's disk below which to warn. Runs end below FRESHET_MIN_FREE_MB.
LOW_GB = 2.0
# Free space that the data folder needs if it holds only lock files.
MIN_LOCKS_GB = 0.05
MAX_SKEW_SECONDS = 1.0
# A larger share of failed pages suggests a problem with the site or its definition.
MAX_FAILED_SHARE = 0.1
# Number of a run's workers to list.
MAX_SHOWN = 3
# An unfinished run that started longer ago is considered crashed.
MAX_RUN = timedelta(hours=1)
# If a visit is overdue for aggregation by more than this time, nothing prunes the database.
MAX_UNPRUNED = timedelta(days=7)
# If an event has had no messages for more than this time, nothing delivers notifications.
MAX_UNDELIVERED = timedelta(hours=1)

SET_CLOCKS = "synchronize the clocks of all machines by NTP: timedatectl set-ntp true"
REPAIR = "run scrapy doctor --deep --repair to add them to the change log"
VISIT = "run scrapy doctor --deep --repair to make their targets due, then run scrapy crawl"
REMOVE = "run scrapy doctor --deep --repair to remove unacknowledged writes"
REBUILD = "run scrapy duplicates rebuild"
# Fixes for violated invariants; REBUILD for those of near-duplicates, which are not listed.
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
    """Check that the data folder is writable and has free space.

    Until the folder exists, its nearest existing parent is checked.
    """
    folder = config.data_dir.expanduser().absolute()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    problem = ""
    if not existing.is_dir():
        problem = f"{existing} is not a folder"
    else:
        try:
            with tempfile.TemporaryFile(dir=existing):
                pass
        except OSError as error:
            problem = os.strerror(error.errno) if error.errno else str(error)
    if problem:
        fix = "set FRESHET_DATA_DIR to a writable folder"
        return [failed(Check.DATA_FOLDER, f"{folder}: {problem}", fix)]
    limits = (MIN_LOCKS_GB, MIN_LOCKS_GB) if config.mongo_uri else (min_free_gb(config), LOW_GB)
    free_bytes = shutil.disk_usage(existing).free
    return [judge_free_space(Check.DATA_FOLDER, free_bytes, str(folder), *limits)]


def min_free_gb(config: Config) -> float:
    """Return the free disk space in GB below which runs end (FRESHET_MIN_FREE_MB)."""
    return config.min_free_mb * MB / GB


def judge_free_space(
    check: str, free_bytes: float, where: str, min_gb: float, low_gb: float = LOW_GB
) -> Finding:
    """Check the free space of a disk: failed below `min_gb`, a warning below `low_gb`."""
    free_gb = free_bytes / GB
    result = f"{where}: {free_gb:,.1f} GB free"
    if free_gb < min_gb:
        return failed(check, result, "free disk space (scrapy prune) or use a larger disk")
    if free_gb < low_gb:
        return warning(check, result, "free disk space soon (scrapy prune) or use a larger disk")
    return ok(check, result)


def check_embedded(config: Config, *, start: bool) -> tuple[Finding, bool]:
    """Check the embedded server, after starting it if `start`; also return whether it answers."""
    server = EmbeddedServer.of(config)
    try:
        if start:
            server.start()
    except StorageError as error:
        return failed(Check.EMBEDDED, str(error)), False
    pid = server.pid()
    if server.answers():
        return ok(Check.EMBEDDED, f"running (process {pid}), data in {server.folder}"), True
    if pid is not None:
        message, _, fix = server.unresponsive().partition(": ")
        return failed(Check.EMBEDDED, message, fix), False
    message = f"not running; the next command starts it; data in {server.folder}"
    return ok(Check.EMBEDDED, message), False


async def check_mongodb(db: Database, config: Config) -> list[Finding]:
    """Check the server, and Freshet's data in it; raises StorageError."""
    server = await health.server(db)
    clock = judge_clock("MongoDB", server.ahead_seconds, config.max_clock_skew_seconds)
    findings = [*judge_mongodb(server, config), clock, await _check_write(db, config)]
    version = await schema.data_version(db)
    findings.append(judge_data_version(db.name, version))
    if version != VERSION:
        return findings
    findings += judge_indexes(await schema.index_problems(db))
    # Near-duplicates: crawls need the scheme that the stored claims were made with.
    scheme = index.wanted_scheme(config)
    stored = await db.meta.find_one(index.META)
    if scheme is None or stored is None:
        return findings
    if refused := await index.refusal(db, scheme, stored):
        message, _, fix = refused.rpartition(": ")
        return [*findings, failed(Check.NEAR_DUPLICATES, message, fix)]
    return [*findings, ok(Check.NEAR_DUPLICATES, f"scheme {stored['scheme']}")]


async def _check_write(db: Database, config: Config) -> Finding:
    try:
        taken_ms = await health.write(db, Clock().now(), config.mongo_timeout_seconds)
    except StorageError as error:
        message = f"write with write concern majority and journal failed: {error}"
        fix = "check the server's log, disk and journal, and the user's role (readWrite)"
        return failed(Check.MONGODB_WRITE, message, fix)
    message = f"wrote, read and deleted a document; journaled by a majority in {taken_ms:.1f} ms"
    if taken_ms > SLOW_WRITE_MS:
        fix = "check the server's disk and the replication lag"
        return warning(Check.MONGODB_WRITE, message, fix)
    return ok(Check.MONGODB_WRITE, message)


def judge_mongodb(server: Server, config: Config) -> list[Finding]:
    """Check a server's version, replica set, round-trip time and disk."""
    kind = "mongos" if server.is_router else "standalone"
    if server.replica_set:
        kind = f"replica set {server.replica_set} of {server.members}"
    version = ".".join(map(str, server.version))
    message = f"{version}, {kind}, {server.round_trip_ms:.1f} ms round trip"
    if server.version < MIN_MONGODB:
        findings = [failed(Check.MONGODB, message, "Freshet needs MongoDB 4.4 or newer")]
    elif server.version < TESTED_MONGODB:
        fix = "upgrade to 6.0 (the oldest tested version) or newer"
        findings = [warning(Check.MONGODB, message, fix)]
    elif server.round_trip_ms > SLOW_MS:
        fix = "run it closer to the crawlers: each batch waits for a round trip"
        findings = [warning(Check.MONGODB, message, fix)]
    else:
        findings = [ok(Check.MONGODB, message)]
    if server.members == 2:
        message = f"replica set {server.replica_set} has two members"
        fix = "add a third member: with two, writes fail if either is unavailable"
        findings.append(warning(Check.MONGODB, message, fix))
    if server.free_bytes is not None:
        where, min_gb = "the server's data", min_free_gb(config)
        findings.append(judge_free_space(Check.MONGODB_DISK, server.free_bytes, where, min_gb))
    return findings


def judge_clock(server: str, ahead_seconds: float, max_seconds: float = math.inf) -> Finding:
    """Compare a server's clock with this machine's.

    ahead_seconds: the server's clock minus this machine's
    max_seconds:   difference above which runs do not start; no limit for Redis, whose times are
                   only compared with each other
    """
    skew_seconds, way = abs(ahead_seconds), "ahead of" if ahead_seconds > 0 else "behind"
    message = f"{server} is {skew_seconds:,.3g} s {way} this machine"
    if skew_seconds > max_seconds:
        message += ", more than FRESHET_MAX_CLOCK_SKEW_SECONDS: runs do not start"
        return failed(Check.CLOCK, message, SET_CLOCKS)
    if skew_seconds > MAX_SKEW_SECONDS:
        message += f"; runs use {server}'s clock" if max_seconds < math.inf else ""
        return warning(Check.CLOCK, message, SET_CLOCKS)
    return ok(Check.CLOCK, f"{server} and this machine differ by {skew_seconds:.3f} s")


def judge_data_version(name: str, version: int | None) -> Finding:
    """Check that this version of Freshet can use the data. name: of the database."""
    if version is None:
        message = f"{name}: no data yet; the first command creates the collections"
        return ok(Check.MONGODB_DATA, message)
    if version > VERSION:
        message = f"{name}: version {version}, but this Freshet supports only up to {VERSION}"
        return failed(Check.MONGODB_DATA, message, "upgrade Freshet or use another database")
    if version < VERSION:
        message = f"{name}: version {version}; the next command migrates it to {VERSION}"
        fix = "make a backup and stop all other workers first"
        return warning(Check.MONGODB_DATA, message, fix)
    return ok(Check.MONGODB_DATA, f"{name}: version {version}")


def judge_indexes(lacks: Sequence[IndexProblem]) -> list[Finding]:
    """Return a finding for each index of the schema that is missing or different."""
    findings = []
    for lack in lacks:
        is_wrong = "differs from the schema" if lack.differs else "is missing"
        message = f"{lack.name} of {lack.collection} {is_wrong}"
        fix = f"in mongosh: {lack.command}"
        if lack.unique:
            message += ": duplicates are not prevented"
            findings.append(failed(Check.MONGODB_INDEXES, message, fix))
        else:
            message += ": queries without it are slow"
            findings.append(warning(Check.MONGODB_INDEXES, message, fix))
    return findings or [ok(Check.MONGODB_INDEXES, "complete")]


async def check_runs(db: Database, spiders: Sequence[str], now: datetime) -> list[Finding]:
    """Return a finding on the service, and one on the last run of each spider."""
    services, running = (
        await leases.active(db, leases.SERVICE),
        await leases.active(db, leases.CRAWL),
    )
    states = {name: await last_run(db, name, now) for name in spiders}
    holders = services.get(leases.SERVICE) or services.get(leases.STANDBY) or []
    runs_of = [
        judge_run(name, state, running.get(f"{leases.CRAWL}{name}", []), now)
        for name, state in states.items()
    ]
    return [judge_service(holders, [*states.values()], now), *runs_of]


def judge_service(
    holders: Sequence[Holder], states: Sequence[LastRun | None], now: datetime
) -> Finding:
    """Judge what starts runs: a service, or something else that did within a day."""
    if holders:
        more = f" and {len(holders) - 1} more" if len(holders) > 1 else ""
        return ok(Check.SERVICE, f"runs on {holders[0]}{more}")
    latest = max((state.latest for state in states if state is not None), default=None)
    if latest is None or now - latest < timedelta(days=1):
        return ok(Check.SERVICE, "none runs; cron or scrapy crawl can start runs, too")
    ago = span((now - latest).total_seconds())
    fix = "start scrapy web or scrapy refresh run, or add the lines of scrapy cron to the crontab"
    return warning(Check.SERVICE, f"none runs, and the last run was {ago} ago", fix)


def judge_run(
    name: str, state: LastRun | None, workers: Sequence[Holder], now: datetime
) -> Finding:
    """Judge a spider's last run. workers: the processes that are running it now."""
    on = "; ".join(map(str, workers[:MAX_SHOWN]))
    if len(workers) > MAX_SHOWN:
        on += f" and {len(workers) - MAX_SHOWN} more"
    if state is None:
        message = f"the first run is in progress on {on}" if on else "never run"
        message += "" if on else f"; start with scrapy crawl {name}"
        return ok(Check.LAST_RUN, message, of=name)
    due = "nothing is due"
    if state.since is not None:
        more = " or more" if state.due == MAX_COUNTED else ""
        waits = span((now - state.since).total_seconds())
        due = f"{count(state.due, 'target')}{more} due, the oldest for {waits}"
    if on:
        return ok(Check.LAST_RUN, f"running on {on}; {due}", of=name)
    ago = span((now - state.latest).total_seconds())
    if state.finished is None:
        fix = "no action needed: the next run repairs the change log; the cause may be in the log"
        return warning(Check.LAST_RUN, f"interrupted {ago} ago; {due}", fix, of=name)
    message, fetches = f"ended {ago} ago ({state.reason}); {due}", state.fetches
    if fetches is None or not fetches.failed:
        return ok(Check.LAST_RUN, message, of=name)
    ago = span((now - fetches.at).total_seconds())
    share = fetches.failed / fetches.visits
    message += f"; {fetches.failed:,} of {count(fetches.visits, 'page')} failed {ago} ago"
    if fetches.reason is not None:
        message += f", most often: {fetches.reason} ({fetches.url})"
    if share < MAX_FAILED_SHARE:
        return ok(Check.LAST_RUN, message, of=name)
    # Only a warning: other sites still work, and container health checks use the exit code.
    fix = f"scrapy targets {name} --errors lists the pages"
    return warning(Check.LAST_RUN, message, fix, of=name)


async def check_versions(db: Database, spiders: Sequence[str], config: Config) -> list[Finding]:
    """Return a finding on the size of the stored versions of each spider that has any."""
    findings, max_size = [], config.max_site_mb * MB
    for name in spiders:
        if not (size := await sites.kept_bytes(db, name)):
            continue
        limit = f"limit {megabytes(max_size)}" if max_size else "no limit"
        message = f"{megabytes(size)} stored, {limit}"
        if max_size and size > max_size:
            fix = "the next run removes the oldest; raise FRESHET_MAX_SITE_MB to keep more"
            findings.append(warning(Check.VERSIONS, message, fix, of=name))
        else:
            findings.append(ok(Check.VERSIONS, message, of=name))
    return findings


async def check_retention(db: Database, config: Config, now: datetime) -> list[Finding]:
    """Return the finding on how long data is kept, and whether it is pruned; none without data."""
    oldest = await pruning.oldest_visit(db)
    return [] if oldest is None else [judge_retention(config, now - oldest)]


def judge_retention(config: Config, age: timedelta) -> Finding:
    """Report how long data is kept, and check that it is pruned. age: of the oldest visit."""
    days = {
        "visits": config.keep_visits_days, "daily aggregates": config.keep_aggregates_days,
        "runs": config.keep_runs_days, "plans": config.keep_plans_days,
    }  # fmt: skip
    kept = [f"{name} {n:g} days" if n else f"all {name}" for name, n in days.items()]
    versions = count(config.keep_versions, "version") if config.keep_versions else "all versions"
    message = f"keeps {', '.join(kept)}, {versions} per target"
    allowed = timedelta(days=config.keep_visits_days) + MAX_UNPRUNED
    if config.keep_visits_days and age > allowed:
        message += f"; but the oldest visit is {span(age.total_seconds())} old"
        return warning(Check.RETENTION, message, "run scrapy prune daily (scrapy cron prints how)")
    return ok(Check.RETENTION, message)


async def check_notifications(db: Database, config: Config, now: datetime) -> list[Finding]:
    """Return the findings on rules, channels and undelivered messages; none without rules."""
    # Slow to import, and only needed here.
    from crawler.notify.rounds import status

    try:
        state = await status(db, config.notify_file)
    except ConfigError as error:
        return [failed(Check.NOTIFICATIONS, str(error), "events are kept until it is corrected")]
    return judge_notifications(state, now)


def judge_notifications(state: NotifyStatus, now: datetime) -> list[Finding]:
    """Check that the rules are valid, and that messages are delivered."""
    findings = [warning(Check.NOTIFICATIONS, problem) for problem in state["problems"]]
    oldest = state["oldest_event"]
    if oldest is not None and now - oldest > MAX_UNDELIVERED:
        message = f"an event has had no messages for {span((now - oldest).total_seconds())}"
        fix = "run scrapy notify deliver, by cron or with --follow, or the service"
        findings.append(warning(Check.NOTIFICATIONS, message, fix))
    for channel in state["channels"]:
        if channel["dead"]:
            message = f"{count(channel['dead'], 'dead letter')} of channel {channel['channel']}"
            fix = "run scrapy notify dead, then scrapy notify retry --all"
            findings.append(warning(Check.NOTIFICATIONS, message, fix))
        if channel["reason"]:
            message = f"channel {channel['channel']} fails: {channel['reason']}"
            fix = f"run scrapy notify test {channel['channel']}"
            findings.append(warning(Check.NOTIFICATIONS, message, fix))
    if not findings and (state["rules"] or state["channels"]):
        waiting = sum(channel["waiting"] for channel in state["channels"])
        message = f"{count(state['rules'], 'rule')}, {count(len(state['channels']), 'channel')}"
        message += f", {count(waiting, 'message')} waiting"
        findings.append(ok(Check.NOTIFICATIONS, message))
    return findings


async def repair(db: Database, config: Config, now: datetime, say: Say) -> list[Finding]:
    """Repair violated invariants, then check them again and return the findings.

    Targets whose repair needs a fetch are made due.
    """
    if await runs.is_any_running(db, MAX_RUN):
        message = "a run is in progress or was interrupted"
        return [failed(Check.NO_RUN, message, "re-run after the run has ended")]
    async with index.as_stored(db, config) as registry:
        for spider in await targets.spiders(db):
            say(f"repairing the change log of {spider}")
            since = await recovery.logged_since(db, spider)
            await repair_log(db, registry, spider, since, now)
    await health.check(db, say, repair_at=now)
    return await check_invariants(db, say)


async def check_invariants(db: Database, say: Say) -> list[Finding]:
    """Return a finding for each invariant of the stored data."""
    findings = []
    if await runs.is_any_running(db, MAX_RUN):
        message = "a run is in progress or was interrupted: its writes are incomplete"
        findings.append(warning(Check.NO_RUN, message, "re-run after the run has ended"))
    report = await health.check(db, say)
    for invariant, broken in report.broken.items():
        if not broken.count:
            findings.append(ok(invariant, "no violations"))
            continue
        more = ", …" if broken.count > len(broken.examples) else ""
        message = f"{count(broken.count, 'violation')}: {', '.join(broken.examples)}{more}"
        fix, examples = ADVICE.get(invariant, REBUILD), tuple(broken.examples)
        findings.append(
            Finding(invariant, Status.FAILED, message, fix, broken=broken.count, examples=examples)
        )
    if report.uncompared:
        message = f"not compared: {count(report.uncompared, 'post')} with text"
        findings.append(warning(Check.COMPARED, message, f"{REBUILD} to compare them"))
    return findings


async def check_redis(url: str, config: Config) -> list[Finding]:
    """Return the findings on a Redis server, or a failed one if it is unavailable."""
    try:
        server = await redis_server(url, config.mongo_timeout_seconds)
    except FreshetError as error:
        return [failed(Check.REDIS, str(error))]
    return judge_redis(server)


def judge_redis(server: RedisServer) -> list[Finding]:
    """Check a server's version, scripting, memory limit, persistence and clock."""
    version = ".".join(map(str, server.version)) if server.version else "(unknown version)"
    message = f"{server.product} {version}, {server.round_trip_ms:.1f} ms round trip"
    if server.version and server.version < MIN_REDIS:
        findings = [failed(Check.REDIS, message, "Freshet needs Redis 5 or newer, or Valkey")]
    else:
        findings = [ok(Check.REDIS, message)]
    if server.runs_scripts:
        findings.append(ok(Check.REDIS_SCRIPTS, "Lua scripts can read and write"))
    else:
        message, fix = (
            "a Lua script could not read a value that it had written",
            "use a server with Lua scripting",
        )
        findings.append(failed(Check.REDIS_SCRIPTS, message, fix))
    limit = f"{server.memory_bytes / MB:,.0f} MB" if server.memory_bytes else "no limit"
    message = f"{limit}, maxmemory-policy {server.policy}"
    if server.policy == "noeviction":
        findings.append(ok(Check.REDIS_MEMORY, message))
    elif server.policy is None:
        message = "the server does not report its maxmemory-policy"
        findings.append(warning(Check.REDIS_MEMORY, message, "allow the user to run INFO"))
    else:
        fix = "set maxmemory-policy noeviction: otherwise a full server evicts Freshet's keys"
        findings.append(warning(Check.REDIS_MEMORY, message, fix))
    kept = Check.REDIS_PERSISTENCE
    if server.is_failing:
        message, fix = "the server cannot write its persistence file", "check its disk and its log"
        findings.append(failed(kept, message, fix))
    elif server.is_kept is None:
        findings.append(warning(kept, "the server does not report whether persistence is on"))
    elif server.is_kept:
        findings.append(ok(kept, "appendonly is on: a crash loses at most one second of writes"))
    else:
        message = "appendonly is off: a crash loses leased entries (they are visited again)"
        findings.append(warning(kept, message, "set appendonly yes"))
    return [*findings, judge_clock(server.product, server.ahead_seconds)]
