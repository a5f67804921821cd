"""Items in a database, as crawls store them: posts with targets, versions and visits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from crawler.extract.item_names import name_of, sort_name
from crawler.items import Kind
from crawler.storage.targets import new_document
from crawler.utils.urls import target_id
from tests.integration.harness import Db, Row

NOW = datetime.now(UTC).replace(microsecond=0)
DAY = timedelta(days=1)
SITE = "shop"


def price(amount: float, currency: str = "£") -> Row:
    return {"amount": amount, "currency": currency}


def url_of(name: str) -> str:
    return f"https://shop.example/{name}"


def id_of(name: str, site: str = SITE) -> str:
    """Return the id of an item in URLs."""
    return target_id(f"{site} {url_of(name)}")


def put_item(
    db: Db, name: str, *contents: tuple[float, Row], categories: tuple[str, ...] = (),
    site: str = SITE, **of_target: Any,
) -> None:  # fmt: skip
    """Store an item.

    name:     last part of its URL
    contents: age in days and fields of each version, the oldest first
    """
    url = url_of(name)
    key = f"{site} {url}"
    contents = contents or ((10, {"title": name}),)
    for number, (days, content) in enumerate(contents):
        at, content_hash = NOW - days * DAY, f"hash{number}"
        db.versions.insert_one(
            {"_id": f"{key} {content_hash}", "spider": site, "target": url, "at": at,
             "content_hash": content_hash, "size": 1000, "content": content}
        )  # fmt: skip
        db.visits.insert_one(
            {"spider": site, "target": url, "at": at, "outcome": "changed" if number else "new",
             "changed": int(number > 0), "get_size": 0, "update_size": 0, "diff_size": 0,
             "content_hash": content_hash, "fence": 1}
        )  # fmt: skip
    first, last = NOW - contents[0][0] * DAY, NOW - contents[-1][0] * DAY
    fields = {name: value for name, value in contents[-1][1].items() if name != "main_text"}
    title = fields.get("title")
    db.posts.insert_one(
        {"_id": key, "spider": site, "url": url, "title": title,
         "text": contents[-1][1].get("main_text"), "fields": fields,
         "sort_name": sort_name(name_of(fields, url)), "categories": list(categories),
         "content_hash": content_hash, "first_seen": first, "changed_at": last}
    )  # fmt: skip
    seen = {"visited_at": NOW, "changed_at": last, "outcome": "unchanged", "requested": 3}
    target = new_document(site, url, Kind.ITEM, NOW + DAY, first, list(categories))
    db.targets.insert_one(target | seen | {"content_hash": content_hash} | of_target)
