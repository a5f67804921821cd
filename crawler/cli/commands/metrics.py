"""`scrapy metrics`: metrics of the database for Prometheus, printed, written or served."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy.exceptions import UsageError

from crawler.cli.base import FreshetCommand, JsonTypes, print_json
from crawler.cli.types import option
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
    """Print or write metrics once, or serve them over HTTP."""

    arguments = (f"[{SERVE}]",)
    example = "scrapy metrics serve --port 9464"

    def short_desc(self) -> str:
        """Return the description for `scrapy -h`."""
        return "Export Prometheus metrics on targets, plans, crawl runs and posts"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the output file, and the options of `serve`."""
        super().add_options(parser)
        parser.add_argument(
            "--out", metavar="FILE", type=Path,
            help="write the metrics to this file, atomically (default: standard output)",
        )  # fmt: skip
        parser.add_argument(
            "--port", metavar="[HOST:]PORT", default=PORT,
            help="serve: address to listen on; the host is loopback if left out, port 0 is any "
            f"free port (default: {PORT})",
        )  # fmt: skip
        parser.add_argument(
            "--cache", metavar="T", default=CACHE,
            help=f"serve: minimum time between two reads of the database (default: {CACHE})",
        )  # fmt: skip
        parser.add_argument(
            "--for", dest="for_time", metavar="T",
            help="serve: stop after a time, such as 12h (default: run until stopped)",
        )  # fmt: skip

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Serve, write or print the metrics."""
        if args and args[0] != SERVE:
            raise UsageError(f"unknown action {args[0]!r}. Available: {SERVE}", print_help=False)
        if args:
            self._serve(opts)
            return
        # prometheus_client is slow to import, and --help does not need it.
        from crawler.ops.metrics_database import samples_of, text_of

        metrics = asyncio.run(self._read())
        if opts.out is not None:
            try:
                with atomic_replace(opts.out) as draft:
                    draft.write_bytes(text_of(metrics))
            except OSError as error:
                raise ConfigError(f"--out {opts.out}: {error.strerror or error}") from None
        elif opts.json:
            print_json(samples_of(metrics))
        else:
            sys.stdout.write(text_of(metrics).decode())

    def json_types(self) -> JsonTypes:
        """Return the type of the samples."""
        from crawler.ops.metrics_database import MetricSample

        return {"scrapy metrics --json": list[MetricSample]}

    async def _read(self) -> list[Metric]:
        from crawler.ops.metrics_database import read
        from crawler.storage.store import Store

        store = await Store.open(self.config)
        try:
            return await read(store)
        finally:
            await store.close()

    def _serve(self, opts: argparse.Namespace) -> None:
        """Serve until SIGTERM, SIGINT or the end of `--for`."""
        # twisted.web is slow to import, and printing does not need it.
        from crawler.ops.metrics_database import LatestMetrics
        from crawler.storage.store import Store
        from crawler.web.metrics import MetricsSource, served
        from crawler.web.server import run_in_reactor, stop_at_signals, until_signal

        config = self.config
        limit = option(units.seconds, opts.for_time, "--for")
        address = address_of(opts.port, "--port")
        cache_seconds = option(units.seconds, opts.cache, "--cache")

        async def work() -> None:
            stop = stop_at_signals()
            store = await Store.open(config)
            latest = LatestMetrics(store, cache_seconds)
            source = MetricsSource(latest.exposition, latest.problem)
            try:
                async with served(source, address, "--port", config.metrics_hosts) as url:
                    complain("metrics", f"{url}metrics")
                    await until_signal(stop, limit)
            finally:
                await latest.close()
                await store.close()

        run_in_reactor(work())
