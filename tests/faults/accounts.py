"""Whether the counts of services add up: their reports, the runs, the log, the site's own log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pymongo.database import Database

from tests.faults.sentences import Sentences
from tests.site.running import RunningServer

Db = Database[dict[str, Any]]


class Accounts:
    """Looks at a database after its services have ended.

    cells:   the path of the page that each cell is read from, by the cell's name
    reports: what each service printed at its end
    """

    def __init__(
        self,
        db: Db,
        site: RunningServer,
        cells: Mapping[str, str],
        reports: Sequence[dict[str, Any]],
    ) -> None:
        self._db, self._site, self._reports = db, site, reports
        self._pages = {f"cell:{name}": site.url + path for name, path in cells.items()}
        self._law = Sentences()
        self.replans = sum(report["replans"] for report in reports)
        self.visits = self.requests = 0

    def __str__(self) -> str:
        passes = self._db.runs.count_documents({})
        return (
            f"{self.requests:,} requests, {self.visits:,} visits in {passes:,} passes, "
            f"{self.replans} replans"
        )

    def check(self) -> list[str]:
        """A sentence for each count that does not add up."""
        rows, requests = Counter[str](), Counter[str]()
        for row in self._db.visits.find({}, {"target": 1, "shared_fetch": 1}):
            rows[row["target"]] += 1
            if not row.get("shared_fetch"):
                target: str = row["target"]
                requests[self._pages.get(target, target)] += 1
        self.visits, self.requests = rows.total(), requests.total()
        self._check_requests(requests)
        self._check_targets(rows)
        self._check_sums()
        return self._law.said

    def _check_requests(self, logged: Counter[str]) -> None:
        """Each request that the site has seen is a visit in the log, and no other is there."""
        seen = self._site.requests()
        cut = [row["path"] for row in seen if not row["complete"]]
        self._law.none("requests that nobody waited for", cut)
        asked = Counter(self._site.url + row["path"] for row in seen if row["complete"])
        self._law.none("requests that are not in the log", asked - logged)
        self._law.none("visits that the site has not seen", logged - asked)

    def _check_targets(self, rows: Counter[str]) -> None:
        found = self._db.targets.find({}, {"url": 1, "requested": 1})
        wrong = [one["url"] for one in found if one["requested"] != rows[one["url"]]]
        self._law.none("targets whose `requested` is not the rows of the log", wrong)

    def _check_sums(self) -> None:
        runs = list(self._db.runs.find())
        left = [str(run["_id"]) for run in runs if not run["finished"]]
        self._law.none("runs without an end", left)
        of_runs = sum(run.get("counts", {}).get("visits", 0) for run in runs)
        self._law.same("visits by `runs`", of_runs, self.visits)
        spiders = [row for report in self._reports for row in report["spiders"]]
        self._law.same("visits by the reports", sum(s["visits"] for s in spiders), self.visits)
        self._law.same("failed passes", sum(row["failed"] for row in spiders), 0)
