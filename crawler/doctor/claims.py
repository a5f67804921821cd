"""Redis or Valkey, which near-duplicates are claimed in and by which crawls share their work."""

from __future__ import annotations

from crawler.config import Config
from crawler.doctor import clocks
from crawler.doctor.findings import Finding, failed, ok, warning
from crawler.errors import FreshetError
from crawler.redis import health
from crawler.redis.health import Server

# Before 5.0 a script that read the time could not write.
NEEDED = (5, 0)
SERVER, SCRIPTS, MEMORY, KEPT = "redis", "redis scripts", "redis memory", "redis persistence"
LOSES = (
    "a crash loses what was at work (it is visited again) and all claims of near-duplicates "
    "(the next crawl takes them from MongoDB, and others wait for it)"
)


async def check(url: str, config: Config) -> list[Finding]:
    """All of it, or why it cannot be asked."""
    try:
        server = await health.server(url, config.mongo_timeout_seconds)
    except FreshetError as error:
        return [failed(SERVER, str(error))]
    return of_server(server)


def of_server(server: Server) -> list[Finding]:
    """What a server says of itself."""
    return [
        _version(server),
        _scripts(server),
        _memory(server),
        _persistence(server),
        clocks.of_redis(server.product, server.ahead_seconds),
    ]


def _version(server: Server) -> Finding:
    version = ".".join(map(str, server.version)) if server.version else "of unknown version"
    said = f"{server.product} {version}, {server.round_trip_ms:.1f} ms there and back"
    if server.version and server.version < NEEDED:
        return failed(SERVER, said, "Freshet needs Redis 5 or newer, or Valkey")
    return ok(SERVER, said)


def _scripts(server: Server) -> Finding:
    if server.runs_scripts:
        return ok(SCRIPTS, "a script has written and read")
    return failed(SCRIPTS, "a script could not read what it wrote", "use a server that runs Lua")


def _memory(server: Server) -> Finding:
    if server.policy is None:
        return warning(MEMORY, "the server does not tell its policy", "let the user run INFO")
    limit = f"{server.memory_bytes / 1024**2:,.0f} MB" if server.memory_bytes else "no limit"
    said = f"{limit}, maxmemory-policy {server.policy}"
    if server.policy == "noeviction":
        return ok(MEMORY, said)
    todo = "set maxmemory-policy noeviction: a full server would drop keys that are needed"
    return warning(MEMORY, said, todo)


def _persistence(server: Server) -> Finding:
    if server.is_failing:
        return failed(KEPT, "the server cannot write its file", "look at its disk and its log")
    if server.is_kept is None:
        return warning(KEPT, "the server does not tell whether it keeps its data")
    if not server.is_kept:
        return warning(KEPT, f"appendonly is off: {LOSES}", "set appendonly yes")
    return ok(KEPT, "appendonly is on: a crash loses a second at most")
