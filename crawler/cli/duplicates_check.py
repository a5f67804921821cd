"""`scrapy duplicates check`: find the duplicates in a file of texts, as crawls find them."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from codecs import BOM_UTF8
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NotRequired, TextIO

from typing_extensions import TypedDict

from crawler.cli.base import print_json
from crawler.cli.options import similarity
from crawler.config import Config
from crawler.dedup.posts import ALONE, Candidate, id_of
from crawler.dedup.schemes import Scheme, scheme_of
from crawler.dedup.sketch import NAMES
from crawler.errors import ConfigError
from crawler.storage.client import storage_errors
from crawler.storage.dedup.check_index import Index, temporary
from crawler.storage.store import opened
from crawler.utils.files import Incoming, file_errors, opened_input
from crawler.utils.process import INTERRUPTED, Say, interruptible
from crawler.utils.terminal import complain, escaped_json, print_line, working
from crawler.utils.text import count, without_surrogates
from crawler.utils.time import Clock, in_milliseconds

NAME = "duplicates"
MAX_LINE_BYTES = 64_000_000
MAX_ID_BYTES = MAX_SOURCE_BYTES = 1000
SHOWN_CHARACTERS = 40
# Unix times from the year 5138 on are taken as milliseconds.
MAX_SECONDS = 1e11
ENDS = b"\n"
BATCH_LINES, BATCH_CHARACTERS = 500, 4_000_000
SHOWN_PROBLEMS = 20


@dataclass(frozen=True, slots=True)
class Line:
    """A valid line: a text to compare.

    key:     its id as JSON, so that `1` and `"1"` differ and each is printed as it was read
    created: None if the line has no date
    source:  the source whose boilerplate is left out; None if the line has no source
    """

    key: str
    text: str
    created: datetime | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Bad:
    """An invalid line, and its problem."""

    number: int
    problem: str


class Lines:
    """Splits chunks of bytes into numbered lines, in bounded memory.

    A line that is too long is reported, but its bytes are dropped as they arrive.
    """

    def __init__(self, max_bytes: int = MAX_LINE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._rest: list[bytes] = []
        self._size = self._number = 0

    def of(self, chunk: bytes) -> Iterator[Line | Bad]:
        """Yield the lines that end in this chunk."""
        *parts, rest = chunk.split(ENDS)
        for part in parts:
            self._append(part)
            yield from self.end()
        self._append(rest)

    def end(self) -> Iterator[Line | Bad]:
        """Yield the current line, unless it is blank."""
        self._number += 1
        raw, too_long = b"".join(self._rest), self._size > self._max_bytes
        self._rest, self._size = [], 0
        if too_long:
            yield Bad(self._number, f"longer than {self._max_bytes:,} bytes")
        elif raw.removeprefix(BOM_UTF8).strip():
            yield parse_line(raw, self._number)

    def _append(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._max_bytes:
            self._rest = []
        elif part:
            self._rest.append(part)


class _Number(str):
    """A number of a JSON text, with its original spelling."""


def parse_line(raw: bytes, number: int) -> Line | Bad:
    """Parse a line of the file. number: of the line, for messages."""
    try:
        text = raw.decode("utf-8-sig")
        try:
            row = json.loads(
                text, parse_int=_Number, parse_float=_Number, parse_constant=_reject_constant
            )
        except ValueError:
            raise ValueError("not valid JSON") from None
        if not isinstance(row, dict):
            raise ValueError('not an object such as {"id": 1, "text": "…"}')
        compared = row.get("text")
        if not isinstance(compared, str) or isinstance(compared, _Number):
            raise ValueError("text is missing" if compared is None else "text is not a string")
        created, source = _parse_created(row.get("created")), _parse_source(row.get("source"))
        return Line(_parse_id(row.get("id")), compared, created, source)
    except UnicodeDecodeError:
        return Bad(number, "not valid UTF-8. Convert it, as with iconv -f latin1 -t utf-8 FILE")
    except RecursionError:
        return Bad(number, "JSON is nested too deeply")
    except ValueError as error:
        return Bad(number, str(error))


def _reject_constant(name: str) -> None:
    """Raise ValueError for NaN and Infinity: Python's parser accepts them, but JSON does not."""
    raise ValueError(name)


def _parse_id(value: Any) -> str:
    """Return an id as JSON text."""
    if value is None:
        raise ValueError("id is missing")
    if not isinstance(value, str):
        raise ValueError("id is not a string or number")
    key = str(value) if isinstance(value, _Number) else json.dumps(value, ensure_ascii=False)
    try:
        size = len(key.encode())
    except UnicodeEncodeError:  # half of a surrogate pair
        key = json.dumps(value)
        size = len(key)
    if size > MAX_ID_BYTES:
        raise ValueError(f"id is longer than {MAX_ID_BYTES:,} bytes")
    return key


def _parse_source(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or isinstance(value, _Number):
        raise ValueError("source is not a string")
    if len(value.encode("utf-8", "replace")) > MAX_SOURCE_BYTES:
        raise ValueError(f"source is longer than {MAX_SOURCE_BYTES:,} bytes")
    return without_surrogates(value)


def _parse_created(value: Any) -> datetime | None:
    """Return an ISO 8601 time or a Unix time in seconds or milliseconds as a time in UTC."""
    if value is None:
        return None
    try:
        if isinstance(value, _Number):
            seconds = float(value)
            if abs(seconds) >= MAX_SECONDS:
                seconds /= 1000
            return in_milliseconds(datetime.fromtimestamp(seconds, UTC))
        moment = datetime.fromisoformat(value.strip())
        return in_milliseconds(moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC))
    except (ValueError, OverflowError, AttributeError, OSError):
        shown = str(value)[:SHOWN_CHARACTERS]
        raise ValueError(f"created is not an ISO 8601 or Unix time: {shown!r}") from None


def result_line(
    key: str, duplicate_of: str | None, similarity: float | None, replaces: str | None
) -> str:
    """Return the verdict on a text as a line of JSON."""
    alike = "null" if similarity is None else f"{similarity:.4g}"
    line = f'{{"id": {key}, "duplicate_of": {duplicate_of or "null"}, "similarity": {alike}'
    return f'{line}, "replaces": {replaces}}}\n' if replaces else f"{line}}}\n"


class CheckedText(TypedDict):
    """The verdict on a text. Each line of the output is one object."""

    id: str | float
    """Id of the text, as given."""
    duplicate_of: str | float | None
    """Id of the original; null for an original."""
    similarity: float | None
    """Estimated Jaccard similarity to the original; null for an original."""
    replaces: NotRequired[str | float]
    """Id of an earlier original that this text replaces, because it is older."""


class CheckReport(TypedDict):
    """Numbers of checked texts."""

    texts: int
    """Number of texts."""
    originals: int
    """Number of texts that are not duplicates."""
    duplicates: int
    """Number of duplicates."""
    replacing: int
    """Number of originals that replaced an earlier original."""
    bad_lines: int
    """Number of invalid lines."""
    seconds: float
    """Duration in seconds."""


@dataclass(slots=True)
class Tally:
    """Counts of the lines read so far. name: of the file, for messages."""

    name: str
    started: float = field(default_factory=time.monotonic)
    texts: int = 0
    duplicates: int = 0
    replacing: int = 0
    bad: int = 0

    def note(self, bad: Bad) -> None:
        """Count an invalid line, and print the problem if it is among the first."""
        self.bad += 1
        if self.bad <= SHOWN_PROBLEMS:
            complain(NAME, f"{self.name}, line {bad.number:,}: {bad.problem}")

    def end(self) -> None:
        """Print the number of invalid lines that were not printed."""
        if (more := self.bad - SHOWN_PROBLEMS) > 0:
            complain(NAME, f"{self.name}: and {more:,} more invalid lines")

    def report(self) -> CheckReport:
        """Return the counts."""
        return {
            "texts": self.texts,
            "originals": self.texts - self.duplicates,
            "duplicates": self.duplicates,
            "replacing": self.replacing,
            "bad_lines": self.bad,
            "seconds": round(time.monotonic() - self.started, 3),
        }

    def __str__(self) -> str:
        done = self.report()
        per_second = self.texts / max(done["seconds"], 1e-3)
        replacing = f" ({self.replacing:,} replacing later ones)" if self.replacing else ""
        return (
            f"{count(self.texts, 'text')}, {count(done['originals'], 'original')}{replacing}, "
            f"{count(self.duplicates, 'duplicate')}, {done['seconds']:.1f} s ({per_second:,.0f}/s)"
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """Lines with distinct ids, and candidates for the lines that have text."""

    lines: Sequence[Line]
    candidates: Sequence[Candidate]

    @property
    def emptied(self) -> list[str]:
        """Return the keys of lines without text."""
        compared = {candidate.key for candidate in self.candidates}
        return [line.key for line in self.lines if line.key not in compared]


@dataclass(frozen=True, slots=True)
class Stream:
    """Compares the texts of a file with an index.

    write: prints the result lines of a batch
    """

    source: Incoming
    index: Index
    clock: Clock
    tally: Tally
    write: Callable[[str], object]

    async def run(self) -> None:
        """Compare the texts and write their results, in the order of the lines."""
        ready: asyncio.Queue[Batch | None] = asyncio.Queue(1)
        reading = asyncio.ensure_future(self._prepare(ready.put))
        try:
            while (batch := await ready.get()) is not None:
                await self._compare(batch)
            await reading
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading

    async def _prepare(self, put: Callable[[Batch | None], Awaitable[None]]) -> None:
        try:
            async for lines in self._batches():
                await put(await asyncio.to_thread(self._sketch, lines))
        except asyncio.CancelledError:
            raise  # `run` has stopped reading the queue, so that `put` would wait forever
        except BaseException:
            await put(None)
            raise
        await put(None)

    async def _batches(self) -> AsyncIterator[list[Line]]:
        """Yield lines in batches: full ones, or smaller ones as soon as a slow writer pauses."""
        lines, batch, keys, characters = Lines(), list[Line](), set[str](), 0
        async for chunk in self._chunks():
            for line in lines.of(chunk) if chunk is not None else lines.end():
                if isinstance(line, Bad):
                    self.tally.note(line)
                    continue
                # A repeated id is an edit of the earlier text, so it goes into a later batch.
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
        """Yield the file's chunks, then None."""
        async for chunk in self.source.chunks():
            yield chunk
        yield None

    def _sketch(self, lines: Sequence[Line]) -> Batch:
        from crawler.dedup.boilerplate import sourced  # slow: loads the compiled kernels

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
                # Computed and cached here, in the thread, while the previous batch is compared.
                _ = candidates[-1].bands, candidates[-1].id
        return Batch(lines, candidates)

    async def _compare(self, batch: Batch) -> None:
        judged = await self.index.judge(batch.candidates, batch.emptied, self.clock.now())
        rows = []
        for line in batch.lines:
            verdict = judged.verdicts.get(line.key, ALONE)
            self.tally.duplicates += not verdict.is_original
            old = judged.replaced.get(line.key)
            self.tally.replacing += old is not None
            rows.append(result_line(line.key, verdict.duplicate_of, verdict.similarity, old))
        self.tally.texts += len(rows)
        self.write("".join(rows))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the input file, the output, and the options of the comparison."""
    parser.add_argument(
        "file", metavar="FILE|-",
        help='file with a JSON object per line: "id", "text", and optionally "created" (ISO 8601 '
        'or Unix time) and "source" (whose boilerplate is left out); plain or compressed with '
        "gzip, xz or bzip2; - is stdin",
    )  # fmt: skip
    parser.add_argument(
        "--output", metavar="FILE", type=Path,
        help="file to write the results to (default: standard output); with --json, a summary is "
        "printed",
    )  # fmt: skip
    parser.add_argument(
        "--scheme", choices=NAMES, help="how texts are compared (default: FRESHET_DUPLICATES)"
    )
    parser.add_argument(
        "--threshold", metavar="J", type=similarity,
        help="minimum similarity of duplicates, 0.3 to 1 (default: FRESHET_DUPLICATE_THRESHOLD)",
    )  # fmt: skip


def run(config: Config, opts: argparse.Namespace) -> int:
    """Print a result for each text; return 1 if lines are invalid, 130 if interrupted."""
    default = "characters" if config.duplicates == "off" else config.duplicates
    name, threshold = opts.scheme or default, opts.threshold or config.duplicate_threshold
    scheme = scheme_of(name, threshold)
    if opts.threshold is not None and scheme.threshold != opts.threshold:
        raise ConfigError(f"--threshold: not allowed with {name}, which has a fixed threshold")
    # The progress line replaces sys.stdout, so the output needs the original stream.
    output = _open_output(opts, sys.stdout)
    with ExitStack() as stack:
        source = stack.enter_context(opened_input(opts.file))
        tally = Tally(source.name)
        progress: Say | None = None
        if opts.output is not None or not sys.stdout.isatty():
            progress = stack.enter_context(working(config.progress, "opening the database"))
        is_done = interruptible(_check(config, scheme, source, tally, progress, output))
    tally.end()
    if not is_done:
        complain(NAME, f"interrupted after {count(tally.texts, 'text')}")
        return INTERRUPTED
    if opts.output is not None and opts.json:
        print_json(tally.report())
    elif sys.stderr.isatty():
        print_line(str(tally), error=True)
    return 1 if tally.bad else 0


async def _check(
    config: Config,
    scheme: Scheme,
    source: Incoming,
    tally: Tally,
    progress: Say | None,
    output: AbstractContextManager[Callable[[str], None]],
) -> bool:
    """Compare the texts of the source; returns True when it is done."""
    clock = config.clock
    with storage_errors():
        async with AsyncExitStack() as stack:
            db = await stack.enter_async_context(opened(config))
            index = await stack.enter_async_context(temporary(db, scheme, clock.now()))
            out = stack.enter_context(output)

            def write(rows: str) -> None:
                out(rows)
                if progress is not None:
                    progress(str(tally))

            await Stream(source, index, clock, tally, write).run()
    return True


@contextmanager
def _open_output(opts: argparse.Namespace, stdout: TextIO) -> Iterator[Callable[[str], None]]:
    """Open the output; yield a function that writes a batch and flushes it."""
    if opts.output is None:
        yield lambda rows: print(escaped_json(rows), end="", file=stdout, flush=True)
        return
    path: Path = opts.output
    with file_errors(str(path)):
        if path.exists() and Path(opts.file).exists() and path.samefile(opts.file):
            raise ConfigError(f"--output {path}: this is the input file. Give another file")
        with path.open("w", encoding="utf-8", newline="\n") as file:

            def write(rows: str) -> None:
                file.write(escaped_json(rows))
                file.flush()

            yield write
