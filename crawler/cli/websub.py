"""`scrapy feeds push`: stays at work, asks hubs and takes what they deliver."""

from __future__ import annotations

import argparse
from typing import Any

from crawler.cli.base import print_json
from crawler.config import Config
from crawler.errors import Busy
from crawler.utils.terminal import print_line
from crawler.utils.text import count
from crawler.web.websub.options import add_options, order_of

__all__ = ["add_options", "serve"]


def serve(config: Config, opts: argparse.Namespace) -> None:
    """Serve until SIGTERM, SIGINT or the end of `--for`; raises FreshetError.

    What happens is logged on stderr; a summary goes to stdout at the end. While another one is at
    work for the same database, that is said and nothing is done.
    """
    order = order_of(opts)
    # Twisted's web parts are slow to import: not for --help.
    from crawler.web.websub.service import run

    try:
        done = run(config, order)
    except Busy as busy:
        print_line(f"scrapy feeds push: {busy}", error=True)
        return
    if opts.json:
        print_json(done)
    else:
        _show(done)


def _show(done: dict[str, Any]) -> None:
    counts = _listed(done["counts"]) or "nothing happened"
    print_line(f"{counts}; {count(round(done['seconds']), 'second')}")
    print_line(f"subscriptions: {_listed(done['subscriptions']) or 'none'}")


def _listed(amounts: dict[str, int]) -> str:
    return ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in amounts.items())
