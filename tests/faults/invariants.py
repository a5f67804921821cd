"""Check the invariants after a first run of Freshet with faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from pymongo.database import Database

from tests.faults.fetches import Fetches
from tests.faults.sentences import Messages
from tests.faults.worker import Worker
from tests.site.quick import Pages

Db = Database[dict[str, Any]]


class Invariants:
    """Check the invariants of a database after a run.

    shared: all workers made one run together; otherwise each run is a single worker's
    """

    def __init__(self, db: Db, url: str, pages: Pages, *, shared: bool) -> None:
        self._db, self._shared = db, shared
        self._urls = {url + path for path in pages.paths()}
        self._items = {one for one in self._urls if "/item/" in one}
        self._url = url
        self.rows = Counter[str](row["target"] for row in db.visits.find({}, {"target": 1}))
        self._messages = Messages()

    def check(self, counts: Fetches, workers: Sequence[Worker]) -> list[str]:
        """Return a message for each violated invariant."""
        self._check_stored()
        self._check_targets()
        self._check_visits(counts)
        self._check_runs()
        self._messages.none("fetched twice for no reason", counts.unexplained)
        failed = [f"{w.agent} ({w.code}, {w.log})" for w in workers if w.code and not w.is_killed]
        self._messages.none("workers failed", failed)
        bugs = [w.agent for w in workers if "Traceback" in w.log.read_text(encoding="utf-8")]
        self._messages.none("workers with a traceback in their log", bugs)
        return self._messages.texts

    def _check_stored(self) -> None:
        posts = Counter(row["url"] for row in self._db.posts.find({}, {"url": 1}))
        self._once("posts", posts, self._items)
        versions = Counter(row["target"] for row in self._db.versions.find({}, {"target": 1}))
        self._once("versions", versions, self._urls)
        shown = self._db.listings.find({"shown": True}, {"item": 1, "list": 1})
        edges = Counter(f"{row['list']} {row['item']}" for row in shown)
        # The start page links the lists, which are not items.
        self._messages.same("listings", edges.total(), len(self._items))

    def _check_targets(self) -> None:
        targets = Counter(row["url"] for row in self._db.targets.find({}, {"url": 1}))
        self._once("targets", targets, self._urls)
        due = self._db.targets.find({"next_visit": {"$lte": datetime.now(UTC)}}, {"url": 1})
        self._messages.none("targets still due", [row["url"] for row in due])

    def _check_visits(self, counts: Fetches) -> None:
        self._once("visits", self.rows, self._urls)
        wrong, unlogged = [], []
        ids = {row["_id"] for row in self._db.visits.find({}, {"_id": 1})}
        for one in self._db.targets.find({}, {"url": 1, "requested": 1, "last_visit._id": 1}):
            if one["requested"] != self.rows[one["url"]]:
                wrong.append(one["url"])
            if one.get("last_visit", {}).get("_id") not in ids:
                unlogged.append(one["url"])
        self._messages.none("targets whose `requested` is not the rows of the log", wrong)
        self._messages.none("targets whose last visit is not in the log", unlogged)
        answers = {self._url + path: n for path, n in counts.pages.items()}
        self._messages.none("pages with more visits than answers",
                   [url for url, n in self.rows.items() if n > answers.get(url, 0)])  # fmt: skip

    def _check_runs(self) -> None:
        runs = list(self._db.runs.find().sort("started"))
        self._messages.none(
            "runs without an end", [str(run["_id"]) for run in runs if not run["finished"]]
        )
        finished = [run for run in runs if run.get("counts", {}).get("visits")]
        if self._shared:
            self._messages.same("runs with visits", len(finished), 1)
            of_runs = sum(run["counts"]["visits"] for run in finished)
            self._messages.same("visits by `runs`", of_runs, self.rows.total())
            return
        # A killed worker stores no counts; the other runs count visits between start and end.
        for run in finished:
            span = {"$gte": run["started"], "$lte": run["finished"]}
            logged = self._db.visits.count_documents({"at": span})
            self._messages.same("visits of a run", run["counts"]["visits"], logged)
        early = [str(run["_id"]) for run in runs[:-1] if run.get("reason") != "interrupted"]
        self._messages.none("runs before the last that were not interrupted", early)
        self._messages.same("the last run", runs[-1].get("reason") if runs else "none", "finished")

    def _once(self, name: str, stored: Counter[str], expected: set[str]) -> None:
        self._messages.none(f"not in {name}", expected - set(stored))
        self._messages.none(f"in {name} but not on the site", set(stored) - expected)
        self._messages.none(
            f"more than once in {name}", [one for one, n in stored.items() if n > 1]
        )
