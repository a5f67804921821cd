"""Compare the counts in services' reports, the runs, the change log and the site's own log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pymongo.database import Database

from tests.faults.sentences import Messages
from tests.site.running import RunningServer

Db = Database[dict[str, Any]]


class Accounts:
    """Check a database after its services have ended.

    cells:   path of the page from which each cell is read, by the cell's name
    reports: the report that each service printed at its end
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
        self._messages = Messages()
        self.replans = sum(report["replans"] for report in reports)
        self.visits = self.requests = 0

    def __str__(self) -> str:
        runs = self._db.runs.count_documents({})
        return (
            f"{self.requests:,} requests, {self.visits:,} visits in {runs:,} runs, "
            f"{self.replans} replans"
        )

    def check(self) -> list[str]:
        """Return a message for each count that does not match."""
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
        return self._messages.texts

    def _check_requests(self, logged: Counter[str]) -> None:
        """Check that the visits in the change log match the requests in the site's log."""
        seen = self._site.requests()
        interrupted = [row["path"] for row in seen if not row["complete"]]
        self._messages.none("requests that were interrupted", interrupted)
        requested = Counter(self._site.url + row["path"] for row in seen if row["complete"])
        self._messages.none("requests that are not in the log", requested - logged)
        self._messages.none("visits without a request in the site's log", logged - requested)

    def _check_targets(self, rows: Counter[str]) -> None:
        targets = self._db.targets.find({}, {"url": 1, "requested": 1})
        wrong = [one["url"] for one in targets if one["requested"] != rows[one["url"]]]
        self._messages.none("targets whose `requested` is not the rows of the log", wrong)

    def _check_sums(self) -> None:
        runs = list(self._db.runs.find())
        left = [str(run["_id"]) for run in runs if not run["finished"]]
        self._messages.none("runs without an end", left)
        of_runs = sum(run.get("counts", {}).get("visits", 0) for run in runs)
        self._messages.same("visits by `runs`", of_runs, self.visits)
        spiders = [row for report in self._reports for row in report["spiders"]]
        self._messages.same("visits by the reports", sum(s["visits"] for s in spiders), self.visits)
        self._messages.same("failed runs", sum(row["failed"] for row in spiders), 0)
