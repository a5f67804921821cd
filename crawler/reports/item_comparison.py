"""Several items of a site side by side: the numbers in their fields over time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from typing_extensions import TypedDict

from crawler.extract.item_names import name_of
from crawler.reports.items import content_of
from crawler.reports.target import Series, series_of
from crawler.storage import items
from crawler.storage.client import Database
from crawler.utils.urls import target_id, target_key

MAX_COMPARED = 8


class ComparedItem(TypedDict):
    """An item with its numbers over time."""

    id: str
    """Id in URLs of the web app and of its API, such as `/api/v1/targets/ID`."""
    url: str
    """Canonical URL."""
    name: str
    """Name of the item."""
    series: list[Series]
    """Fields whose values are numbers, at most 8."""


async def compared_items(db: Database, spider: str, ids: Sequence[str]) -> list[ComparedItem]:
    """Return items of a site in the order of their ids, at most MAX_COMPARED.

    Items of other sites, and those that are not stored, are left out.
    """
    keys = [key for each in dict.fromkeys(ids) if (key := target_key(each)) is not None]
    own = [key for key in keys if key.startswith(f"{spider} ")][:MAX_COMPARED]
    rows = [row for row in await items.of_ids(db, own) if row.get("url")]
    series = await asyncio.gather(
        *(series_of(db, spider, row["url"], only_changed=False) for row in rows)
    )
    return [
        {
            "id": target_id(row["_id"]),
            "url": row["url"],
            "name": name_of(content_of(row), row["url"]),
            "series": each,
        }
        for row, each in zip(rows, series, strict=True)
    ]


def common_fields(compared: Sequence[ComparedItem]) -> list[str]:
    """Return the fields with numbers of some items, those that most items have first."""
    counts = Counter(each["name"] for item in compared for each in item["series"])
    return [name for name, _ in counts.most_common()]
