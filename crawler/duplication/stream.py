"""Texts through an index, a batch at a time: the next is read while one is being claimed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from crawler.dedup.model import ALONE, Candidate, id_of
from crawler.duplication.common import COMMAND
from crawler.duplication.incoming import Incoming
from crawler.duplication.lines import Bad, Line, Lines, written
from crawler.storage.client import Document
from crawler.storage.duplicates.kept import Index
from crawler.utils.terminal import complain
from crawler.utils.text import count
from crawler.utils.time import Clock

BATCH_LINES, BATCH_CHARACTERS = 500, 4_000_000
SHOWN_PROBLEMS = 20


@dataclass(slots=True)
class Tally:
    """What has come so far of the file with this name."""

    name: str
    started: float = field(default_factory=time.monotonic)
    texts: int = 0
    duplicates: int = 0
    replacing: int = 0
    bad: int = 0

    def note(self, bad: Bad) -> None:
        """Count a line that cannot be compared; the first of them are told."""
        self.bad += 1
        if self.bad <= SHOWN_PROBLEMS:
            complain(COMMAND, f"{self.name}, line {bad.number:,}: {bad.problem}")

    def end(self) -> None:
        """Tell how many more there were."""
        if (more := self.bad - SHOWN_PROBLEMS) > 0:
            complain(COMMAND, f"{self.name}: and {more:,} more such lines")

    def result(self) -> Document:
        """As `--json` prints it."""
        return {
            "texts": self.texts,
            "originals": self.texts - self.duplicates,
            "duplicates": self.duplicates,
            "replacing": self.replacing,
            "bad_lines": self.bad,
            "seconds": round(time.monotonic() - self.started, 3),
        }

    def __str__(self) -> str:
        done = self.result()
        each_second = self.texts / max(done["seconds"], 1e-3)
        replacing = f" ({self.replacing:,} in place of later ones)" if self.replacing else ""
        return (
            f"{count(self.texts, 'text')}, {count(done['originals'], 'original')}{replacing}, "
            f"{count(self.duplicates, 'duplicate')}, {done['seconds']:.1f} s ({each_second:,.0f}/s)"
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """Lines with different ids, and those of them that have a text to compare."""

    lines: Sequence[Line]
    candidates: Sequence[Candidate]

    @property
    def emptied(self) -> list[str]:
        """Keys of lines without text."""
        compared = {candidate.key for candidate in self.candidates}
        return [line.key for line in self.lines if line.key not in compared]


@dataclass(frozen=True, slots=True)
class Stream:
    """A file on its way through an index.

    write: takes what is printed for a batch
    """

    source: Incoming
    index: Index
    clock: Clock
    tally: Tally
    write: Callable[[str], object]

    async def run(self) -> None:
        """Judge and write line by line, in their order."""
        ready: asyncio.Queue[Batch | None] = asyncio.Queue(1)
        reading = asyncio.ensure_future(self._prepare(ready.put))
        try:
            while (batch := await ready.get()) is not None:
                await self._judge(batch)
            await reading
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading

    async def _prepare(self, put: Callable[[Batch | None], Awaitable[None]]) -> None:
        try:
            async for lines in self._batches():
                await put(await asyncio.to_thread(self._sketched, lines))
        except asyncio.CancelledError:
            raise  # nobody takes anything any more
        except BaseException:
            await put(None)
            raise
        await put(None)

    async def _batches(self) -> AsyncIterator[list[Line]]:
        """Lines as they come; whoever writes slowly need not wait for a batch to be full."""
        cut, batch, keys, characters = Lines(), list[Line](), set[str](), 0
        async for chunk in self._chunks():
            for line in cut.of(chunk) if chunk is not None else cut.end():
                if isinstance(line, Bad):
                    self.tally.note(line)
                    continue
                # A text that comes again is an edit of the first: one after the other.
                full = len(batch) == BATCH_LINES or characters >= BATCH_CHARACTERS
                if full or line.key in keys:
                    yield batch
                    batch, keys, characters = [], set(), 0
                batch.append(line)
                keys.add(line.key)
                characters += len(line.text)
            if batch and (chunk is None or self.source.waits()):
                yield batch
                batch, keys, characters = [], set(), 0

    async def _chunks(self) -> AsyncIterator[bytes | None]:
        async for chunk in self.source.chunks():
            yield chunk
        yield None

    def _sketched(self, lines: Sequence[Line]) -> Batch:
        from crawler.dedup.boilerplate import sourced  # with the kernels' machine code

        candidates = []
        for line in lines:
            created = line.created or self.index.tick(self.clock.now())
            sketch = self.index.registry.scheme.sketch(line.text)
            if sketch is not None:
                known = None
                if line.source is not None and self.index.registry.scheme.weighs:
                    known = sourced(line.source, line.text)
                origin = id_of(line.source or "")
                candidates.append(Candidate(line.key, created, sketch, text=known, source=origin))
                _ = candidates[-1].bands, candidates[-1].id  # made here, while others are claimed
        return Batch(lines, candidates)

    async def _judge(self, batch: Batch) -> None:
        judged = await self.index.judge(batch.candidates, batch.emptied, self.clock.now())
        rows = []
        for line in batch.lines:
            found = judged.verdicts.get(line.key, ALONE)
            self.tally.duplicates += not found.is_original
            old = judged.replaced.get(line.key)
            self.tally.replacing += old is not None
            rows.append(written(line.key, found.duplicate_of, found.similarity, old))
        self.tally.texts += len(rows)
        self.write("".join(rows))
