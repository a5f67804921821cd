"""A run of crashed workers has the counts of its stored visits."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

from crawler.frontier.lifecycle import counts_of, recounted
from crawler.items import Collected, Fetched, Kind, Outcome, Target, Visit
from crawler.storage import visits
from tests.integration.harness import Db
from tests.integration.known_pages import on
from tests.integration.writing import BEGIN

FEED = Target("feeds", "http://blog.example/feed", Kind.FEED, next_visit=BEGIN)


def visit(outcome: Outcome, size: int, collected: Collected | None = None) -> Visit:
    fetched = Fetched(FEED, BEGIN, "", 200, 5, size=size)
    return Visit(fetched, outcome, BEGIN + timedelta(hours=1), collected=collected)


def test_recounted_run_has_the_counts_of_its_visits(stored: tuple[Db, str]) -> None:
    db, uri = stored
    of_run = [
        visit(Outcome.CHANGED, 900, Collected(missed_posts=2.5)),
        visit(Outcome.CHANGED, 800, Collected(missed_posts=0.25)),
        visit(Outcome.UNCHANGED, 700, Collected()),
        visit(Outcome.ERROR, 0),
    ]
    key = {"spider": FEED.spider, "target": FEED.url}
    db.visits.insert_many([visits.row_of(each) | key for each in of_run])
    by_outcome = on(uri, lambda db: visits.by_outcome(db, FEED.spider, BEGIN))

    counted = sum((Counter(counts_of(each)) for each in of_run), Counter())
    kinds = {name: counted.pop(name) for name in [*counted] if name.endswith(" pages")}
    assert kinds == {"feed pages": len(of_run)}
    assert recounted({}, by_outcome, []) == dict(counted)
    assert counted["missed posts"] == 2.75
