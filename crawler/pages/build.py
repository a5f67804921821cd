"""`scrapy pages build`: pages of cells, as files."""

from __future__ import annotations

import argparse
import asyncio

from crawler.command import print_json
from crawler.config import Config
from crawler.pages.options import add_places, places
from crawler.storage import cells
from crawler.storage.client import Document
from crawler.storage.store import opened
from crawler.utils.terminal import complain, print_line
from crawler.utils.time import Clock

COMMAND = "pages"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Where from and where to."""
    add_places(parser)


def run(config: Config, opts: argparse.Namespace) -> int:
    """Build once; 1 where a page failed. Raises FreshetError."""
    # Jinja is slow to import: not for --help.
    from crawler.pages import sources
    from crawler.pages.building import build
    from crawler.pages.cells import Cells

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
