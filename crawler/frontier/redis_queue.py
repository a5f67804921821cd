"""The queue of a shared run: entries wait, are leased to workers, and are done or come back.

An entry is a target, by its key, or a request that a spider made, as JSON. Each step is one script,
and each may be asked twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from inspect import signature
from itertools import count
from pathlib import Path
from secrets import token_hex
from typing import Any

from redis.commands.core import AsyncScript
from scrapy import Request, Spider
from scrapy.utils.request import request_from_dict
from scrapy_redis.queue import Base

from crawler.errors import PassLost
from crawler.frontier import serializer
from crawler.frontier.base import Counts
from crawler.storage.redis import RedisRetry, user_errors

FOLDER = Path(__file__).parent / "lua"
# Requests that Scrapy has, and that do not differ from others once they are made.
CLASSES = tuple(
    f"scrapy.http.request.{name}"
    for name in ("form.FormRequest", "json_request.JsonRequest", "rpc.XmlRpcRequest")
)
REDIS_ID = "freshet:id"
EXPIRY_MS = 24 * 3600 * 1000
Words = list[Any] | Callable[[], list[Any]]


@dataclass(frozen=True, slots=True)
class Lease:
    """An entry that this worker is to work on.

    body:  of a request; of a target the key where the entry's name is another; else empty
    count: leases of this entry so far, this one included
    """

    entry: str
    body: str
    count: int


@dataclass(frozen=True, slots=True)
class Joined:
    """How a worker found the run.

    todo: "prepare" it, "join" it, or "wait" until it is prepared or over
    run:  its `_id` in MongoDB; started: in milliseconds since 1970; both empty where not yet known
    """

    todo: str
    id: str
    run: str
    started: str


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """How the run stands.

    feeds:   whether it is this worker that finds out what is due
    waiting, leased, workers: how many
    """

    state: str
    feeds: bool
    waiting: int
    leased: int
    workers: int

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits, and nobody works on anything."""
        return not self.waiting and not self.leased


class LeasedQueue(Base):  # type: ignore[misc]
    """A worker's end of the queue; what is asked before `join` has succeeded concerns no run."""

    def __init__(
        self, steady: RedisRetry, spider: Spider, key: str, worker: str, lease_ms: int
    ) -> None:
        super().__init__(steady.client, spider, key.replace("%", "%%"), serializer)
        self.id, self.worker = "", worker
        self._steady = steady
        self._ours = [worker, lease_ms, EXPIRY_MS]
        self._messages = count(1)
        names = ("join", "open", "feed", "push", "work", "renew", "close", "leave", "finish")
        self._scripts = {name: self._script(name) for name in names}

    async def join(self, new_id: str) -> Joined:
        """Take part in the spider's run, or begin one of this id."""
        reply = await self._ask("join", [], new_id)
        joined = Joined(*(part.decode() for part in reply))
        self.id = joined.id
        return joined

    async def redis_id(self) -> str:
        """Return the id of what this Redis keeps: workers with the same id share their runs."""
        with user_errors(self.server):
            await self._steady.ask(lambda: self.server.set(REDIS_ID, token_hex(8), nx=True))
            redis_id = await self._steady.ask(lambda: self.server.get(REDIS_ID))
        return (redis_id or b"").decode()

    async def open(self, run: str, started_ms: int) -> bool:
        """The run is prepared: work may begin. False if another worker has taken that over."""
        return bool(await self._ask("open", [run, started_ms]))

    async def feed(
        self, most: int, entries: Iterable[tuple[str, str]]
    ) -> tuple[QueueStatus, int, int]:
        """Let `most` of these entries (name, body) wait, in this order, that do not yet.

        Returns how the run stands, how many that were, and how many were let wait so far.
        """
        reply = await self._ask("feed", [most, *(part for entry in entries for part in entry)])
        return _status(reply), *reply[5]

    async def push(self, entry: str, fingerprint: str, priority: int, body: str) -> bool:
        """Let a request wait; False where one of this fingerprint did before."""
        return bool(await self._ask("push", [entry, fingerprint, priority, body]) == 1)

    async def work(
        self, done: Sequence[tuple[str, Counts]], want: int, most_leases: int
    ) -> tuple[QueueStatus, list[Lease]]:
        """Say what is done, with what is to be counted of it, and lease up to `want` entries."""
        words: list[str | int] = []
        for entry, counts in done:
            words += [entry, len(counts), *_flat(counts)]

        def now() -> list[str | int]:
            # Right after an outage nobody leases: others have not said yet what they hold.
            return [want if self._steady.is_settled else 0, most_leases, *words]

        reply = await self._ask("work", now)
        parts = iter(reply[5])
        leases = zip(parts, parts, parts, strict=True)
        return _status(reply), [Lease(_text(n), _text(b), int(c)) for n, b, c in leases]

    async def renew(
        self, held: Iterable[str], shares: Counts, *, sure: Callable[[], bool], back: bool
    ) -> tuple[QueueStatus, set[str]]:
        """Keep what is held; which leases are lost to others.

        shares: this worker's own sums so far
        sure:   whether the last word with the server is younger than a lease
        back:   the server was away since
        """
        words = [int(back), len(shares), *_flat(shares), *held]
        reply = await self._ask("renew", lambda: [int(sure()), *words])
        return _status(reply), {_text(entry) for entry in reply[5]}

    async def close(self) -> bool:
        """Let the run end if nothing is left; whether it does."""
        return bool(await self._ask("close", []))

    async def leave(self, shares: Counts) -> tuple[bool, int, int]:
        """Give back what is held, and go.

        Returns whether this worker is to sum up the run, how many others are still at work (it is
        to ask again until there are none), and the visits of the run so far.
        """
        closes, others, visits = await self._ask("leave", _flat(shares))
        return bool(closes), others, int(float(visits))

    async def sums(self) -> tuple[dict[str, float], dict[str, float], int, bool]:
        """What was counted of entries, and of workers; how many were they, has a lease expired."""
        names = [self._key(name) for name in ("counts", "shares", "members")]
        with user_errors(self.server):
            counts, shares, workers, expired = await self._steady.ask(lambda: self._read(*names))
        of_entries = {name.decode(): float(value) for name, value in counts.items()}
        of_workers: dict[str, float] = {}
        for key, value in shares.items():
            # Its worker, and the name of a count.
            name = key.decode().partition(" ")[2]
            of_workers[name] = of_workers.get(name, 0) + float(value)
        return of_entries, of_workers, workers, bool(int(expired or 0))

    async def finish(self) -> None:
        """The run is over and summed up: nothing of it stays."""
        await self._ask("finish", [])

    async def spend(self, host: str) -> int:
        """Count a request to a host; how many it has had in this run, of all workers."""
        key = self._key("asked")
        with user_errors(self.server):
            return int(await self._steady.ask(lambda: self.server.hincrby(key, host, 1)))

    async def shut(self, hosts: Iterable[str]) -> None:
        """These hosts get no more requests in this run."""
        key, names = self._key("closed"), list(hosts)
        with user_errors(self.server):
            await self._steady.ask(lambda: self.server.sadd(key, *names))

    async def shut_hosts(self) -> set[str]:
        """Hosts that get no more requests in this run."""
        key = self._key("closed")
        with user_errors(self.server):
            hosts = await self._steady.ask(lambda: self.server.smembers(key))
        return {name.decode() for name in hosts}

    def encode(self, request: Request) -> str:
        """A request as text; raises TypeError or ValueError for one that cannot leave this process.

        That is one that `decode` would refuse.
        """
        parts = request.to_dict(spider=self.spider)
        if parts.pop("_class", None) in CLASSES:
            parts = {name: part for name, part in parts.items() if name in serializer.PARTS}
        elif type(request) is not Request:
            raise ValueError(f"of the class {type(request).__name__}")
        text = serializer.dumps(parts)
        self.decode(text)
        return text

    def decode(self, text: str) -> Request:
        """The request in a text; raises ValueError for what no spider of this kind can have made.

        It leads to the site itself, has the parts that `serializer.check` allows, and comes back
        to a method that the spider's own class adds.
        """
        parts = serializer.loads(text)
        serializer.check(parts)
        wrapper = getattr(self.spider, "wrapper", None)
        if wrapper is None or not wrapper.is_own(parts["url"]):
            raise ValueError("its URL is not on this site")
        own: frozenset[str] = getattr(self.spider, "own_methods", frozenset)()
        for name, given in (("callback", parts.get("cb_kwargs", {})), ("errback", {})):
            method = parts.get(name)
            if method not in own and (method is not None or name == "callback"):
                raise ValueError(f"its {name} is not a method that the spider's class adds")
            if method is not None:
                # It has to take a response, or a failure, and these arguments.
                try:
                    signature(getattr(self.spider, method)).bind(None, **given)
                except TypeError as error:
                    raise ValueError(f"its callback: {error}") from None
        return request_from_dict(parts, spider=self.spider)

    async def _read(self, counts: str, shares: str, workers: str) -> list[Any]:
        async with self.server.pipeline(transaction=False) as pipe:
            pipe.hgetall(counts).hgetall(shares).scard(workers).hget(f"{self.key}pass", "expired")
            return list(await pipe.execute())

    def _key(self, name: str) -> str:
        return f"{self.key}{self.id}:{name}"

    def _script(self, name: str) -> AsyncScript:
        files = (FOLDER / f"{part}.lua" for part in ("pass", name))
        script: AsyncScript = self.server.register_script("".join(f.read_text() for f in files))
        return script

    async def _ask(self, name: str, words: Words, new_id: str = "") -> Any:
        first: list[Any] = [new_id or self.id, *self._ours]
        script = self._scripts[name]

        def run() -> Any:
            more = words() if callable(words) else words
            return script(keys=[self.key], args=[*first, next(self._messages), *more])

        with user_errors(self.server):
            reply = await self._steady.ask(run)
        if isinstance(reply, list) and reply[0] == b"over":
            raise PassLost(
                "the pass is over without this worker, or Redis lost it (is its append-only file "
                "off?): start again, nothing is lost"
            )
        return reply


def _text(raw: bytes) -> str:
    """What is no UTF-8 with halves of surrogate pairs, as the client sends it back."""
    return raw.decode(errors="surrogateescape")


def _status(reply: list[Any]) -> QueueStatus:
    state, feeds, waiting, leased, workers = reply[:5]
    return QueueStatus(state.decode(), bool(feeds), waiting, leased, workers)


def _flat(counts: Counts) -> list[str]:
    return [str(part) for pair in counts.items() for part in pair]
