"""Dates of posts that are uncertain at first: without a UTC offset, or in the future."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tests.integration.feeds.test_feed_crawl import collected, crawl, rss, subscribe
from tests.integration.harness import Db, Freshet, Pages


def dated(name: str, text: str, link: str | None = None) -> str:
    """Return an entry with a date as the feed states it; link: without a guid."""
    own = f"<link>{link}</link>" if link else f"<guid isPermaLink='false'>{name}</guid>"
    date = f"<pubDate>{text}</pubDate>"
    return f"<item>{own}<title>{name}</title><description>n</description>{date}</item>"


def local(ago: timedelta, offset_hours: float) -> str:
    """Return the local time some time ago, without its offset."""
    return f"{datetime.now(UTC) - ago + timedelta(hours=offset_hours):%Y-%m-%d %H:%M:%S}"


def is_about(moment: datetime | None, ago: timedelta) -> bool:
    """Return whether a time is some time ago, within a minute."""
    assert moment is not None
    return abs(datetime.now(UTC) - ago - moment) < timedelta(minutes=1)


HOUR = timedelta(hours=1)
PAPER = """
from spiders.feeds import FeedsSpider
from spiders.wrapper import WrapperSpider

class Feeds(FeedsSpider):
    custom_settings = {{"AUTOTHROTTLE_ENABLED": False, "DOWNLOAD_DELAY": 0}}

class Paper(WrapperSpider):
    name = "paper"
    start_urls = ["{url}/"]
    item_pages = "/n"
    timezone = "America/New_York"
"""


def test_date_in_the_future_is_used_once_it_has_passed(
    freshet: Freshet, stored: tuple[Db, str], pages: Pages
) -> None:
    db, uri = stored
    soon = datetime.now(UTC) + 3 * HOUR
    subscribe(db, uri, f"{pages.url}/talks.xml")
    pages.file("talks.xml", rss(dated("talk", f"{soon:%a, %d %b %Y %H:%M:%S} GMT")))
    crawl(freshet)
    post = collected(db)["talk"]
    assert (post["published"], post["stated"]) == (None, soon.replace(microsecond=0))
    # The document does not change; the server even answers 304.
    crawl(freshet, "-a", "full=1", hours=2)
    assert collected(db)["talk"]["published"] is None
    crawl(freshet, "-a", "full=1", hours=4)
    post = collected(db)["talk"]
    assert (post["published"], "stated" in post) == (soon.replace(microsecond=0), False)


def test_dates_without_offset_are_in_the_time_zone_of_the_definition(
    freshet: Freshet, stored: tuple[Db, str], pages: Pages
) -> None:
    db, uri = stored
    subscribe(db, uri, f"{pages.url}/shanghai.xml")
    texts = [local(timedelta(minutes=5), 8), local(30 * HOUR, 8)]
    pages.file("shanghai.xml", rss(*(dated(f"n{n}", text) for n, text in enumerate(texts))))
    definition = freshet.folder / "list.toml"
    definition.write_text('timezone = "Asia/Shanghai"\n')
    crawl(freshet, "-a", f"wrapper={definition}")
    posts = collected(db)
    assert is_about(posts["n0"]["published"], timedelta(minutes=5))
    assert is_about(posts["n1"]["published"], 30 * HOUR)
    assert "utc_offset_hours" not in posts["n0"]


def test_feed_is_in_the_time_zone_of_the_site_at_its_host(
    freshet: Freshet, stored: tuple[Db, str], pages: Pages
) -> None:
    db, uri = stored
    subscribe(db, uri, f"{pages.url}/paper.xml")
    pages.file("paper.xml", rss(dated("n", "2024-04-01 06:00:00")))
    freshet.crawl_spider(PAPER.format(url=pages.url), "feeds")
    assert collected(db)["n"]["published"] == datetime(2024, 4, 1, 10, tzinfo=UTC)


def test_newer_post_corrects_the_assumed_offset_of_earlier_ones(
    freshet: Freshet, stored: tuple[Db, str], pages: Pages
) -> None:
    """Three hours after the newest post, its date shows only that the offset is five or more."""
    db, uri = stored
    subscribe(db, uri, f"{pages.url}/shanghai.xml")
    old, older = (dated(name, local(ago * HOUR, 8)) for name, ago in (("old", 3.1), ("older", 50)))
    pages.file("shanghai.xml", rss(old, older))
    crawl(freshet)
    post = collected(db)["old"]
    assert (post["utc_offset_hours"], is_about(post["published"], 0.1 * HOUR)) == (5, True)
    # The oldest has left the document.
    pages.file("shanghai.xml", rss(dated("new", local(timedelta(minutes=6), 8)), old))
    crawl(freshet, "-a", "full=1")
    posts = collected(db)
    assert is_about(posts["new"]["published"], timedelta(minutes=6))
    assert is_about(posts["old"]["published"], 3.1 * HOUR)
    assert is_about(posts["older"]["published"], 50 * HOUR)
    assert db.versions.count_documents({"content.title": "old"}) == 1


def test_recurring_posts_with_one_link_are_separate(
    freshet: Freshet, stored: tuple[Db, str], pages: Pages
) -> None:
    db, uri = stored
    url = f"{pages.url}/status.xml"
    subscribe(db, uri, url)
    days = [
        dated("All is well", f"{day:02} Apr 2024 08:00:00 GMT", f"{pages.url}/status")
        for day in range(1, 8)
    ]
    for count in (1, 2, 5, 7):
        pages.file("status.xml", rss(*reversed(days[:count])))
        crawl(freshet, "-a", "full=1")
        assert db.posts.count_documents({"feed": url}) == count
        assert len(db.posts.distinct("published")) == count
