"""`scrapy pages build`: pages of cells, as files."""

from __future__ import annotations

import argparse
import asyncio

from crawler.cli.base import print_json
from crawler.config import Config
from crawler.storage import cells
from crawler.storage.client import Document
from crawler.storage.store import opened
from crawler.utils.terminal import complain, print_line
from crawler.utils.text import count
from crawler.utils.time import Clock
from crawler.web.pages.options import add_listening, add_places, listening, places

COMMAND = "pages"


def build_options(parser: argparse.ArgumentParser) -> None:
    """Where from and where to."""
    add_places(parser)


def run_build(config: Config, opts: argparse.Namespace) -> int:
    """Build once; 1 where a page failed. Raises FreshetError."""
    # Jinja is slow to import: not for --help.
    from crawler.web.pages import sources
    from crawler.web.pages.build import build
    from crawler.web.pages.render import Cells

    order = places(config, opts)
    found = sources.find(order.templates)
    documents = asyncio.run(_read(config))
    now = Clock(config.clock_offset_hours).now()
    done = build(Cells(documents, now), found, order.out)
    for problem in done.problems.values():
        complain(COMMAND, problem)
    if opts.json:
        print_json({"pages": done.pages, "out": str(order.out)})
    else:
        print_line(f"{done} -> {order.out}")
    return 1 if done.problems else 0


async def _read(config: Config) -> list[Document]:
    async with opened(config) as db:
        return await cells.read(db)


def serve_options(parser: argparse.ArgumentParser) -> None:
    """Where from, where to, and the address."""
    add_places(parser)
    add_listening(parser)


def run_serve(config: Config, opts: argparse.Namespace) -> None:
    """Serve until SIGTERM, SIGINT or the end of `--for`; raises FreshetError.

    The address and what goes wrong are told on stderr; a summary goes to stdout at the end.
    """
    order, address = places(config, opts), listening(opts)
    # Twisted's web parts and Jinja are slow to import: not for --help.
    from crawler.web.pages.serve import serve

    done = serve(config, order, address)
    if opts.json:
        print_json(done)
    else:
        changes, seconds = count(done["written"], "page"), count(round(done["seconds"]), "second")
        print_line(f"{changes} written in {seconds} -> {done['out']}")
