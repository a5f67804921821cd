"""Options of the benchmarks with several workers, such as --workers, --faults and --hour."""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from pathlib import Path

from tests.bench import faults, hour, queue, random_faults, workers
from tests.bench.faulty_runs import Options


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    option = parser.add_argument_group("several workers").add_argument
    option(
        "--faults",
        action="store_true",
        help="runs with kills and outages of workers, Redis and MongoDB",
    )
    option(
        "--random-faults",
        type=int,
        metavar="N",
        help="check invariants after N random faults",
    )
    option(
        "--hour",
        action="store_true",
        help="run the service for an hour: memory, descriptors, counts",
    )
    option("--queue", action="store_true", help="the queue of a run with 1,000 workers")
    option(
        "--workers", nargs="?", const="", metavar="N,N",
        help="alone: compare N workers with scrapy-redis (default: 1,2,4); number of workers with "
        "--faults and --hour (default: 2) and --queue (default: 1000)",
    )  # fmt: skip
    option("--no-redis", action="store_true", help="run one worker of Freshet, without Redis")
    option(
        "--pages",
        type=int,
        help="item pages (default: 20000, with --faults 4000, --hour 10000, --queue 20000)",
    )
    option("--kills", type=int, default=20, help="with --faults: worker kills (default: 20)")
    option("--redis-kills", type=int, default=5, help="with --faults: Redis kills (default: 5)")
    option("--mongo-kills", type=int, default=5, help="with --faults: MongoDB kills (default: 5)")
    option(
        "--outage",
        type=float,
        default=60,
        help="with --faults: seconds of each outage (default: 60)",
    )
    option(
        "--seed", type=int,
        help="with --faults, --random-faults: seed of the times (default: random); with "
        "--experiment: seed of all random choices (default: 1)",
    )  # fmt: skip
    option("--compare", action="store_true", help="with --faults: detect near-duplicates")
    option("--replan", default="5m", help="with --hour: interval between replans (default: 5m)")
    option(
        "--picture",
        type=Path,
        help="with --hour: file for the chart (default: .benchmarks/hour.png)",
    )


def benches(options: argparse.Namespace) -> dict[str, Callable[[], int]]:
    """Return the benchmarks by option; `workers` is last, because others use its option."""
    return {
        "faults": lambda: _faults(options),
        "random_faults": lambda: random_faults.run(options.random_faults, _seed(options)),
        "hour": lambda: _hour(options),
        "queue": lambda: _queue(options),
        "workers": lambda: _workers(options),
    }


def _seed(options: argparse.Namespace) -> int:
    return random.randrange(10**6) if options.seed is None else int(options.seed)


def _faults(options: argparse.Namespace) -> int:
    kills = (options.kills, options.redis_kills, options.mongo_kills)
    # Must be longer than the outage.
    env = {"FRESHET_COMMIT_RETRY_SECONDS": str(max(30, 5 * options.outage))}
    return faults.run(
        Options(
            workers=int(options.workers or 2),
            kills=dict(zip(faults.KILLED, kills, strict=True)),
            outage_seconds=options.outage,
            pages=options.pages or faults.PAGES,
            redis=not options.no_redis,
            seed=_seed(options),
            env=env | ({"FRESHET_DUPLICATES": "characters"} if options.compare else {}),
        )
    )


def _hour(options: argparse.Namespace) -> int:
    return hour.run(
        hour.Options(
            minutes=options.minutes or hour.MINUTES,
            workers=int(options.workers or 2),
            pages=options.pages or hour.PAGES,
            replan=options.replan,
            redis=not options.no_redis,
            picture=options.picture or hour.PICTURE,
        )
    )


def _queue(options: argparse.Namespace) -> int:
    return queue.run(int(options.workers or queue.WORKERS), options.pages or queue.ENTRIES)


def _workers(options: argparse.Namespace) -> int:
    counts = options.workers.split(",") if options.workers else workers.WORKERS
    return workers.run(
        options.pages or workers.PAGES,
        list(map(int, counts)),
        options.rounds or workers.ROUNDS,
        redis=not options.no_redis,
    )
