"""What is due of a spider, as arrays: for choosing when not all of it can go."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import numpy as np

from crawler.storage.client import Database, Document
from crawler.storage.columns import Grown, GrownTexts, Texts
from schedules.history import Floats
from schedules.schedule import WEEK_HOURS

BATCH = 10_000
HOUR_MILLISECONDS = 3_600_000
ROW: Document = {
    "value": "$plan.worth",
    "per_week": "$plan.visits_per_week",
    "since": {"$toLong": {"$ifNull": ["$visited_at", "$first_seen"]}},
}


@dataclass(frozen=True, slots=True)
class Waiting:
    """The n due targets of a spider.

    ids:    (n,) texts, `_id` of each
    value:  (n,) what a visit in time is worth by the plan; NaN where there is none
    waited: (n,) hours since the last visit, or since the target was found
    every:  (n,) mean hours between visits by the plan; NaN where there is none
    """

    ids: Texts
    value: Floats
    waited: Floats
    every: Floats


async def read(db: Database, spider: str, now: datetime) -> Waiting:
    """All that is due of a spider."""
    ids, value, since, per_week = GrownTexts(), *(Grown(np.float64) for _ in range(3))
    query: Document = {"spider": spider, "next_visit": {"$lte": now}}
    pipeline: list[Document] = [{"$match": query}, {"$project": ROW}]
    cursor = await db.targets.aggregate(pipeline, batchSize=BATCH)
    while rows := await cursor.to_list(BATCH):
        ids.add([row["_id"] for row in rows])
        value.add([row.get("value") for row in rows])
        since.add([row.get("since") for row in rows])
        per_week.add([row.get("per_week") for row in rows])
    waited = (now.timestamp() * 1000 - since.taken()) / HOUR_MILLISECONDS
    visits = per_week.taken()
    every = np.divide(WEEK_HOURS, visits, where=visits > 0, out=np.full(len(visits), np.nan))
    return Waiting(ids.taken(), value.taken(), waited, every)
