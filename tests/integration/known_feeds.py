"""Feeds with a history, written directly to the database as if by weeks of crawls."""

from __future__ import annotations

from datetime import datetime

import numpy as np

from crawler.items import Kind
from crawler.storage.targets import history_document, in_minutes, new_document
from schedules.history import History
from tests.integration.harness import Row
from tests.integration.known_pages import BEGIN, DAY, HOUR, NOW


def feed(name: str, posts: list[datetime], *, window: int = 10, **own: object) -> Row:
    """Build a feed that was read at NOW, with posts from the last three weeks."""
    last = in_minutes(NOW - HOUR)
    records = [(in_minutes(at) - 60, in_minutes(at), in_minutes(at) - 30) for at in sorted(posts)]
    past = History.begin(in_minutes(BEGIN)).extended(last, records)
    row = new_document("feeds", f"https://feeds.test/{name}", Kind.FEED, NOW + 5 * HOUR, BEGIN)
    seen = {"visited_at": NOW - HOUR, "requested": 9, "refreshed": 9, "outcome": "unchanged"}
    return row | seen | {"history": history_document(past), "feed_size": window} | own


def some_feeds() -> list[Row]:
    """Build five feeds: busy, office hours only, rare, silent, and new."""
    rng = np.random.default_rng(3)
    hours = [BEGIN + DAY * day + HOUR * hour for day in range(21) for hour in range(24)]
    office = [at for at in hours if at.weekday() < 5 and 9 <= at.hour < 12]
    new = new_document("feeds", "https://feeds.test/new", Kind.FEED, NOW, NOW)
    return [
        feed("busy", [at for at in hours if rng.random() < 0.9]),
        feed("office", office, categories=["News"]),
        feed("rare", hours[::200]),
        feed("silent", []),
        new,
    ]
