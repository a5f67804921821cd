"""Compare and label posts in a process of its own: `python -m crawler.reports.duplicate_jobs`.

Comparing posts needs compiled code, whose compiler takes 60 MB and a second to load. The web app
keeps one such process for all of its comparisons. Standard input and output carry pickles, each
after its length: first the settings of the app as JSON, then jobs in, and a result and an error out
for each. When standard input ends, the process exits.
"""

from __future__ import annotations

import asyncio
import pickle
import struct
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import Any, BinaryIO

from crawler.config import Config
from crawler.errors import FreshetError
from crawler.reports.duplicates import Comparison, compare_posts, put_label
from crawler.storage.client import Database
from crawler.storage.dedup.labels import Label
from crawler.storage.outages import raising_unreachable
from crawler.storage.store import opened

LENGTH = struct.Struct(">Q")


@dataclass(frozen=True, slots=True)
class CompareJob:
    """Compare two posts. posts: URLs or ids."""

    posts: tuple[str, str]

    async def run(self, db: Database, config: Config) -> Comparison:
        """Return the comparison; raises ConfigError."""
        return await compare_posts(db, config, self.posts, None, by_datasketch=False)


@dataclass(frozen=True, slots=True)
class LabelJob:
    """Label two posts. posts: ids; same: whether they are the same; by: name of the user."""

    posts: tuple[str, str]
    same: bool
    by: str
    now: datetime

    async def run(self, db: Database, config: Config) -> Label:
        """Return the stored label; raises ConfigError, and Busy during a rebuild."""
        return await put_label(db, config, self.posts, self.now, same=self.same, by=self.by)


Job = CompareJob | LabelJob


def packed(message: object) -> bytes:
    """Return a message as it is sent."""
    data = pickle.dumps(message)
    return LENGTH.pack(len(data)) + data


async def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Run the jobs of a stream until its end. Other errors than FreshetError end the process."""
    async with AsyncExitStack() as stack:
        config = Config.load(**await asyncio.to_thread(_read, source))
        db: Database | None = None
        while (job := await asyncio.to_thread(_read, source)) is not None:
            error: FreshetError | None = None
            result = None
            try:
                with raising_unreachable():
                    if db is None:
                        db = await stack.enter_async_context(opened(config))
                    result = await job.run(db, config)
            except FreshetError as problem:
                error = problem
            sink.write(packed((result, error)))
            sink.flush()


def _read(source: BinaryIO) -> Any:
    """Return the next message of the app; None at the end."""
    head = source.read(LENGTH.size)
    return pickle.loads(source.read(*LENGTH.unpack(head))) if head else None


if __name__ == "__main__":
    asyncio.run(serve(sys.stdin.buffer, sys.stdout.buffer))
