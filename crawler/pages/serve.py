"""`scrapy pages serve`: builds pages whenever cells change, and shows them on this machine."""

from __future__ import annotations

import argparse

from crawler.command import print_json
from crawler.config import Config
from crawler.pages.options import add_listening, add_places, listening, places
from crawler.utils.terminal import print_line
from crawler.utils.text import count


def add_options(parser: argparse.ArgumentParser) -> None:
    """Where from, where to, and the address."""
    add_places(parser)
    add_listening(parser)


def run(config: Config, opts: argparse.Namespace) -> None:
    """Serve until SIGTERM, SIGINT or the end of `--for`; raises FreshetError.

    The address and what goes wrong are told on stderr; a summary goes to stdout at the end.
    """
    order, address = places(config, opts), listening(opts)
    # Twisted's web parts and Jinja are slow to import: not for --help.
    from crawler.pages.running import serve

    done = serve(config, order, address)
    if opts.json:
        print_json(done)
    else:
        changes, seconds = count(done["written"], "page"), count(round(done["seconds"]), "second")
        print_line(f"{changes} written in {seconds} -> {done['out']}")
