"""`scrapy duplicates check`: the duplicates in a file of texts, found as crawls find them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TextIO

from crawler.command import print_json
from crawler.config import Config
from crawler.dedup.scheme import NAMES, Scheme, scheme_of
from crawler.duplication import incoming
from crawler.duplication.common import COMMAND, STOPPED, ended
from crawler.duplication.incoming import Incoming
from crawler.duplication.stream import Stream, Tally
from crawler.errors import ConfigError
from crawler.storage import leases
from crawler.storage.client import Database
from crawler.storage.duplicates import kept
from crawler.storage.duplicates.boilerplate import stored_at_end
from crawler.storage.duplicates.kept import Index
from crawler.storage.duplicates.trouble import told
from crawler.storage.store import opened
from crawler.utils.terminal import complain, escaped_json, print_line
from crawler.utils.text import count
from crawler.utils.time import Clock
from crawler.working import working

LEAST_THRESHOLD = 0.3
Tell = Callable[[str], None]


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
    scheme = _scheme(config, opts)
    # A live line on the terminal takes what is printed to itself.
    outgoing = _outgoing(opts, sys.stdout)
    with ExitStack() as stack:
        if opts.keep is not None:
            kept.check_name(opts.keep)
        source = stack.enter_context(incoming.opened(opts.file))
        tally = Tally(source.name)
        tell = stack.enter_context(_progress(config, opts))
        is_done = ended(_check(config, opts, scheme, source, tally, tell, outgoing))
    return _end(opts, tally, is_done=bool(is_done))


def _scheme(config: Config, opts: argparse.Namespace) -> Scheme:
    usual = "characters" if config.duplicates == "off" else config.duplicates
    name, threshold = opts.scheme or usual, opts.threshold or config.duplicate_threshold
    scheme = scheme_of(name, threshold)
    if opts.threshold is not None and scheme.threshold != opts.threshold:
        raise ConfigError(f"--threshold: {name} has a threshold of its own")
    return scheme


@contextmanager
def _progress(config: Config, opts: argparse.Namespace) -> Iterator[Tell]:
    """A live line, where the terminal is free for it."""
    if opts.output is None and sys.stdout.isatty():
        yield lambda what: None
        return
    with working(config, "opening the database") as tell:
        yield tell


async def _check(
    config: Config,
    opts: argparse.Namespace,
    scheme: Scheme,
    source: Incoming,
    tally: Tally,
    tell: Tell,
    outgoing: AbstractContextManager[Tell],
) -> bool:
    clock = Clock(config.clock_offset_hours)
    with told():
        async with opened(config) as db, _index(db, config, opts, scheme) as index:
            with outgoing as out:

                def write(rows: str) -> None:
                    out(rows)
                    tell(str(tally))

                await Stream(source, index, clock, tally, write).run()
    return True


@asynccontextmanager
async def _index(
    db: Database, config: Config, opts: argparse.Namespace, scheme: Scheme
) -> AsyncIterator[Index]:
    clock = Clock(config.clock_offset_hours)
    if opts.keep is not None:
        busy = f"{opts.keep} is in use"
        async with leases.held(db, config, f"{leases.CHECK}{opts.keep}", busy):
            index = await kept.opened(db, opts.keep, scheme, clock.now())
            async with stored_at_end(index.registry):
                yield index
        return
    async with kept.temporary(db, scheme, clock.now()) as index:
        yield index


@contextmanager
def _outgoing(opts: argparse.Namespace, stdout: TextIO) -> Iterator[Tell]:
    """Writes lines where they are to go, each batch at once."""
    if opts.output is None:
        yield lambda rows: print(escaped_json(rows), end="", file=stdout, flush=True)
        return
    path: Path = opts.output
    with incoming.explained(str(path)):
        if path.exists() and Path(opts.file).exists() and path.samefile(opts.file):
            raise ConfigError(f"--output {path}: is the file that is read")
        with path.open("w", encoding="utf-8", newline="\n") as file:

            def write(rows: str) -> None:
                file.write(escaped_json(rows))
                file.flush()

            yield write


def _end(opts: argparse.Namespace, tally: Tally, *, is_done: bool) -> int:
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
