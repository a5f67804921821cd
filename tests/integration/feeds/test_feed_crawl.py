"""`scrapy crawl feeds`: new, edited and missed posts, bad documents, redirects, duplicate feeds."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from crawler.items import Kind
from crawler.storage.schema import prepare
from crawler.storage.targets import new_document
from tests.conftest import Databases
from tests.integration.harness import Db, Freshet, Pages, Result, Row, asked, target, visits
from tests.integration.known_pages import on

BEGIN = datetime(2026, 1, 5, tzinfo=UTC)


def subscribe(db: Db, uri: str, *urls: str, **more: object) -> None:
    """Add feeds that are due immediately."""
    on(uri, prepare)
    for url in urls:
        db.targets.insert_one(new_document("feeds", url, Kind.FEED, BEGIN, BEGIN) | more)


def crawl(freshet: Freshet, *args: str, hours: float = 0, **env: object) -> Result:
    """Run one crawl of the feeds and check that it succeeds."""
    words = ("-s", "AUTOTHROTTLE_ENABLED=0", "-s", "DOWNLOAD_DELAY=0", *args)
    result = freshet("crawl", "feeds", *words, hours=hours, **env)
    assert result.code == 0, result.err
    return result


def rss(*items: str, channel: str = "") -> str:
    return (
        "<?xml version='1.0'?><rss version='2.0' xmlns:atom='http://www.w3.org/2005/Atom'>"
        f"<channel><title>A blog</title>{channel}{''.join(items)}</channel></rss>"
    )


def post(name: str, text: str = "text", link: str | None = None, ago_hours: float = 1) -> str:
    moment = datetime.now(UTC) - timedelta(hours=ago_hours)
    return (
        f"<item><guid isPermaLink='false'>{name}</guid><title>{name}</title>"
        f"<link>{link or 'https://blog.test/' + name}</link><description>{text}</description>"
        f"<pubDate>{moment:%a, %d %b %Y %H:%M:%S} GMT</pubDate></item>"
    )


def collected(db: Db) -> dict[str, Row]:
    return {row["guid"]: row for row in db.posts.find()}


def test_new_posts_are_stored_once_and_edits_are_versions(
    freshet: Freshet, stored: tuple[Db, str], pages: Pages
) -> None:
    db, uri = stored
    url = f"{pages.url}/feed.xml"
    pages.file("/feed.xml", rss(post("b"), post("a")))
    subscribe(db, uri, url, categories=["tea"])
    out = freshet.folder / "posts.jsonl"
    result = crawl(freshet, "-O", str(out))

    assert set(collected(db)) == {"a", "b"}
    stored = collected(db)["a"]
    assert (stored["title"], stored["text"], stored["url"]) == ("a", "text", "https://blog.test/a")
    assert (stored["feed"], stored["categories"]) == (url, ["tea"])
    assert [json.loads(line)["guid"] for line in out.read_text().splitlines()] == ["b", "a"]
    assert "2 new posts" in result.err

    crawl(freshet, hours=12)
    assert visits(db)[-1]["outcome"] == "not_modified"

    pages.file("/feed.xml", rss(post("c"), post("b", "corrected")))
    crawl(freshet, hours=24)
    (seen,) = visits(db, outcome="changed")
    assert (seen["posts_new"], seen["posts_edited"]) == (1, 1)
    assert collected(db)["b"]["text"] == "corrected"
    assert db.versions.count_documents({"target": {"$regex": " b$"}}) == 2
    shown = freshet("history", "https://blog.test/b", "--diff")
    assert "@@ main_text @@\n-text\n+corrected\n" in shown.out
    assert f"post of {url}" in freshet("history", "https://blog.test/b").out
    feed = db.feeds.find_one({"url": url})
    assert (feed["feed_size"], feed["full"], feed["posts"]) == (2, True, 3)
    assert target(db, url)["feed_size"] == 2


def test_posts_that_disappear_between_visits_count_as_missed(
    freshet: Freshet, stored: tuple[Db, str], pages: Pages
) -> None:
    db, uri = stored
    url = f"{pages.url}/feed.xml"
    old = [post(f"old {i}", ago_hours=1 + i * 12) for i in range(10)]
    pages.file("/feed.xml", rss(*old))
    subscribe(db, uri, url)
    crawl(freshet)
    pages.file("/feed.xml", rss(*(post(f"new {i}", ago_hours=-99 - i / 60) for i in range(10))))
    result = crawl(freshet, hours=100)
    (seen,) = visits(db, outcome="changed")
    assert 5 < seen["missed_posts"] < 20
    assert db.feeds.find_one()["gaps"] == 1
    assert "missed" in result.err


PUBLISHED = datetime.now(UTC) - timedelta(days=1)


def entry(guid: str, title: str, link: str, at: datetime | None = PUBLISHED) -> str:
    date = f"<pubDate>{at:%a, %d %b %Y %H:%M:%S} GMT</pubDate>" if at else ""
    return (
        f"<item><guid isPermaLink='false'>{guid}</guid><title>{title}</title><link>{link}</link>"
        f"<description>text {title}</description>{date}</item>"
    )


def with_ids(host: str, ids: Sequence[int], *days: str) -> list[list[str]]:
    """Return the posts of a feed on each day; the id of a post contains the number of the day."""
    return [
        [entry(f"{name}-{ids[day]}", name, f"https://{host}/{name}") for name in names]
        for day, names in enumerate(days)
    ]


def with_links(*days: tuple[str, str]) -> list[list[str]]:
    """Return the posts of a feed on each day, whose links are also their ids."""
    return [
        [entry(f"{site}/{name}", name, f"{site}/{name}") for name in names] for site, names in days
    ]


def with_ids_and_links(link: str, *, dated: bool) -> list[list[str]]:
    """Return the posts of a feed on each day, of which both ids and links change."""
    return [
        [
            entry(
                f"{name}-{day}", name, link.format(name=name, day=day),
                PUBLISHED + timedelta(hours=ord(name) - ord("a")) if dated else None,
            )
            for name in names
        ]
        for day, names in enumerate(("ba", "cba", "dcba"))
    ]  # fmt: skip


# Posts of feeds on consecutive days, by the name of the feed.
SERIES = {
    "ids-change-daily": with_ids("a.test", (0, 1, 2, 3), "ba", "ba", "cba", "dcba"),
    "ids-change-once": with_ids("b.test", (0, 1, 1, 1), "ba", "ba", "cba", "dcba"),
    "one-id-changes": [
        [*(entry(x, x, f"https://c.test/{x}") for x in "dcb"[2 - day :]),
         entry(f"a-{day}", "a", "https://c.test/a")]
        for day in range(3)
    ],
    "https": with_links(("http://d.test", "ab"), ("https://d.test", "abc")),
    "www": with_links(("http://e.test", "ab"), ("http://www.e.test", "abc")),
    "session-dated": with_ids_and_links("https://f.test/{name}?sid={day}", dated=True),
    "session": with_ids_and_links("https://g.test/{name}?sid={day}", dated=False),
    "home-dated": with_ids_and_links("https://h.test/", dated=True),
    "home": with_ids_and_links("https://i.test/", dated=False),
    "weekly": [
        [entry(f"news-{day}", "Weekly news", f"https://j.test/news-{day}",
               PUBLISHED + timedelta(days=day))]
        for day in range(2)
    ],
    "downloads": [
        [entry(f"v{day}", f"v{day}", "https://k.test/download", PUBLISHED + timedelta(days=day))]
        for day in range(3)
    ],
}  # fmt: skip


@dataclass(frozen=True)
class Series:
    """Hold the results of crawls of the feeds of SERIES on four days."""

    db: Db
    url: str

    def posts(self, name: str) -> list[Row]:
        """Return the stored posts of a feed, by title."""
        return list(self.db.posts.find({"feed": f"{self.url}/{name}.xml"}).sort("title"))

    def visits(self, name: str) -> list[Row]:
        """Return the visits of a feed on the days on which it changed."""
        return visits(self.db, target=f"{self.url}/{name}.xml")[: len(SERIES[name])]


@pytest.fixture(scope="module")
def series(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Series]:
    folder = tmp_path_factory.mktemp("series")
    with databases() as (db, uri), Pages() as pages:
        subscribe(db, uri, *(f"{pages.url}/{name}.xml" for name in SERIES))
        freshet = Freshet(folder, MONGO_URI=uri, FRESHET_DATA_DIR=folder / "data")
        for day in range(4):
            for name, documents in SERIES.items():
                if day < len(documents):
                    pages.file(f"/{name}.xml", rss(*documents[day]))
            crawl(freshet, hours=24 * day)
        yield Series(db, pages.url)


def assert_stored_once(
    series: Series, name: str, titles: str, new: list[int], *, edited: bool = False
) -> None:
    assert [row["title"] for row in series.posts(name)] == list(titles)
    seen = series.visits(name)
    assert [row["posts_new"] for row in seen] == new
    assert any(row["posts_edited"] for row in seen) is edited
    assert not any(row.get("missed_posts") for row in seen)


@pytest.mark.parametrize(("name", "last"), [("ids-change-daily", 3), ("ids-change-once", 1)])
def test_posts_with_changed_ids_are_stored_once(series: Series, name: str, last: int) -> None:
    assert_stored_once(series, name, "abcd", [2, 0, 1, 1])
    assert {row["guid"] for row in series.posts(name)} == {f"{letter}-{last}" for letter in "abcd"}


def test_some_posts_with_changed_ids_are_stored_once(series: Series) -> None:
    assert_stored_once(series, "one-id-changes", "abcd", [2, 1, 1])


@pytest.mark.parametrize(
    ("name", "site"), [("https", "https://d.test"), ("www", "http://www.e.test")]
)
def test_posts_of_a_feed_whose_links_moved_are_stored_once(
    series: Series, name: str, site: str
) -> None:
    assert_stored_once(series, name, "abc", [2, 1], edited=True)
    assert [row["url"] for row in series.posts(name)] == [f"{site}/{letter}" for letter in "abc"]


@pytest.mark.parametrize("name", ["session-dated", "session", "home-dated", "home"])
def test_posts_whose_ids_and_links_change_at_each_visit_are_stored_once(
    series: Series, name: str
) -> None:
    assert_stored_once(series, name, "abcd", [2, 1, 1])


def test_posts_with_the_same_title_but_other_dates_are_different(series: Series) -> None:
    assert [row["posts_new"] for row in series.visits("weekly")] == [1, 1]


def test_feed_whose_posts_all_link_to_one_page_keeps_them(series: Series) -> None:
    assert [row["title"] for row in series.posts("downloads")] == ["v0", "v1", "v2"]
    assert [row["posts_new"] for row in series.visits("downloads")] == [1, 1, 1]


def test_empty_document_is_reported_and_its_missed_posts_are_estimated(
    freshet: Freshet, stored: tuple[Db, str], pages: Pages
) -> None:
    db, uri = stored
    url = f"{pages.url}/feed.xml"
    subscribe(db, uri, url)
    pages.file("/feed.xml", rss(*(post(f"a{n}", ago_hours=1 + n) for n in range(10))))
    crawl(freshet)
    for hours in (24, 36):
        pages.file("/feed.xml", rss())
        crawl(freshet, hours=hours)
    (row,) = json.loads(freshet("feeds", "list", "--json").out)
    assert (row["needs_attention"], row["feed_size"]) == (True, 10)
    assert row["problems"][0].startswith("the document is empty, but has had 10 posts. If this")
    pages.file("/feed.xml", rss(*(post(f"b{n}", ago_hours=n - 48) for n in range(10))))
    crawl(freshet, hours=48)
    (row,) = json.loads(freshet("feeds", "list", "--json").out)
    assert 25 < row["missed_posts"] < 50
    assert (row["problems"], row["needs_attention"]) == ([], False)


class NeverModified(BaseHTTPRequestHandler):
    """A feed that answers all conditional requests with 304."""

    body = b""

    def do_GET(self) -> None:
        if self.path == "/robots.txt" or self.headers["If-None-Match"]:
            self.send_response(404 if self.path == "/robots.txt" else 304)
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("ETag", '"always"')
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def never_modified() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), NeverModified) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/feed.xml"
        server.shutdown()


def test_feed_that_always_answers_not_modified_is_read_once_a_week(
    freshet: Freshet, stored: tuple[Db, str], never_modified: str
) -> None:
    db, uri = stored
    subscribe(db, uri, never_modified)
    NeverModified.body = rss(post("a")).encode()
    crawl(freshet)
    NeverModified.body = rss(post("b"), post("a")).encode()
    for days in (3, 6, 8, 10):
        crawl(freshet, hours=24 * days)
    assert [row["outcome"] for row in visits(db)] == [
        "new", "not_modified", "not_modified", "changed", "not_modified",
    ]  # fmt: skip
    assert set(collected(db)) == {"a", "b"}
    assert "had not changed, although it had" in db.feeds.find_one()["problems"][0]


BAD = {
    "empty": ("", "not a feed: empty"),
    "page": ("<!DOCTYPE html><title>Just a moment</title><p>hi", "not a feed: an HTML page"),
    "bomb": (
        '<?xml version="1.0"?><!DOCTYPE b [<!ENTITY a "aaaaaaaaaa">'
        + "".join(f'<!ENTITY {chr(98 + i)} "{("&" + chr(97 + i) + ";") * 10}">' for i in range(9))
        + "]><rss version='2.0'><channel><title>&j;</title></channel></rss>",
        "",
    ),
}


def test_invalid_document_affects_only_its_feed_and_keeps_posts(
    freshet: Freshet, stored: tuple[Db, str], pages: Pages
) -> None:
    db, uri = stored
    good = [f"{pages.url}/{name}.xml" for name in BAD]
    for name in BAD:
        pages.file(f"/{name}.xml", rss(post(name)))
    pages.file("/fine.xml", rss(post("fine")))
    subscribe(db, uri, *good, f"{pages.url}/fine.xml")
    crawl(freshet)
    assert set(collected(db)) == {*BAD, "fine"}
    for name, (body, _) in BAD.items():
        pages.file(f"/{name}.xml", body)
    pages.file("/fine.xml", rss(post("finer"), post("fine")))
    crawl(freshet, hours=12)
    assert set(collected(db)) == {*BAD, "fine", "finer"}
    for name, (_, reason) in BAD.items():
        if reason:
            assert db.feeds.find_one({"url": f"{pages.url}/{name}.xml"})["error"].startswith(reason)


def test_two_urls_with_the_same_posts_are_one_feed(
    freshet: Freshet, stored: tuple[Db, str], pages: Pages
) -> None:
    db, uri = stored
    for name in ("one", "two"):
        pages.file(f"/{name}.xml", rss(post("a"), post("b")))
    subscribe(db, uri, f"{pages.url}/one.xml")
    crawl(freshet)
    subscribe(db, uri, f"{pages.url}/two.xml")
    crawl(freshet, hours=1)
    assert target(db, f"{pages.url}/two.xml")["alias_of"] == f"{pages.url}/one.xml"
    assert db.posts.count_documents({}) == 2


def test_feeds_with_same_posts_but_different_titles_are_separate(
    freshet: Freshet, stored: tuple[Db, str], pages: Pages
) -> None:
    db, uri = stored
    for name in ("blog", "tea"):
        pages.file(f"/{name}.xml", rss(post("a")).replace("A blog", f"A blog: {name}"))
        subscribe(db, uri, f"{pages.url}/{name}.xml")
        crawl(freshet)
    assert "alias_of" not in target(db, f"{pages.url}/tea.xml")


def test_follow_fetches_pages_of_new_posts_once(
    freshet: Freshet, stored: tuple[Db, str], pages: Pages
) -> None:
    db, uri = stored
    link = f"{pages.url}/posts/a.html"
    pages.item("/posts/a.html", "The whole story of tea, as it was told in the house by the river.")
    pages.file("/feed.xml", rss(post("a", "short", f"{link}?utm_source=feed")))
    subscribe(db, uri, f"{pages.url}/feed.xml")
    crawl(freshet, "-a", "follow=1")
    assert "whole story" in collected(db)["a"]["text"]
    assert collected(db)["a"]["page"]["url"] == link
    crawl(freshet, "-a", "follow=1", hours=24 * 40)
    assert asked(pages)["/posts/a.html"] == 1
    assert collected(db)["a"]["title"] == "a"
    assert target(db, link)["final_url"] is None

    pages.file("/feed.xml", rss(post("a", "shorter", f"{link}?utm_source=feed")))
    crawl(freshet, "-a", "follow=1", hours=24 * 80)
    assert asked(pages)["/posts/a.html"] == 2, "an edited post may have an edited page"


def test_ttl_of_feed_delays_next_visit(
    freshet: Freshet, stored: tuple[Db, str], pages: Pages
) -> None:
    db, uri = stored
    pages.file("/feed.xml", rss(post("a"), channel="<ttl>1440</ttl>"))
    subscribe(db, uri, f"{pages.url}/feed.xml")
    crawl(freshet)
    row = target(db, f"{pages.url}/feed.xml")
    assert row["next_visit"] - row["visited_at"] >= timedelta(hours=24)


def test_missing_definition_file_is_an_error(freshet: Freshet, tmp_path: Path) -> None:
    result = freshet("crawl", "feeds", "-a", f"wrapper={tmp_path / 'none.toml'}")
    assert result.code == 1
    assert "none.toml" in result.complaint


def test_feed_is_renamed_after_repeated_permanent_redirects(
    freshet: Freshet, stored: tuple[Db, str], pages: Pages
) -> None:
    db, uri = stored
    pages.file("/feed/index.html", rss(post("a"), post("b")))
    old, new = f"{pages.url}/feed", f"{pages.url}/feed/"
    subscribe(db, uri, old, categories=["tea"])
    for hours in (0, 12, 24):
        crawl(freshet, hours=hours)
        assert target(db, old)["moved_to"] == new
    pages.file("/feed/index.html", rss(post("c"), post("a"), post("b")))
    crawl(freshet, hours=36)

    assert db.targets.count_documents({}) == 1
    document = target(db, new)
    assert (document["aliases"], document["categories"], document["requested"]) == (
        [old],
        ["tea"],
        4,
    )
    assert {name: row["feed"] for name, row in collected(db).items()} == dict.fromkeys("abc", new)
    assert db.feeds.find_one()["posts"] == 3
    assert len(visits(db, target=new)) == 4


def test_hub_deliveries_are_stored_without_requests(
    freshet: Freshet, stored: tuple[Db, str], pages: Pages
) -> None:
    db, uri = stored
    url = f"{pages.url}/feed.xml"
    pages.file("/feed.xml", rss(post("b"), post("a")))
    subscribe(db, uri, url)
    crawl(freshet)
    planned = target(db, url)["next_visit"]
    for number in (1, 2):
        body = rss(post(f"pushed {number}")).encode()
        db.pushes.insert_one(
            {
                "_id": f"feeds {url} {number}", "spider": "feeds", "url": url, "body": body,
                "at": datetime.now(UTC), "content_type": "application/rss+xml", "size": len(body),
            }
        )  # fmt: skip
    crawl(freshet, hours=1)

    assert set(collected(db)) == {"a", "b", "pushed 1", "pushed 2"}
    assert db.pushes.count_documents({}) == 0
    assert asked(pages)["/feed.xml"] == 1
    document = target(db, url)
    assert (document["next_visit"], document["requested"], document["feed_size"]) == (
        planned,
        1,
        10,
    )
    assert [row.get("pushed", False) for row in visits(db)] == [False, True, True]
    assert db.feeds.find_one()["posts"] == 4

    # The next poll recognizes the pushed posts and reports none as missed.
    pages.file("/feed.xml", rss(post("pushed 2"), post("pushed 1")))
    crawl(freshet, hours=12)
    (row,) = visits(db, target=url, posts_new=0)
    assert "missed_posts" not in row


def deliver(db: Db, url: str, number: int, body: str, at: datetime) -> None:
    """Store a hub's delivery as `scrapy feeds push` does."""
    row = {
        "_id": f"feeds {url} {number}", "spider": "feeds", "url": url, "body": body.encode(),
        "at": at, "content_type": "application/rss+xml", "size": len(body),
    }  # fmt: skip
    db.pushes.insert_one(row)


def test_outdated_delivery_does_not_restore_old_content(
    freshet: Freshet, stored: tuple[Db, str], pages: Pages
) -> None:
    db, uri = stored
    url = f"{pages.url}/feed.xml"
    first, second = rss(post("a", "one")), rss(post("a", "two"))
    pages.file("/feed.xml", first)
    subscribe(db, uri, url)
    crawl(freshet)
    pages.file("/feed.xml", second)
    crawl(freshet, hours=12)
    before = (collected(db)["a"], list(db.versions.find().sort("at")))
    pages.clear_log()

    # Deliver an outdated document and one never served; both carry valid signatures of the hub.
    for number, body in enumerate([first, rss(post("a", "three"))]):
        old = body.replace("A blog", "An old name")
        deliver(db, url, number, old, datetime.now(UTC))
        result = crawl(freshet, hours=12.1 + number / 10)
        assert "hub delivered different content for 1 known post; fetching" in result.err
        assert (collected(db)["a"], list(db.versions.find().sort("at"))) == before
        assert asked(pages)["/feed.xml"] == number + 1, "fetched in the same run"
        assert db.feeds.find_one()["title"] == "A blog"

    # A true edit is found by that fetch; a new post arrives with the delivery itself.
    edited = rss(post("b", "new"), post("a", "three"))
    pages.file("/feed.xml", edited)
    deliver(db, url, 3, edited, datetime.now(UTC))
    crawl(freshet, hours=12.3)
    assert {name: row["text"] for name, row in collected(db).items()} == {"a": "three", "b": "new"}
    assert [row.get("pushed", False) for row in visits(db)][-2:] == [True, False]


def test_crawl_without_feeds_suggests_adding_some(freshet: Freshet) -> None:
    assert "No feeds found. Add some: scrapy feeds import FILE" in crawl(freshet).err
