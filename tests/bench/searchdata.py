"""Posts with words as frequent as in natural language, for `make bench ARGS=--search`.

By Zipf's law, the word of rank `r` is one of `11 r` words: the first ones are in nearly all posts,
the ten-thousandth in one of a thousand.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import numpy as np
import pymongo
import pymongo.database
from bson import ObjectId

from crawler.storage.client import UNJOURNALED, Document

Array = np.ndarray[Any, Any]
Db = pymongo.database.Database[Document]
SEED = 23
WORDS, TITLE_WORDS, VOCABULARY = 100, 6, 50_000
SITES, CATEGORIES = 40, 25
DAYS = 700
WORKERS, BATCH = 2, 2500
# Every tenth post is a near-duplicate of the one before it; three of five are posts of feeds.
COPIES, FEEDS = 10, 5


@cache
def vocabulary() -> Array:
    """Return the words, the most frequent first."""
    rng = np.random.default_rng(SEED)
    letters = np.array(list("aeiou" * 3 + "bcdfghjklmnpqrstvwxyz"))
    sizes = rng.integers(4, 11, VOCABULARY)
    words = dict.fromkeys(
        "".join(rng.choice(letters, n)) + str(i % 10) * (i >= 40_000) for i, n in enumerate(sizes)
    )
    return np.array(list(words), object)


@cache
def _shares() -> Array:
    shares = np.cumsum(1 / np.arange(1, len(vocabulary()) + 1))
    return np.asarray(shares / shares[-1])


def posts(numbers: range, count: int, now: datetime) -> Iterator[Document]:
    """Yield some of `count` posts of sites and feeds, originals and copies, the oldest first."""
    rng = np.random.default_rng((SEED, numbers.start))
    drawn = np.searchsorted(_shares(), rng.random((len(numbers), WORDS + TITLE_WORDS)))
    texts = vocabulary()[drawn]
    for row, number in enumerate(numbers):
        is_copy = number % COPIES == COPIES - 1 and row > 0
        words = texts[row - 1 if is_copy else row].tolist()
        is_feed = number % FEEDS < 3
        site = f"site{number // COPIES % SITES:02}"
        url = f"https://{site}.example/{number}"
        seen = now - timedelta(days=DAYS * (count - number) / count)
        post: Document = {
            "_id": f"{site} {url}", "spider": site, "url": url,
            "title": " ".join(words[:TITLE_WORDS]).capitalize(),
            "text": " ".join(words[TITLE_WORDS:]) + ".", "fields": {"price": "9.90"},
            "categories": [f"category {number % CATEGORIES}"], "first_seen": seen,
            "content_hash": f"{number:032x}", "fence": 1, "original": not is_copy,
        }  # fmt: skip
        if is_feed:
            feed = f"https://{site}.example/feed"
            post |= {
                "feed": feed,
                "guid": str(number),
                "published": seen - timedelta(hours=number % 48),
            }
        if number % COPIES >= COPIES - 2:
            post["cluster"] = ObjectId(f"{number // COPIES:024x}")
        if is_copy:
            first = f"https://{site}.example/{number - 1}"
            post |= {"duplicate_of": f"{site} {first}", "similarity": 0.97}
        yield post


def fill(uri: str, count: int) -> None:
    """Store posts with two processes, before the indexes exist."""
    now = datetime.now(UTC).replace(microsecond=0)
    process = multiprocessing.get_context("spawn").Process
    workers = [process(target=_write, args=(uri, count, now, part)) for part in range(WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        raise RuntimeError("could not fill the database")


def _write(uri: str, count: int, now: datetime, part: int) -> None:
    client: pymongo.MongoClient[Document]
    with pymongo.MongoClient(uri, tz_aware=True) as client:
        db: Db = client.get_default_database(write_concern=UNJOURNALED)
        for start in range(part * BATCH, count, WORKERS * BATCH):
            rows = posts(range(start, min(start + BATCH, count)), count, now)
            db.posts.insert_many(rows, ordered=False, bypass_document_validation=True)
