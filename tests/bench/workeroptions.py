"""Options of the benchmarks with several workers, such as --workers, --faults and --hour."""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from pathlib import Path

from tests.bench import faults, hour, random_faults, workers
from tests.bench.faulty_runs import Asked


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    say = parser.add_argument_group("several workers").add_argument
    say("--faults", action="store_true", help="workers, Redis and MongoDB are killed or away")
    say(
        "--random-faults",
        type=int,
        metavar="N",
        help="N faults on pages that change: do invariants hold?",
    )
    say("--hour", action="store_true", help="the service for an hour: memory, descriptors, counts")
    say(
        "--workers", nargs="?", const="", metavar="N,N",
        help="alone: passes of so many beside scrapy-redis (1,2,4); how many with --faults and "
        "--hour (2)",
    )  # fmt: skip
    say("--no-redis", action="store_true", help="Freshet without Redis, which is one worker")
    say("--pages", type=int, help="item pages (20,000; --faults 4,000, --hour 10,000)")
    say("--kills", type=int, default=20, help="with --faults: of workers (20)")
    say("--redis-kills", type=int, default=5, help="with --faults (5)")
    say("--mongo-kills", type=int, default=5, help="with --faults (5)")
    say("--outage", type=float, default=60, help="with --faults: seconds that a server is away")
    say(
        "--seed", type=int,
        help="with --faults, --random-faults: of the times (default: new); with --experiment: "
        "of all that is random (default: 1)",
    )  # fmt: skip
    say("--compare", action="store_true", help="with --faults: near-duplicates are looked for")
    say("--replan", default="5m", help="with --hour: time between replans (5m)")
    say("--picture", type=Path, help="with --hour: where it is written (.benchmarks/hour.png)")


def benches(options: argparse.Namespace) -> dict[str, Callable[[], int]]:
    """The benchmarks, by the names of their options; the last is an option of the others too."""
    return {
        "faults": lambda: _faults(options),
        "random_faults": lambda: random_faults.run(options.random_faults, _seed(options)),
        "hour": lambda: _hour(options),
        "workers": lambda: _workers(options),
    }


def _seed(options: argparse.Namespace) -> int:
    return random.randrange(10**6) if options.seed is None else int(options.seed)


def _faults(options: argparse.Namespace) -> int:
    kills = (options.kills, options.redis_kills, options.mongo_kills)
    # Whatever the default is: longer than the outage that is asked for.
    env = {"FRESHET_COMMIT_RETRY_SECONDS": str(max(30, 5 * options.outage))}
    return faults.run(
        Asked(
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
        hour.Asked(
            minutes=options.minutes or hour.MINUTES,
            workers=int(options.workers or 2),
            pages=options.pages or hour.PAGES,
            replan=options.replan,
            redis=not options.no_redis,
            picture=options.picture or hour.PICTURE,
        )
    )


def _workers(options: argparse.Namespace) -> int:
    counts = options.workers.split(",") if options.workers else workers.WORKERS
    return workers.run(
        options.pages or workers.PAGES,
        list(map(int, counts)),
        options.rounds or workers.ROUNDS,
        redis=not options.no_redis,
    )
