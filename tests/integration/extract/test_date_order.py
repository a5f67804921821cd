"""The order of day and month in dates, set in the site definition."""

from __future__ import annotations

from datetime import UTC, datetime

from tests.integration.harness import Db, Freshet, Pages


def test_site_definition_sets_the_order_of_dates(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    pages.list("list.html", ["/item"])
    pages.item("item", "05/01/2024")
    keys: dict[str, object] = {
        "start_urls": [f"{pages.url}/list.html"], "item_pages": "/item",
        "fields": {"day": {"css": "h1", "type": "date"}},
    }  # fmt: skip
    for hours, dates in enumerate(("month-first", "day-first")):
        freshet.crawl(freshet.wrapper("shop", dates=dates, **keys), hours=hours)
        (post,) = database.posts.find()
        day = (5, 1) if dates == "month-first" else (1, 5)
        assert post["fields"]["day"] == datetime(2024, *day, tzinfo=UTC)


def test_unknown_order_is_refused(freshet: Freshet, pages: Pages) -> None:
    file = freshet.wrapper("a", start_urls=[pages.url], item_pages="/item", dates="year-first")
    result = freshet.crawl(file, code=1)
    assert "dates: " in result.complaint
    assert "'day-first' or 'month-first'" in result.complaint
