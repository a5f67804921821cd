"""`scrapy duplicates check`: the duplicates in a file of texts, found as crawls find them."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from codecs import BOM_UTF8
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import (
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    contextmanager,
    suppress,
)
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from crawler.cli.base import print_json
from crawler.cli.duplicates import COMMAND, STOPPED, Tell, ended
from crawler.cli.input import Incoming, explained, opened_input
from crawler.config import Config
from crawler.dedup.model import ALONE, Candidate, id_of
from crawler.dedup.scheme import NAMES, Scheme, scheme_of
from crawler.errors import ConfigError
from crawler.ops.progress import working
from crawler.storage import leases
from crawler.storage.client import Document
from crawler.storage.dedup import check_index
from crawler.storage.dedup.boilerplate import stored_at_end
from crawler.storage.dedup.check_index import Index
from crawler.storage.retry import storage_errors
from crawler.storage.store import opened
from crawler.utils.terminal import complain, escaped_json, print_line
from crawler.utils.text import count
from crawler.utils.time import Clock, in_milliseconds

LONGEST_LINE_BYTES = 64_000_000
LONGEST_ID_BYTES = LONGEST_SOURCE_BYTES = 1000
SHOWN_CHARACTERS = 40
# So many seconds are the year 5138; more are milliseconds.
MOST_SECONDS = 1e11
ENDS = b"\n"
BATCH_LINES, BATCH_CHARACTERS = 500, 4_000_000
SHOWN_PROBLEMS = 20
LEAST_THRESHOLD = 0.3


@dataclass(frozen=True, slots=True)
class Line:
    """A line that can be compared.

    key:     its id as JSON, so that `1` and `"1"` are two and each is printed as it came
    created: None where the line does not say
    source:  whose boilerplate the text may have; None where the line does not say
    """

    key: str
    text: str
    created: datetime | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Bad:
    """A line that cannot be compared, and why."""

    number: int
    problem: str


class Lines:
    """Cuts chunks of bytes into numbered lines; a line that does not end is dropped, not kept."""

    def __init__(self, longest_bytes: int = LONGEST_LINE_BYTES) -> None:
        self._longest = longest_bytes
        self._rest: list[bytes] = []
        self._size = self._number = 0

    def of(self, chunk: bytes) -> Iterator[Line | Bad]:
        """The lines that this chunk ends."""
        *ended, rest = chunk.split(ENDS)
        for part in ended:
            self._keep(part)
            yield from self.end()
        self._keep(rest)

    def end(self) -> Iterator[Line | Bad]:
        """The line that has come so far."""
        self._number += 1
        raw, too_long = b"".join(self._rest), self._size > self._longest
        self._rest, self._size = [], 0
        if too_long:
            yield Bad(self._number, f"longer than {self._longest:,} bytes")
        elif raw.removeprefix(BOM_UTF8).strip():
            yield read(raw, self._number)

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._longest:
            self._rest = []
        elif part:
            self._rest.append(part)


class _Number(str):
    """A number as it is written."""


def read(raw: bytes, number: int) -> Line | Bad:
    """What a line says."""
    try:
        text = raw.decode("utf-8-sig")
        try:
            given = json.loads(text, parse_int=_Number, parse_float=_Number, parse_constant=_refuse)
        except ValueError:
            raise ValueError("no JSON") from None
        if not isinstance(given, dict):
            raise ValueError('no object such as {"id": 1, "text": "…"}')
        compared = given.get("text")
        if not isinstance(compared, str) or isinstance(compared, _Number):
            raise ValueError("text is missing" if compared is None else "text is no string")
        created, source = _created(given.get("created")), _source(given.get("source"))
        return Line(_key(given.get("id")), compared, created, source)
    except UnicodeDecodeError:
        return Bad(number, "not UTF-8 (iconv -f latin1 -t utf-8 FILE makes it so)")
    except RecursionError:
        return Bad(number, "JSON nested too deep")
    except ValueError as error:
        return Bad(number, str(error))


def _refuse(name: str) -> None:
    raise ValueError(name)


def _key(id_: Any) -> str:
    if id_ is None:
        raise ValueError("id is missing")
    if not isinstance(id_, str):
        raise ValueError("id is no string and no number")
    key = str(id_) if isinstance(id_, _Number) else json.dumps(id_, ensure_ascii=False)
    try:
        size = len(key.encode())
    except UnicodeEncodeError:  # half of a surrogate pair
        key = json.dumps(id_)
        size = len(key)
    if size > LONGEST_ID_BYTES:
        raise ValueError(f"id is longer than {LONGEST_ID_BYTES:,} bytes")
    return key


def _source(given: Any) -> str | None:
    if given is None:
        return None
    if not isinstance(given, str) or isinstance(given, _Number):
        raise ValueError("source is no string")
    if len(given.encode("utf-8", "replace")) > LONGEST_SOURCE_BYTES:
        raise ValueError(f"source is longer than {LONGEST_SOURCE_BYTES:,} bytes")
    return given.encode("utf-8", "replace").decode()


def _created(given: Any) -> datetime | None:
    if given is None:
        return None
    try:
        if isinstance(given, _Number):
            seconds = float(given)
            if abs(seconds) >= MOST_SECONDS:
                seconds /= 1000
            return in_milliseconds(datetime.fromtimestamp(seconds, UTC))
        moment = datetime.fromisoformat(given.strip())
        return in_milliseconds(moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC))
    except (ValueError, OverflowError, AttributeError, OSError):
        shown = str(given)[:SHOWN_CHARACTERS]
        raise ValueError(f"created is no ISO 8601 time and no Unix time: {shown!r}") from None


def written(
    key: str, duplicate_of: str | None, similarity: float | None, replaces: str | None
) -> str:
    """What a text is, as a line of JSON."""
    alike = "null" if similarity is None else f"{similarity:.4g}"
    line = f'{{"id": {key}, "duplicate_of": {duplicate_of or "null"}, "similarity": {alike}'
    return f'{line}, "replaces": {replaces}}}\n' if replaces else f"{line}}}\n"


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
                text = None
                if line.source is not None and self.index.registry.scheme.weighs:
                    text = sourced(line.source, line.text)
                origin = id_of(line.source or "")
                candidates.append(Candidate(line.key, created, sketch, text=text, source=origin))
                _ = candidates[-1].bands, candidates[-1].id  # made here, while others are claimed
        return Batch(lines, candidates)

    async def _judge(self, batch: Batch) -> None:
        judged = await self.index.judge(batch.candidates, batch.emptied, self.clock.now())
        rows = []
        for line in batch.lines:
            verdict = judged.verdicts.get(line.key, ALONE)
            self.tally.duplicates += not verdict.is_original
            old = judged.replaced.get(line.key)
            self.tally.replacing += old is not None
            rows.append(written(line.key, verdict.duplicate_of, verdict.similarity, old))
        self.tally.texts += len(rows)
        self.write("".join(rows))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which file, where to, and how texts are compared."""
    parser.add_argument(
        "file", metavar="FILE|-",
        help='{"id", "text"} as JSON on each line, and "created" where it is known (ISO 8601 or '
        'Unix time) and "source" to leave out its boilerplate; may be packed by gzip, xz or bzip2; '
        "-: standard input",
    )  # fmt: skip
    parser.add_argument(
        "--keep", metavar="NAME", help="compare with earlier runs of this name, and with later ones"
    )
    parser.add_argument(
        "--output", metavar="FILE", type=Path,
        help="where the lines go (default: standard output); --json prints a summary then",
    )  # fmt: skip
    parser.add_argument(
        "--scheme", choices=NAMES, help="what texts are compared by (default: FRESHET_DUPLICATES)"
    )
    parser.add_argument(
        "--threshold", metavar="J", type=_threshold,
        help="similarity from which on a text is a duplicate, 0.3 to 1 (default: "
        "FRESHET_DUPLICATE_THRESHOLD)",
    )  # fmt: skip


def _threshold(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not LEAST_THRESHOLD <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from {LEAST_THRESHOLD} to 1")
    return value


def run(config: Config, opts: argparse.Namespace) -> int:
    """Print a line for each text; 1 if some lines were none, 130 where it was interrupted."""
    usual = "characters" if config.duplicates == "off" else config.duplicates
    name, threshold = opts.scheme or usual, opts.threshold or config.duplicate_threshold
    scheme = scheme_of(name, threshold)
    if opts.threshold is not None and scheme.threshold != opts.threshold:
        raise ConfigError(f"--threshold: {name} has a threshold of its own")
    # A live line on the terminal takes what is printed to itself.
    outgoing = _outgoing(opts, sys.stdout)
    with ExitStack() as stack:
        if opts.keep is not None:
            check_index.check_name(opts.keep)
        source = stack.enter_context(opened_input(opts.file))
        tally = Tally(source.name)
        tell: Tell | None = None
        if opts.output is not None or not sys.stdout.isatty():
            tell = stack.enter_context(working(config, "opening the database"))
        is_done = ended(_check(config, opts, scheme, source, tally, tell, outgoing))
    tally.end()
    if not is_done:
        left = f"{opts.keep} has them" if opts.keep else "nothing is left in the database"
        complain(COMMAND, f"stopped after {count(tally.texts, 'text')}; {left}")
        return STOPPED
    if opts.output is not None and opts.json:
        print_json(tally.result())
    elif sys.stderr.isatty():
        print_line(str(tally), error=True)
    return 1 if tally.bad else 0


async def _check(
    config: Config,
    opts: argparse.Namespace,
    scheme: Scheme,
    source: Incoming,
    tally: Tally,
    tell: Tell | None,
    outgoing: AbstractContextManager[Tell],
) -> bool:
    clock = Clock(config.clock_offset_hours)
    with storage_errors():
        async with AsyncExitStack() as stack:
            db = await stack.enter_async_context(opened(config))
            if opts.keep is None:
                temporary = check_index.temporary(db, scheme, clock.now())
                index = await stack.enter_async_context(temporary)
            else:
                lease, busy = f"{leases.CHECK}{opts.keep}", f"{opts.keep} is in use"
                await stack.enter_async_context(leases.held(db, config, lease, busy))
                index = await check_index.opened(db, opts.keep, scheme, clock.now())
                await stack.enter_async_context(stored_at_end(index.registry))
            out = stack.enter_context(outgoing)

            def write(rows: str) -> None:
                out(rows)
                if tell is not None:
                    tell(str(tally))

            await Stream(source, index, clock, tally, write).run()
    return True


@contextmanager
def _outgoing(opts: argparse.Namespace, stdout: TextIO) -> Iterator[Tell]:
    """Writes lines where they are to go, each batch at once."""
    if opts.output is None:
        yield lambda rows: print(escaped_json(rows), end="", file=stdout, flush=True)
        return
    path: Path = opts.output
    with explained(str(path)):
        if path.exists() and Path(opts.file).exists() and path.samefile(opts.file):
            raise ConfigError(f"--output {path}: is the file that is read")
        with path.open("w", encoding="utf-8", newline="\n") as file:

            def write(rows: str) -> None:
                file.write(escaped_json(rows))
                file.flush()

            yield write
