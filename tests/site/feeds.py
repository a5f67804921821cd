"""Feeds that replay a trace: `python -m tests.site.feeds --posts FILE --feeds FILE --clock FILE`.

`/feed/K.xml` is the feed in row K of the file of feeds: an RSS document with the newest posts at
the site's time, up to the feed size. The ID of a post is `K-J`, for the J-th post of feed K.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
from bisect import bisect_right
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any

from twisted.web.server import Request

from tests.site import clock, serving
from tests.site.exchange import Answer, Exchange, RequestLog

NOT_FOUND = Answer(b"<!DOCTYPE html><h1>No such feed</h1>\n", status=404)
RSS = "application/rss+xml; charset=utf-8"
ITEM = (
    "<item><guid isPermaLink='false'>{name}</guid><title>Post {name}</title>"
    "<link>http://posts.test/{name}</link><pubDate>{date}</pubDate>"
    "<description>Text of post {name}.</description></item>"
)
DOCUMENT = (
    "<?xml version='1.0'?><rss version='2.0'><channel><title>Feed {number}</title>"
    "<link>http://posts.test/</link><description/>{items}</channel></rss>"
)


class FeedSite:
    """The feeds at the site's time. posts: Unix times of each feed's posts, ascending."""

    def __init__(
        self, posts: list[list[datetime]], windows: list[int], time: clock.FileClock
    ) -> None:
        self._posts, self._windows, self._time = posts, windows, time

    def quick(self, request: Request) -> bytes | None:
        """Return None: every request is logged."""
        return None

    def handle(self, exchange: Exchange) -> None:
        """Answer a request."""
        name = exchange.path.removeprefix("/feed/").removesuffix(".xml")
        exists = name.isdigit() and int(name) < len(self._posts)
        exchange.send(self.document(int(name)) if exists else NOT_FOUND)

    def document(self, number: int) -> Answer:
        """Return the current document of the feed."""
        posts = self._posts[number]
        end = bisect_right(posts, self._time.now())
        begin = max(0, end - self._windows[number])
        items = "".join(_item(number, j, posts[j]) for j in range(end - 1, begin - 1, -1))
        body = DOCUMENT.format(number=number, items=items).encode()
        return Answer(body, RSS, etag=hashlib.sha256(body).hexdigest()[:20])


def _item(number: int, j: int, posted: datetime) -> str:
    return ITEM.format(name=f"{number}-{j}", date=format_datetime(posted, usegmt=True))


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """Read the rows of a CSV file, plain or gzip."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as text:
        yield from csv.DictReader(text)


def read(posts: Path, feeds: Path) -> tuple[list[list[datetime]], list[int]]:
    """Return the post times and the feed size of each feed, in the order of the file of feeds."""
    listed = list(rows(feeds))
    number = {row["feed_id"]: k for k, row in enumerate(listed)}
    times: list[list[datetime]] = [[] for _ in listed]
    for row in rows(posts):
        if row["feed_id"] in number:
            times[number[row["feed_id"]]].append(clock.parse(row["posted_at_utc"]))
    return [sorted(of) for of in times], [int(row["window_size_S"]) for row in listed]


def main() -> None:
    """Serve until SIGTERM."""
    options = argparse.ArgumentParser(prog="python -m tests.site.feeds", description=__doc__)
    options.add_argument("--posts", type=Path, required=True)
    options.add_argument("--feeds", type=Path, required=True)
    options.add_argument("--clock", type=Path, required=True)
    options.add_argument("--port", type=int, default=0, help="port (0: any free port)")
    options.add_argument("--log", type=Path, help="request log, one JSON line per request")
    args = options.parse_args()
    time = clock.FileClock(args.clock, datetime.now(UTC))
    serving.run(FeedSite(*read(args.posts, args.feeds), time), RequestLog(args.log), args.port)


if __name__ == "__main__":
    main()
