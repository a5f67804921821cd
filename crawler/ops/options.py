"""Options of `scrapy refresh run`: definition, validation."""

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
class ServiceOptions:
    """Validated options of the service.

    names:         spiders, site definition files, folders; empty: all spiders of the project
    seconds:       time after which the service exits; None: run until stopped
    slice_seconds: maximum duration of a run
    replan_hours:  interval between replans; 0: never
    prunes:        whether to prune old versions and visits
    metrics:       address of the metrics server; None: no server
    """

    names: list[str]
    seconds: float | None
    slice_seconds: float
    replan_hours: float
    prunes: bool = True
    metrics: Address | None = None


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments and options of `scrapy refresh run`."""
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
        help="serve Prometheus metrics; HOST defaults to loopback [FRESHET_METRICS_PORT]",
    )


def options_of(config: Config, opts: argparse.Namespace) -> ServiceOptions:
    """Validate the options, which override settings; raises ConfigError."""
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
    return ServiceOptions(words, limit, slice_seconds, replan_hours, opts.prunes, address)


def _seconds(text: str, option: str) -> float:
    try:
        return units.seconds(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from None
