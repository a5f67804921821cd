"""A server's clock next to this machine's: read, followed, refused where the two are far apart."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import itemgetter

from pymongo import AsyncMongoClient

from crawler.config import Config
from crawler.errors import ClockError
from crawler.storage.client import Document
from crawler.utils.text import span
from crawler.utils.time import SERVER_TIME, steady_seconds

SAMPLES = 3
# MongoDB tells whole milliseconds.
RESOLUTION_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class Reading:
    """A server's clock as it was read.

    hello:         the answer that it stood in
    ahead_seconds: this machine's clock less the server's
    moved_seconds: by which Freshet's time was off since the reading before
    round_trips:   seconds of each request
    """

    hello: Document
    ahead_seconds: float
    moved_seconds: float
    round_trips: list[float]

    def refuse_beyond(self, config: Config) -> None:
        """Raise ClockError where the two clocks are further apart than the settings allow."""
        seconds = abs(self.ahead_seconds)
        if seconds > config.max_clock_skew_seconds:
            raise ClockError(
                f"this machine's clock is {in_words(self.ahead_seconds)} MongoDB's. Set the clock "
                "(timedatectl set-ntp true), or raise FRESHET_MAX_CLOCK_SKEW_SECONDS"
            )


async def read_clock(client: AsyncMongoClient[Document], samples: int = SAMPLES) -> Reading:
    """Read the server's clock, and have this process follow it; the fastest answer counts."""
    taken: list[tuple[float, float, float, Document]] = []
    for _ in range(samples):
        wall, began = time.time(), steady_seconds()
        hello = await client.admin.command("hello", codec_options=client.codec_options)
        taken.append((steady_seconds() - began, began, wall, hello))
    seconds, began, wall, hello = min(taken, key=itemgetter(0))
    # The server looked at its clock on half the way, give or take that half.
    server, half = hello["localTime"].astimezone(UTC), seconds / 2
    ahead = (datetime.fromtimestamp(wall, UTC) - server).total_seconds() + half
    moved = SERVER_TIME.follow(server, began + half, half + RESOLUTION_SECONDS)
    return Reading(hello, ahead, moved, [one[0] for one in taken])


def in_words(ahead_seconds: float) -> str:
    """Return such as "3.2 h ahead of"; ahead_seconds: negative for "behind"."""
    seconds = abs(ahead_seconds)
    return f"{span(seconds)} {'ahead of' if ahead_seconds > 0 else 'behind'}"
