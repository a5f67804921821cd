"""Options of `scrapy refresh run`, checked."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.utils import time as units
from crawler.web.address import Address, address_of

NEVER = "0"
HOUR_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Order:
    """The options.

    names:         spiders, files of wrappers, folders of them; empty: all spiders of the project
    seconds:       after which the service ends; None: when it is stopped
    slice_seconds: longest time of a run
    replan_hours:  0 is never
    prunes:        whether old versions and visits are removed
    metrics:       where they are served by HTTP; None: nowhere
    """

    names: list[str]
    seconds: float | None
    slice_seconds: float
    replan_hours: float
    prunes: bool = True
    metrics: Address | None = None


def add_options(parser: argparse.ArgumentParser) -> None:
    """The arguments and options of `scrapy refresh run`."""
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME|FILE.toml|FOLDER/",
        help="sites to keep fresh (all spiders)",
    )
    parser.add_argument(
        "--spider", action="append", default=[], metavar="NAME", help="same as NAME (repeatable)"
    )
    parser.add_argument(
        "--for", dest="for_time", metavar="T", help="stop after a time, such as 12h"
    )
    parser.add_argument(
        "--slice", metavar="T", help="maximum duration of one run [FRESHET_REFRESH_SLICE_SECONDS]"
    )
    parser.add_argument(
        "--replan",
        metavar="T",
        help="interval between replans; 0: never [FRESHET_REFRESH_REPLAN_HOURS]",
    )
    parser.add_argument(
        "--no-prune", dest="prunes", action="store_false", help="do not run scrapy prune"
    )
    parser.add_argument(
        "--metrics",
        metavar="[HOST:]PORT",
        help="export Prometheus metrics; loopback without HOST [FRESHET_METRICS_PORT]",
    )


def order_of(config: Config, opts: argparse.Namespace) -> Order:
    """The options, checked, over the config; raises ConfigError."""
    words = list(dict.fromkeys([*opts.names, *opts.spider]))
    limit = None if opts.for_time is None else _seconds(opts.for_time, "--for")
    slice_seconds, replan_hours = config.refresh_slice_seconds, config.refresh_replan_hours
    if opts.slice is not None:
        slice_seconds = _seconds(opts.slice, "--slice")
    if opts.replan is not None:
        never = opts.replan == NEVER
        replan_hours = 0.0 if never else _seconds(opts.replan, "--replan") / HOUR_SECONDS
    address = None
    if opts.metrics is not None:
        address = address_of(opts.metrics, "--metrics")
    elif config.metrics_port is not None:
        address = address_of(config.metrics_port, "FRESHET_METRICS_PORT")
    return Order(words, limit, slice_seconds, replan_hours, opts.prunes, address)


def _seconds(text: str, option: str) -> float:
    try:
        return units.seconds(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from None
