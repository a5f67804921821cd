"""Implement the Redis queue of a shared run: entries are queued, leased to workers, and completed.

An entry is the key of a target, or a spider's request as JSON. Each transition is one Lua script,
and therefore atomic, and can be repeated.

Requests are ordinary JSON: pickle, the default of scrapy-redis, would let write access to Redis run
any code. Requests that JSON cannot represent stay with the worker that created them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import count
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from redis.commands.core import AsyncScript
from scrapy import Request, Spider
from scrapy.http import FormRequest, JsonRequest, XmlRpcRequest
from scrapy.utils.request import request_from_dict

from crawler.errors import RunLost
from crawler.storage.redis import RedisRetry, user_errors
from crawler.utils.urls import is_http

if TYPE_CHECKING:
    from crawler.frontier.lifecycle import Counts

# Read as package resources: a project that is deployed as an egg is not a folder.
SCRIPTS = files("crawler.frontier") / "lua"
# Request classes of Scrapy, which differ only in their constructors.
CLASSES = (Request, FormRequest, JsonRequest, XmlRpcRequest)
MAX_CHARACTERS = 256_000
REDIS_ID = "freshet:id"
EXPIRY_MS = 24 * 3600 * 1000
# A blocking command waits for this share of the client's timeout, or of MAX_WAIT_SECONDS if the
# client has none.
MAX_WAIT_SECONDS, ANSWER_SHARE = 10.0, 0.8
# Keys in request.meta: name of the leased entry, and the target.
LEASE = "lease"
TARGET = "target"
Args = list[Any] | Callable[[], list[Any]]
# Count of entries that were queued although their targets had just been visited.
NOT_DUE = "not_due"
# Entry, fingerprint, priority and text of a request.
Pushed = tuple[str, str, int, str]


@dataclass(frozen=True, slots=True)
class Lease:
    """Entry leased to this worker.

    body:  request as JSON, or the target's key if it is not the entry's name; else empty
    count: number of leases of this entry so far, including this one
    """

    entry: str
    body: str
    count: int


@dataclass(frozen=True, slots=True)
class Joined:
    """State of the run when a worker joins it.

    todo:    next step: "prepare" the run, "join" it, or "wait" until it is prepared or over
    run:     `_id` of the run in MongoDB; empty if not yet known
    started: start of the run in milliseconds since 1970; empty if not yet known
    """

    todo: str
    id: str
    run: str
    started: str


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """Status of the queue of a run.

    feeds:   whether this worker is the feeder, which adds due targets to the queue
    waiting: number of queued entries
    leased:  number of leased entries
    workers: number of workers
    quiet_seconds: after a request for leases that yielded none, the time after which a lease or the
                   role of the feeder can expire; negative if it is over, 0 after other messages
    """

    state: str
    feeds: bool
    waiting: int
    leased: int
    workers: int
    quiet_seconds: float = 0.0

    @property
    def is_empty(self) -> bool:
        """Return whether no entry is queued or leased."""
        return not self.waiting and not self.leased


class LeasedQueue:
    """Client of the queue for one worker; call `join` before the methods that concern a run."""

    def __init__(
        self, steady: RedisRetry, spider: Spider, key: str, worker: str, lease_ms: int
    ) -> None:
        # The types of redis do not distinguish pipelines from clients, and text from bytes.
        self.server: Any = steady.client
        self.spider, self.key = spider, key
        self.id, self.worker = "", worker
        self._steady = steady
        self._common_args = [worker, lease_ms, EXPIRY_MS]
        self._messages = count(1)
        names = ("join", "open", "feed", "push", "work", "renew", "close", "leave", "finish")
        run = (SCRIPTS / "run.lua").read_text()
        self._scripts: dict[str, AsyncScript] = {
            name: self.server.register_script(run + (SCRIPTS / f"{name}.lua").read_text())
            for name in names
        }

    async def join(self, new_id: str) -> Joined:
        """Join the spider's run, or begin one with this id."""
        reply = await self._ask("join", [], new_id)
        joined = Joined(*(part.decode() for part in reply))
        self.id = joined.id
        return joined

    async def redis_id(self) -> str:
        """Return the id of this Redis database; workers with the same id share their runs."""
        await self._steady.ask(lambda: self.server.set(REDIS_ID, token_hex(8), nx=True))
        redis_id = await self._steady.ask(lambda: self.server.get(REDIS_ID))
        return (redis_id or b"").decode()

    async def open(self, run: str, started_ms: int) -> bool:
        """Mark the run as prepared; return False if another worker took over its preparation."""
        return bool(await self._ask("open", [run, started_ms]))

    async def feed(
        self, max_new: int, entries: Iterable[tuple[str, str]]
    ) -> tuple[QueueStatus, int, int]:
        """Add at most `max_new` new entries (name, body) to the queue, in this order.

        Returns the status of the queue, the number of entries added, and the number of entries
        added so far in this run, without those completed with the count NOT_DUE.
        """
        reply = await self._ask("feed", [max_new, *(part for entry in entries for part in entry)])
        return _status(reply), *reply[5]

    async def push(self, requests: Iterable[Pushed]) -> None:
        """Add requests to the queue, except for those whose fingerprint was added before."""
        await self._ask("push", [part for request in requests for part in request])

    async def work(
        self, done: Sequence[tuple[str, Counts]], want: int
    ) -> tuple[QueueStatus, list[Lease]]:
        """Report completed entries with their counts, and lease up to `want` entries."""
        names = list(dict.fromkeys(name for _, counts in done for name in counts))
        args: list[str | float] = [len(names), *names]
        for entry, counts in done:
            args += [entry, *(counts.get(name, 0) for name in names)]

        def current_args() -> list[str | float]:
            # Lease nothing directly after an outage, until all workers have renewed their leases.
            return [want if self._steady.is_settled else 0, *args]

        reply = await self._ask("work", current_args)
        parts = iter(reply[5])
        leases = zip(parts, parts, parts, strict=True)
        return _status(reply), [Lease(_text(n), _text(b), int(c)) for n, b, c in leases]

    async def wait(self) -> bool:
        """Wait until there may be entries to lease, or the run ends; return False after some time.

        A message that adds N entries wakes at most N workers. Raises FreshetError immediately if
        Redis is unavailable.
        """
        answer_seconds = self.server.connection_pool.connection_kwargs.get("socket_timeout")
        # The driver's timeout also applies to commands that block. Redis 5 needs whole seconds.
        seconds = ANSWER_SHARE * (answer_seconds or MAX_WAIT_SECONDS)
        timeout_seconds = int(seconds) or seconds
        with user_errors(self.server):
            token = await self.server.blpop([self._key("wake")], timeout_seconds)
        return token is not None

    async def wake_another(self) -> None:
        """Let another worker end its `wait` in place of this one; raises errors as `wait` does."""
        key = self._key("wake")
        with user_errors(self.server):
            async with self.server.pipeline() as pipe:
                await pipe.rpush(key, 1).pexpire(key, EXPIRY_MS).execute()

    async def renew(
        self, held: Iterable[str], shares: Counts, *, sure: Callable[[], bool], back: bool
    ) -> tuple[QueueStatus, set[str]]:
        """Renew the leases on `held`; return the status and the leases lost to other workers.

        shares: this worker's own counts so far
        sure:   returns whether the last renewal is more recent than the duration of a lease
        back:   the server was unavailable since the last renewal
        """
        args = [int(back), len(shares), *_flat(shares), *held]
        reply = await self._ask("renew", lambda: [int(sure()), *args])
        return _status(reply), {_text(entry) for entry in reply[5]}

    async def close(self) -> bool:
        """End the run if no entry is queued or leased; return whether it ends."""
        return bool(await self._ask("close", []))

    async def leave(self, shares: Counts) -> tuple[bool, int, int]:
        """Return all leases and leave the run.

        Returns whether this worker has to sum up the run, the number of other workers (it has to
        call again until there are none), and the number of visits of the run so far.
        """
        closes, others, visits = await self._ask("leave", _flat(shares))
        return bool(closes), others, int(float(visits))

    async def sums(self) -> tuple[dict[str, float], dict[str, float], int, bool]:
        """Return the counts of entries, the counts of workers, and the number of workers.

        The fourth value is whether a lease has expired during the run.
        """

        async def read() -> list[Any]:
            async with self.server.pipeline(transaction=False) as pipe:
                pipe.hgetall(self._key("counts")).hgetall(self._key("shares"))
                pipe.scard(self._key("members")).hget(f"{self.key}run", "expired")
                return list(await pipe.execute())

        counts, shares, workers, expired = await self._steady.ask(read)
        of_entries = {name.decode(): float(value) for name, value in counts.items()}
        of_entries.pop(NOT_DUE, None)
        of_workers: dict[str, float] = {}
        for key, value in shares.items():
            # The key is "WORKER NAME_OF_COUNT".
            name = key.decode().partition(" ")[2]
            of_workers[name] = of_workers.get(name, 0) + float(value)
        return of_entries, of_workers, workers, bool(int(expired or 0))

    async def finish(self) -> None:
        """Delete all keys of a run that is summed up."""
        await self._ask("finish", [])

    async def spend(self, host: str) -> int:
        """Count a request to a host; return the host's requests in this run by all workers."""
        key = self._key("asked")
        return int(await self._steady.ask(lambda: self.server.hincrby(key, host, 1)))

    async def close_hosts(self, hosts: Iterable[str]) -> None:
        """Stop requests of all workers to these hosts for the rest of the run."""
        key, names = self._key("closed"), list(hosts)
        await self._steady.ask(lambda: self.server.sadd(key, *names))

    async def closed_hosts(self) -> set[str]:
        """Return the hosts that get no more requests in this run."""
        key = self._key("closed")
        hosts = await self._steady.ask(lambda: self.server.smembers(key))
        return {name.decode() for name in hosts}

    async def postpone(self, entries: Iterable[str]) -> None:
        """Stop queueing these entries in this run; their targets remain due."""
        key, names = self._key("postponed"), list(entries)
        await self._steady.ask(lambda: self.server.sadd(key, *names))

    async def count_postponed(self) -> int:
        """Return the number of entries that this run has postponed."""
        key = self._key("postponed")
        return int(await self._steady.ask(lambda: self.server.scard(key)))

    def encode(self, request: Request) -> str:
        """Serialize a request as JSON.

        Raises TypeError or ValueError if that would change the request, or other workers lack what
        the request needs.
        """
        if type(request) not in CLASSES:
            raise ValueError(f"unsupported request class: {type(request).__name__}")
        if "cookiejar" in request.meta:
            raise ValueError("its cookies are in the memory of this worker")
        parts, encoding = self._parts(request), request.encoding
        headers = {
            name.decode(encoding): [line.decode(encoding) for line in lines]
            for name, lines in parts["headers"].items()
        }
        text = json.dumps(parts | {"headers": headers, "body": request.body.decode(encoding)})
        if len(text) > MAX_CHARACTERS:
            raise ValueError(f"longer than {MAX_CHARACTERS:,} characters")
        if self._parts(self.decode(text)) != parts:
            raise ValueError("it has values other than plain JSON and text")
        return text

    def decode(self, text: str) -> Request:
        """Deserialize a request; raises an error unless it is a request to the spider's own site.

        Its callbacks must be methods that the spider's own class adds. Everything else is taken as
        it is: whoever can write to Redis is trusted.
        """
        parts = json.loads(text)
        own: frozenset[str] = getattr(self.spider, "own_methods", frozenset)()
        if parts.get("callback") not in own or parts.get("errback") not in {None, *own}:
            raise ValueError("callback or errback is not a method of the spider's class")
        # Without the name of a class, which would be imported.
        known = {name: parts[name] for name in Request.attributes if name in parts}
        request = request_from_dict(known, spider=self.spider)
        wrapper = getattr(self.spider, "wrapper", None)
        if wrapper is None or not (is_http(request.url) and wrapper.is_own(request.url)):
            raise ValueError(f"URL of another site: {request.url!r}")
        return request

    def _parts(self, request: Request) -> dict[str, Any]:
        parts = request.to_dict(spider=self.spider)
        return {name: parts[name] for name in Request.attributes}

    def _key(self, name: str) -> str:
        return f"{self.key}{self.id}:{name}"

    async def _ask(self, name: str, args: Args, new_id: str = "") -> Any:
        first: list[Any] = [new_id or self.id, *self._common_args]
        script = self._scripts[name]

        def run() -> Any:
            more = args() if callable(args) else args
            return script(keys=[self.key], args=[*first, next(self._messages), *more])

        reply = await self._steady.ask(run)
        if isinstance(reply, list) and reply[0] == b"over":
            raise RunLost(
                "the shared run ended without this worker, or Redis lost it (check that its "
                "append-only file is on). No data is lost: start the crawl again"
            )
        return reply


def _text(raw: bytes) -> str:
    """Decode a reply; invalid UTF-8 becomes surrogates, which the client encodes unchanged."""
    return raw.decode(errors="surrogateescape")


def _status(reply: list[Any]) -> QueueStatus:
    state, feeds, waiting, leased, workers, _, quiet_ms = reply
    return QueueStatus(state.decode(), bool(feeds), waiting, leased, workers, quiet_ms / 1000)


def _flat(counts: Counts) -> list[str]:
    return [str(part) for pair in counts.items() for part in pair]
