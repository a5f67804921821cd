"""`scrapy duplicates kept`: what runs of `check --keep` have left."""

from __future__ import annotations

import argparse
import asyncio
import sys

from rich.box import SIMPLE_HEAD
from rich.table import Table

from crawler.command import print_json
from crawler.config import Config
from crawler.errors import ConfigError
from crawler.storage import leases
from crawler.storage.client import Document
from crawler.storage.duplicates import kept
from crawler.storage.duplicates.trouble import told
from crawler.storage.store import opened
from crawler.utils.terminal import print_line, stdout
from crawler.utils.text import count, listed


def add_options(parser: argparse.ArgumentParser) -> None:
    """What is to go."""
    parser.add_argument("--forget", metavar="NAME", help="remove what is kept under this name")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(config: Config, opts: argparse.Namespace) -> int:
    """Show what is kept, or remove one of them."""
    rows = asyncio.run(_names(config))
    if opts.forget is not None:
        row = _named(rows, opts.forget)
        _ask(row, opts)
        _forget(config, row["name"])
        print_json(row) if opts.json else print_line(f"removed {_told(row)}")
    elif opts.json:
        print_json(rows)
    else:
        _show(rows)
    return 0


def _named(rows: list[Document], name: str) -> Document:
    found = next((row for row in rows if row["name"] == name), None)
    if found is None:
        known = listed([row["name"] for row in rows]) or "nothing"
        raise ConfigError(f"nothing is kept under {name!r}; there is: {known}")
    return found


def _ask(row: Document, opts: argparse.Namespace) -> None:
    if opts.yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"would remove {_told(row)}: say --yes to mean it")
    if input(f"Remove {_told(row)}? [y/N] ").strip().lower() != "y":
        raise ConfigError("nothing was removed")


def _told(row: Document) -> str:
    return f"{row['name']}, {count(row['texts'], 'text')}"


def _forget(config: Config, name: str) -> None:
    asyncio.run(_drop(config, name))


async def _names(config: Config) -> list[Document]:
    with told():
        async with opened(config) as db:
            return await kept.names(db)


async def _drop(config: Config, name: str) -> None:
    busy = f"{name} is in use"
    with told():
        async with opened(config) as db, leases.held(db, config, f"{leases.CHECK}{name}", busy):
            await kept.forget(db, name)


def _show(rows: list[Document]) -> None:
    console = stdout()
    if not rows:
        console.print("nothing is kept; scrapy duplicates check FILE --keep NAME keeps")
        return
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("name", "compared by", "texts", "clusters", "made", "used"):
        table.add_column(name, justify="right" if name in ("texts", "clusters") else "left")
    for row in rows:
        numbers = (f"{row['texts']:,}", f"{row['clusters']:,}")
        days = (f"{row['made']:%Y-%m-%d}", f"{row['used']:%Y-%m-%d}")
        table.add_row(row["name"], row["scheme"], *numbers, *days)
    console.print(table)
