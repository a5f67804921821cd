"""`scrapy metrics`: metrics of the database for Prometheus, printed or written."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from crawler.cli.base import FreshetCommand, print_json
from crawler.utils.files import atomic_replace, file_errors

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class Command(FreshetCommand):
    """Print the metrics of the database, or write them to a file; `scrapy web` serves them."""

    summary = "Export Prometheus metrics on targets, plans, crawl runs and posts"
    example = "scrapy metrics --out /var/lib/node_exporter/textfile/freshet-database.prom"
    documents: ClassVar = {
        "scrapy metrics --json": "list[crawler.reports.metrics.MetricSample]",
    }

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the output file."""
        super().add_options(parser)
        parser.add_argument(
            "--out", metavar="FILE", type=Path,
            help="write the metrics to this file, atomically (default: standard output)",
        )  # fmt: skip

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Write or print the metrics."""
        # prometheus_client is slow to import, and --help does not need it.
        from crawler.reports.metrics import read, samples_of, text_of
        from crawler.storage.store import Store

        async def read_all() -> list[Metric]:
            store = await Store.open(self.config)
            try:
                return await read(store)
            finally:
                await store.close()

        metrics = asyncio.run(read_all())
        if opts.out is not None:
            with file_errors(f"--out {opts.out}"), atomic_replace(opts.out) as draft:
                draft.write_bytes(text_of(metrics))
        elif opts.json:
            print_json(samples_of(metrics))
        else:
            sys.stdout.write(text_of(metrics).decode())
