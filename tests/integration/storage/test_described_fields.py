"""All stored fields are described in the validators, and therefore in the reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from crawler.storage.schema import VALIDATORS
from tests.integration.claiming import edited, text
from tests.integration.databases import read_cells
from tests.integration.dedup.test_duplicates_crawl import article, site
from tests.integration.feeds.test_feed_crawl import crawl, post, rss, subscribe
from tests.integration.harness import Db, Freshet, Pages

DUPLICATES = "characters"
pytestmark = pytest.mark.soak
# The data version, which only Freshet reads.
INTERNAL = {"meta"}
CELL = '[cells.heading]\nurl = "{}/front.html"\ncss = "h1"\nevery = "5m"\n'


def undescribed(row: Mapping[str, Any], schema: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield the fields of a document that its schema does not describe."""
    for name, value in row.items():
        field = schema["properties"].get(name)
        if field is None:
            yield f"{path}.{name}"
        elif isinstance(value, dict) and "properties" in field:
            yield from undescribed(value, field, f"{path}.{name}")
        elif isinstance(value, list) and "properties" in field.get("items", {}):
            for each in value:
                yield from undescribed(each, field["items"], f"{path}.{name}[]")


@pytest.mark.usefixtures("warm")
def test_every_stored_field_is_described(
    freshet: Freshet, stored: tuple[Db, str], pages: Pages
) -> None:
    db, uri = stored
    for name, words in (("a", text(1)), ("b", edited(text(1), 3)), ("c", text(2))):
        article(pages, name, words)
    wrapper = site(freshet, pages, "a", "b", "c")
    freshet.crawl(wrapper)
    article(pages, "c", text(3))
    pages.remove("item-a.html")
    freshet.crawl(wrapper, hours=25)
    pages.file("feed.xml", rss(post("a"), post("b", link=f"{pages.url}/item-b.html")))
    subscribe(db, uri, f"{pages.url}/feed.xml", categories=["tea"])
    crawl(freshet, "-a", "follow=1")
    pages.file("front.html", "<h1>Today</h1>")
    read_cells(freshet, CELL.format(pages.url))
    assert freshet("replan", hours=26).code == 0
    assert freshet("learn", "copies", "--budget", "720/day", hours=26).code == 0
    freshet.crawl(wrapper, hours=27)
    assert freshet("prune", "--keep-days", "1", hours=72).code == 0
    freshet.crawl(wrapper, hours=73)

    names = set(db.list_collection_names()) - INTERNAL
    assert names <= VALIDATORS.keys()
    filled = {name for name in names if db[name].find_one()}
    assert filled >= {"targets", "visits", "versions", "posts", "signatures", "clusters", "feeds"}
    assert filled >= {"cells", "listings", "plans", "sites", "leases", "runs", "days"}
    missing = {
        field
        for name in names
        for row in db[name].find()
        for field in undescribed(row, VALIDATORS[name]["$jsonSchema"], name)
    }
    assert not missing
