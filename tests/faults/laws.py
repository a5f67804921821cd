"""What must hold after a first pass of Freshet, whatever was killed meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from pymongo.database import Database

from tests.faults.fetches import Fetches
from tests.faults.sentences import Sentences
from tests.faults.worker import Worker
from tests.site.quick import Pages

Db = Database[dict[str, Any]]


class Laws:
    """Looks at a database after a pass.

    shared: the workers made one pass together; else each run is one worker's
    """

    def __init__(self, db: Db, url: str, pages: Pages, *, shared: bool) -> None:
        self._db, self._shared = db, shared
        self._urls = {url + path for path in pages.paths()}
        self._items = {one for one in self._urls if "/item/" in one}
        self._url = url
        self.rows = Counter[str](row["target"] for row in db.visits.find({}, {"target": 1}))
        self._law = Sentences()

    def check(self, found: Fetches, workers: Sequence[Worker]) -> list[str]:
        """A sentence for each law that is broken."""
        self._check_stored()
        self._check_targets()
        self._check_visits(found)
        self._check_runs()
        self._law.none("fetched twice for no reason", found.unexplained)
        failed = [f"{w.agent} ({w.code}, {w.log})" for w in workers if w.code and not w.is_killed]
        self._law.none("workers failed", failed)
        bugs = [w.agent for w in workers if "Traceback" in w.log.read_text(encoding="utf-8")]
        self._law.none("workers with a traceback in their log", bugs)
        return self._law.said

    def _check_stored(self) -> None:
        posts = Counter(row["url"] for row in self._db.posts.find({}, {"url": 1}))
        self._once("posts", posts, self._items)
        versions = Counter(row["target"] for row in self._db.versions.find({}, {"target": 1}))
        self._once("versions", versions, self._urls)
        shown = self._db.listings.find({"shown": True}, {"item": 1, "list": 1})
        edges = Counter(f"{row['list']} {row['item']}" for row in shown)
        # The first page links the lists, which are no items.
        self._law.same("listings", edges.total(), len(self._items))

    def _check_targets(self) -> None:
        known = Counter(row["url"] for row in self._db.targets.find({}, {"url": 1}))
        self._once("targets", known, self._urls)
        due = self._db.targets.find({"next_visit": {"$lte": datetime.now(UTC)}}, {"url": 1})
        self._law.none("targets still due", [row["url"] for row in due])

    def _check_visits(self, found: Fetches) -> None:
        self._once("visits", self.rows, self._urls)
        wrong, unlogged = [], []
        ids = {row["_id"] for row in self._db.visits.find({}, {"_id": 1})}
        for one in self._db.targets.find({}, {"url": 1, "requested": 1, "last_visit._id": 1}):
            if one["requested"] != self.rows[one["url"]]:
                wrong.append(one["url"])
            if one.get("last_visit", {}).get("_id") not in ids:
                unlogged.append(one["url"])
        self._law.none("targets whose `requested` is not the rows of the log", wrong)
        self._law.none("targets whose last visit is not in the log", unlogged)
        asked = {self._url + path: n for path, n in found.pages.items()}
        self._law.none("pages with more visits than answers",
                   [url for url, n in self.rows.items() if n > asked.get(url, 0)])  # fmt: skip

    def _check_runs(self) -> None:
        runs = list(self._db.runs.find().sort("started"))
        self._law.none(
            "runs without an end", [str(run["_id"]) for run in runs if not run["finished"]]
        )
        finished = [run for run in runs if run.get("counts", {}).get("visits")]
        if self._shared:
            self._law.same("runs with visits", len(finished), 1)
            of_runs = sum(run["counts"]["visits"] for run in finished)
            self._law.same("visits by `runs`", of_runs, self.rows.total())
            return
        # Who was killed has counted for nobody; the others' counts are of their own time.
        for run in finished:
            span = {"$gte": run["started"], "$lte": run["finished"]}
            logged = self._db.visits.count_documents({"at": span})
            self._law.same("visits of a run", run["counts"]["visits"], logged)
        early = [str(run["_id"]) for run in runs[:-1] if run.get("reason") != "interrupted"]
        self._law.none("runs before the last that were not cut off", early)
        self._law.same("the last run", runs[-1].get("reason") if runs else "none", "finished")

    def _once(self, name: str, found: Counter[str], wanted: set[str]) -> None:
        self._law.none(f"not in {name}", wanted - set(found))
        self._law.none(f"in {name} but not on the site", set(found) - wanted)
        self._law.none(f"more than once in {name}", [one for one, n in found.items() if n > 1])
