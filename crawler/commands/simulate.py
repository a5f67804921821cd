"""`scrapy simulate`: what each policy would have cost and gained, before one is chosen."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from crawler.cli import simulate as options
from crawler.cli.base import FreshetCommand, print_json
from crawler.config import Config
from crawler.ops.progress import working
from crawler.utils.terminal import stdout

if TYPE_CHECKING:
    from crawler.planning.simulate_feeds import FeedSimulation
    from crawler.planning.simulate_overload import OverloadSimulation
    from crawler.planning.simulate_pages import PageSimulation


class Command(FreshetCommand):
    """Policies against changes that truly happened, against posts, or with too little time."""

    arguments = ("|".join(options.KINDS), "[FILE.toml]")
    example = options.EXAMPLES

    def short_desc(self) -> str:
        """One line for `scrapy -h`."""
        return "Try policies on a trace of changes or posts, on the own past, or under overload"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """What to simulate, and what to write."""
        super().add_options(parser)
        options.add_options(parser)

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Simulate each policy with each budget or number of visits, then write and print."""
        kind, file = args[0], args[1] if len(args) > 1 else None
        options.check(kind, file, opts)
        found: PageSimulation | FeedSimulation | OverloadSimulation
        with working(self.config, "reading what is known") as say:
            if kind == options.OVERLOAD:
                found = _of_overload(file, opts, say)
            else:
                found = _simulation(kind, self.config, opts, say)
        found.write()
        if opts.json:
            print_json(found.in_json())
        else:
            found.show(stdout())


def _of_overload(
    file: str | None, opts: argparse.Namespace, say: Callable[[str], None]
) -> OverloadSimulation:
    from crawler.planning.simulate_overload import OverloadSimulation

    return OverloadSimulation.of(file, opts, say)


def _simulation(
    kind: str, config: Config, opts: argparse.Namespace, say: Callable[[str], None]
) -> PageSimulation | FeedSimulation:
    if kind == options.FEEDS:
        from crawler.planning.simulate_feeds import FeedSimulation

        return FeedSimulation.of(config, opts, say)
    from crawler.planning.simulate_pages import PageSimulation

    return PageSimulation.of(config, opts, say)
