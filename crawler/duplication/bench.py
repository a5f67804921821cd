"""`scrapy duplicates bench`: the paper's experiment, on made posts or on those of a file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from crawler.cli.base import print_json
from crawler.cli.duplicates import COMMAND, STOPPED, ended, positive
from crawler.config import Config
from crawler.duplication.edits import KINDS
from crawler.errors import ConfigError
from crawler.ops.progress import working
from crawler.storage.client import Document
from crawler.storage.scratch import explained
from crawler.storage.store import opened
from crawler.utils.terminal import complain
from crawler.utils.text import count

if TYPE_CHECKING:
    from crawler.duplication.corpus import Corpus
    from crawler.duplication.experiment import Measured, Prepared, Query
    from crawler.duplication.indexes import Tell

DOCUMENTS, QUERIES, EDITS = 10_000, 1000, (1, 5)
NAMES = (
    "B6D1",
    "R15D2",
    "R1D3",
    "supershingles",
    "characters",
    "words",
    "datasketch-words",
    "datasketch-chars",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which posts, which copies of them, and what is compared."""
    parser.add_argument(
        "--posts", metavar="FILE", type=Path,
        help='{"id", "text"} as JSON on each line; may be packed by xz or gzip (default: made '
        "posts, which say little about recall)",
    )  # fmt: skip
    parser.add_argument(
        "--documents", metavar="D", type=positive,
        help="posts to index (default: all of the file; 10000 made ones)",
    )  # fmt: skip
    parser.add_argument(
        "--queries", metavar="N", type=positive, default=QUERIES,
        help="copies to look up (default: 1000)",
    )  # fmt: skip
    parser.add_argument(
        "--edits", metavar="N-M", type=_span, default=EDITS,
        help="words changed in a copy (default: 1-5); a Chinese word is two characters",
    )  # fmt: skip
    parser.add_argument(
        "--kinds", choices=KINDS, default="replace",
        help="what is done to a word; all: it is replaced or deleted, or one is inserted",
    )  # fmt: skip
    parser.add_argument(
        "--method", metavar="NAME", action="append", choices=NAMES,
        help=f"may be repeated (default: all): {', '.join(NAMES)}",
    )  # fmt: skip
    parser.add_argument("--seed", metavar="N", type=int, default=1, help="of all that is random")


def _span(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    try:
        least, most = positive(first), positive(last or first)
    except argparse.ArgumentTypeError:
        least, most = 1, 0
    if least > most:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of words such as 3 or 1-5")
    return least, most


def run(config: Config, opts: argparse.Namespace) -> int:
    """Do the experiment and print what came of it; 130 where it was interrupted."""
    try:
        with working(config, "reading posts") as tell:
            done = _experiment(config, opts, tell)
    except KeyboardInterrupt:
        done = None
    if done is None:
        complain(COMMAND, "stopped; nothing of the experiment is left in the database")
        return STOPPED
    if opts.json:
        print_json(done)
    else:
        from crawler.duplication.benchtables import show

        show(done)
    return 0


def _experiment(config: Config, opts: argparse.Namespace, tell: Tell) -> Document | None:
    """What came of it; None where it was interrupted."""
    # Machine code and datasketch are slow to import.
    from crawler.duplication import experiment, results
    from crawler.duplication.methods import METHODS

    names = list(dict.fromkeys(opts.method or NAMES))
    rules = list(dict.fromkeys(METHODS[name].rule for name in names))
    corpus, random = _corpus(opts), Random(opts.seed)
    prepared = experiment.prepare(corpus, rules, opts.queries, random, tell)
    skipped = _said(corpus, prepared.documents, opts)
    queries = experiment.copies(prepared.sample, opts.edits, KINDS[opts.kinds], random)
    measured = ended(_measured(config, names, prepared, queries, tell))
    if measured is None:
        return None
    tell("judging what was found")
    right = experiment.judge(corpus, queries, measured)
    asked = {"edits": list(opts.edits), "kinds": opts.kinds, "seed": opts.seed}
    of_posts = {"posts": corpus.name, "synthetic": corpus.synthetic, "skipped": skipped}
    return of_posts | asked | results.of_all(queries, measured, right, prepared.documents)


def _corpus(opts: argparse.Namespace) -> Corpus:
    from crawler.duplication.corpus import File, Synthetic

    if opts.posts:
        return File(opts.posts, opts.documents)
    return Synthetic(opts.documents or DOCUMENTS, opts.seed)


def _said(corpus: Corpus, documents: int, opts: argparse.Namespace) -> int:
    """Tell what is not as it was asked for; how many lines were skipped."""
    for problem in corpus.problems:
        complain(COMMAND, problem)
    if (more := corpus.skipped - len(corpus.problems)) > 0:
        complain(COMMAND, f"{corpus.name}: {count(more, 'more line')} skipped")
    if not documents:
        raise ConfigError(f'{corpus.name}: no posts (a line of it is {{"id": "1", "text": "…"}})')
    if opts.documents and documents < opts.documents:
        said = f"has {count(documents, 'post')}, not {opts.documents:,}: all of them are used"
        complain(COMMAND, f"{corpus.name} {said}")
    if documents < opts.queries:
        complain(COMMAND, f"one copy of each post: {documents:,}, not {opts.queries:,}")
    return corpus.skipped


async def _measured(
    config: Config,
    names: Sequence[str],
    prepared: Prepared,
    queries: Sequence[Query],
    tell: Tell,
) -> list[Measured]:
    """What each method did, one after the other."""
    from crawler.duplication.experiment import measure

    async with opened(config) as db:
        with explained():
            return [await measure(db, name, prepared, queries, tell) for name in names]
