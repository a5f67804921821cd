"""`scrapy metrics`: figures of the database for Prometheus, printed, written or served."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy.exceptions import UsageError

from crawler.cli.base import FreshetCommand, print_json
from crawler.config import Config
from crawler.errors import ConfigError
from crawler.utils import time as units
from crawler.utils.files import atomic_replace
from crawler.utils.terminal import complain
from crawler.web.address import address_of

if TYPE_CHECKING:
    from prometheus_client.core import Metric

SERVE = "serve"
PORT = "9464"
CACHE = "60s"


class Command(FreshetCommand):
    """Once, or by HTTP until it is stopped."""

    arguments = (f"[{SERVE}]",)
    example = "scrapy metrics serve --port 9464"

    def short_desc(self) -> str:
        """One line for `scrapy -h`."""
        return "Tell Prometheus how targets, plans, passes and posts are"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Where to."""
        super().add_options(parser)
        parser.add_argument(
            "--out", metavar="FILE", type=Path, help="write this file at once as a whole"
        )
        parser.add_argument(
            "--port", metavar="[HOST:]PORT", default=PORT,
            help=f"of serve: loopback without a host; port 0 takes a free one ({PORT})",
        )  # fmt: skip
        parser.add_argument(
            "--cache", metavar="T", default=CACHE,
            help=f"of serve: read the database at most so often ({CACHE})",
        )  # fmt: skip
        parser.add_argument(
            "--for", dest="for_time", metavar="T", help="of serve: end after a time, such as 12h"
        )

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Serve, or print."""
        if args and args[0] != SERVE:
            raise UsageError(f"{args[0]!r} is not {SERVE}", print_help=False)
        if args:
            _serve(self.config, opts)
        else:
            _show(asyncio.run(_read(self.config)), opts)


def _serve(config: Config, opts: argparse.Namespace) -> None:
    # Twisted's web parts are slow to import.
    from crawler.cli.metrics import Order, serve

    limit = None if opts.for_time is None else _seconds(opts.for_time, "--for")
    order = Order(address_of(opts.port, "--port"), _seconds(opts.cache, "--cache"), limit)
    serve(config, order, lambda url: complain("metrics", url))


async def _read(config: Config) -> list[Metric]:
    from crawler.ops.metrics_database import read
    from crawler.storage.store import Store

    store = await Store.open(config)
    try:
        return await read(store)
    finally:
        await store.close()


def _show(metrics: list[Metric], opts: argparse.Namespace) -> None:
    from crawler.ops.metrics_database import text_of

    if opts.out is not None:
        _write(opts.out, text_of(metrics))
    elif opts.json:
        print_json([_sample(one) for metric in metrics for one in metric.samples])
    else:
        sys.stdout.write(text_of(metrics).decode())


def _sample(one: Any) -> dict[str, Any]:
    return {"name": one.name, "labels": one.labels, "value": one.value}


def _write(path: Path, text: bytes) -> None:
    try:
        with atomic_replace(path) as draft:
            draft.write_bytes(text)
    except OSError as error:
        raise ConfigError(f"--out {path}: {error.strerror or error}") from None


def _seconds(text: str, option: str) -> float:
    try:
        return units.seconds(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from None
