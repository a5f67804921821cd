"""`scrapy feeds`: import and export, feed discovery on pages, status, and removal."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from bson import Binary

from tests.integration.harness import Db, Freshet, Pages, Result, Row, asked, urls
from tests.integration.inside import in_json, run
from tests.integration.recording import Recorder

OPML = """\
<?xml version="1.0" encoding="UTF-8"?>
<opml version="2.0"><body>
<outline text="News">
  <outline text="Local"><outline text="A" title="A" xmlUrl="https://a.example/feed"/></outline>
  <outline text="B" xmlUrl="feed://b.example/feed"/>
  <outline text="Bad" xmlUrl="ftp://c.example/"/>
</outline>
<outline text="Again" xmlUrl="https://a.example/feed"/>
</body></opml>
"""
RSS = """\
<?xml version="1.0"?><rss version="2.0"><channel><title>{0}</title><link>http://x.example/</link>
<item><title>P</title><guid>1</guid></item></channel></rss>
"""
LINK = '<link rel="alternate" type="application/rss+xml" href="{0}">'
NOW = datetime.now(UTC).replace(microsecond=0)
HOUR = timedelta(hours=1)


def feeds(freshet: Freshet, *args: object, hours: float = 0, **env: object) -> Result:
    return run(freshet, "feeds", *args, hours=hours, **env)


def listed(freshet: Freshet, *args: object) -> list[Row]:
    rows: Any = in_json(freshet, "feeds", "list", *args)
    return list(rows)


def written(folder: Path, text: str | bytes, name: str = "list.opml") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def store_feed(db: Db, url: str, target: Row | None = None, monitor: Row | None = None) -> None:
    """Store a feed of the spider `feeds` as a crawl does."""
    key = {"_id": f"feeds {url}", "spider": "feeds", "url": url}
    past = {
        "since": NOW - 336 * HOUR,
        "until": NOW,
        "changes": Binary(bytes(12 * 7)),
        "false_dates": 0,
    }
    kept = {
        "kind": "feed", "host": "", "categories": [], "first_seen": NOW, "refreshed": 3,
        "requested": 3,
        "visited_at": NOW - 3 * HOUR, "next_visit": NOW + 5 * HOUR, "outcome": "changed",
        "consecutive_errors": 0, "consecutive_gone": 0, "history": past,
    }  # fmt: skip
    row = {
        "title": "Its own title",
        "site": "https://x.example/",
        "format": "rss20",
        "feed_size": 10,
    }
    db.targets.insert_one(key | kept | (target or {}))
    db.feeds.insert_one(key | row | {"full": True, "posts": 25, "problems": []} | (monitor or {}))


@pytest.fixture
def prepared(freshet: Freshet, database: Db) -> Db:
    """Return an empty database with its collections."""
    assert feeds(freshet, "list").code == 0
    return database


def test_repeated_import_adds_no_feeds(freshet: Freshet, database: Db, tmp_path: Path) -> None:
    path = written(tmp_path, OPML)
    first = in_json(freshet, "feeds", "import", path)
    assert first == {
        "added": 2, "known": 0, "categories": 2, "problems": [],
        "refused": [
            {
                "where": "line 6, Bad", "url": "ftp://c.example/",
                "reason": "not an http or https URL",
            }
        ],
    }  # fmt: skip
    before = list(database.targets.find().sort("_id"))
    again = in_json(freshet, "feeds", "import", path, hours=1)
    assert (again["added"], again["known"]) == (0, 2)
    assert list(database.targets.find().sort("_id")) == before
    assert {row["url"]: (row["title"], row["categories"]) for row in before} == {
        "https://a.example/feed": ("A", ["News/Local"]),
        "http://b.example/feed": ("B", ["News"]),
    }
    (due,) = {row["next_visit"] for row in before}
    assert due <= datetime.now(UTC)
    assert {(row["spider"], row["kind"], row["visited_at"]) for row in before} == {
        ("feeds", "feed", None)
    }


def test_known_feed_gains_categories_and_keeps_its_title(
    freshet: Freshet, database: Db, tmp_path: Path
) -> None:
    feeds(freshet, "import", written(tmp_path, OPML))
    more = OPML.replace("Local", "World").replace('text="A" title="A"', 'text="Other"')
    done = feeds(freshet, "import", written(tmp_path, more))
    assert (done.code, done.out) == (
        0,
        "0 feeds added, 2 already known, 2 categories, 1 rejected\n",
    )
    assert done.complaint == "scrapy feeds: line 6, Bad: ftp://c.example/: not an http or https URL"
    row = database.targets.find_one({"url": "https://a.example/feed"})
    assert row is not None
    assert (row["title"], row["categories"]) == ("A", ["News/Local", "News/World"])


def test_import_recognizes_aliases(freshet: Freshet, prepared: Db, tmp_path: Path) -> None:
    store_feed(prepared, "https://a.example/new", {"aliases": ["https://a.example/feed"]})
    done = in_json(freshet, "feeds", "import", written(tmp_path, OPML))
    assert (done["added"], done["known"]) == (1, 1)
    row = prepared.targets.find_one({"url": "https://a.example/new"})
    assert row is not None
    assert row["categories"] == ["News/Local"]


def test_import_reads_standard_input(
    freshet: Freshet, database: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = io.TextIOWrapper(io.BytesIO(b"# mine\nhttps://a.example/feed\n"))
    monkeypatch.setattr(sys, "stdin", given)
    done = feeds(freshet, "import", "-")
    assert (done.code, done.out) == (0, "1 feed added, 0 already known, 0 categories\n")
    assert urls(database.targets.find()) == {"https://a.example/feed"}


def test_import_reads_pipe(freshet: Freshet, database: Db, tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = Thread(target=path.write_text, args=(OPML,))
    writer.start()
    done = feeds(freshet, "import", path)
    writer.join()
    assert (done.code, database.targets.count_documents({})) == (0, 2)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no feeds found"),
        ("<html><body>Hello</body></html>", "an HTML page, not OPML"),
        ("<opml><body/></opml>", "OPML without any feeds"),
    ],
)
def test_invalid_list_prints_one_line(
    freshet: Freshet, database: Db, tmp_path: Path, text: str, complaint: str
) -> None:
    path = written(tmp_path, text)
    done = feeds(freshet, "import", path)
    assert (done.code, done.complaint) == (1, f"scrapy feeds: {path}: {complaint}")
    assert not database.targets.find_one()


def test_list_with_only_invalid_urls_is_an_error(freshet: Freshet, tmp_path: Path) -> None:
    done = feeds(freshet, "import", written(tmp_path, "a.example\n" * 25))
    assert (done.code, done.out) == (
        1,
        "0 feeds added, 0 already known, 0 categories, 25 rejected\n",
    )
    assert done.err.splitlines()[0] == "scrapy feeds: line 1: a.example: not an http or https URL"
    assert done.err.splitlines()[20:] == ["scrapy feeds: and 5 more (--json shows all)"]


def test_missing_file_is_an_error(freshet: Freshet, tmp_path: Path) -> None:
    done = feeds(freshet, "import", tmp_path / "none.opml")
    assert (done.code, done.complaint) == (
        1, f"scrapy feeds: {tmp_path}/none.opml: No such file or directory"
    )  # fmt: skip


def test_readable_part_of_broken_list_is_imported(freshet: Freshet, tmp_path: Path) -> None:
    done = feeds(freshet, "import", written(tmp_path, OPML.replace("</opml>", "&</o")))
    assert (done.code, done.out.splitlines()[0]) == (
        0, "2 feeds added, 0 already known, 2 categories, 1 rejected"
    )  # fmt: skip
    assert done.out.splitlines()[1].startswith("note: malformed XML (")


def test_export_and_import_round_trip(freshet: Freshet, database: Db, tmp_path: Path) -> None:
    feeds(freshet, "import", written(tmp_path, OPML))
    path = tmp_path / "out.opml"
    done = feeds(freshet, "export", path)
    assert (done.code, done.out) == (0, f"2 feeds written to {path}\n")
    # The second export may happen in the next second.
    dated = re.compile(r"<dateCreated>[^<]+</dateCreated>")
    assert dated.sub("", path.read_text()) == dated.sub("", feeds(freshet, "export").out)
    again = in_json(freshet, "feeds", "import", path, "--spider", "other")
    assert (again["added"], again["refused"]) == (2, [])

    def kept(spider: str) -> list[tuple[Any, ...]]:
        rows = database.targets.find({"spider": spider}).sort("url")
        return [(row["url"], row["title"], row["categories"]) for row in rows]

    assert kept("other") == kept("feeds")
    assert [*tmp_path.glob(".out*")] == []


def test_export_includes_site_and_title_of_feed(freshet: Freshet, prepared: Db) -> None:
    store_feed(prepared, "https://a.example/", {"categories": ["N", "M"]})
    store_feed(prepared, "https://b.example/", {"alias_of": "https://a.example/"})
    line = (
        '<outline type="rss" text="Its own title" title="Its own title"'
        ' xmlUrl="https://a.example/" htmlUrl="https://x.example/"/>'
    )
    assert feeds(freshet, "export").out.count(line) == 2
    assert feeds(freshet, "export", "--format", "urls").out == "https://a.example/\n"
    assert in_json(freshet, "feeds", "export") == [
        {"url": "https://a.example/", "title": "Its own title", "site": "https://x.example/",
         "categories": ["N", "M"]},
    ]  # fmt: skip


def test_unwritable_file_is_an_error(freshet: Freshet, prepared: Db, tmp_path: Path) -> None:
    done = feeds(freshet, "export", tmp_path / "none" / "out.opml")
    assert (done.code, done.complaint) == (
        1, f"scrapy feeds: {tmp_path}/none/out.opml: No such file or directory"
    )  # fmt: skip


@pytest.fixture
def blog(pages: Pages) -> Pages:
    """Create a page that names three feeds, of which one is missing, and pages that name none."""
    for name in ("main", "second", "comments", "private/feed"):
        pages.file(f"{name}.xml", RSS.format(name.title()))
    links = map(LINK.format, ("comments.xml", "gone.xml", "main.xml?utm_source=page", "second.xml"))
    pages.file("index.html", f"<html><head>{''.join(links)}</head><body>Blog</body></html>")
    pages.file(
        "about.html",
        '<html><body><a href="/second.xml">x</a><a href="/rss.xml">x</a></body></html>',
    )
    pages.file(
        "guess.html", '<html><body><a href="main.xml">x</a><a href="feed.xml">RSS</a></body></html>'
    )
    pages.file("feed.xml", RSS.format("Guessed"))
    pages.file("none.html", "<html><body>Nothing here</body></html>")
    pages.file("data.json", '{"a": 1}')
    pages.file("robots.txt", "User-agent: *\nDisallow: /private/\n")
    return pages


def test_adding_page_adds_its_first_feed(freshet: Freshet, blog: Pages, database: Db) -> None:
    added = freshet(
        "feeds", "add", f"{blog.url}/", "--category", " News / Local", "--category", "B"
    )
    assert (added.code, added.err) == (0, "")
    assert added.out == f"added  {blog.url}/main.xml  Main\n"
    (row,) = database.targets.find()
    assert (row["url"], row["categories"]) == (f"{blog.url}/main.xml", ["News/Local", "B"])
    assert (row["kind"], row["title"]) == ("feed", None)
    assert asked(blog)["/comments.xml"] == 0


def test_feed_is_added_with_title_and_recognized_again(
    freshet: Freshet, blog: Pages, database: Db
) -> None:
    url = f"{blog.url}/main.xml"
    first = freshet("feeds", "add", url, "--json")
    assert json.loads(first.out) == {
        "added": 1, "known": 0, "refused": [],
        "feeds": [{"url": url, "title": "Main", "format": "rss20", "given": url, "added": True}],
    }  # fmt: skip
    database.targets.update_one(
        {"url": url}, {"$set": {"gone": True, "next_visit": NOW + 99 * HOUR}}
    )
    again = freshet("feeds", "add", url, "--title", " My  title ")
    assert (again.code, again.out) == (0, f"known  {url}  My title\n")
    (row,) = database.targets.find()
    assert row["title"] == "My title"
    assert row["next_visit"] <= datetime.now(UTC), "adding a gone feed again makes it due"


def test_a_password_in_a_url_is_refused_and_not_shown(
    freshet: Freshet, blog: Pages, database: Db, tmp_path: Path
) -> None:
    place = blog.url.replace("http://", "http://me:hidden@")
    opml = written(tmp_path, OPML.replace("ftp://c.example/", f"{place}/main.xml"))
    for words in (("add", f"{place}/main.xml"), ("import", opml)):
        for more in ((), ("--json",)):
            done = freshet("feeds", *words, *more)
            assert done.code == (words[0] == "add"), done.out
            assert "must not contain a user name or password" in done.out + done.err
            assert "hidden" not in done.out + done.err
    assert all("@" not in url for url in urls(database.targets.find()))


def test_all_option_adds_all_feeds_of_page(freshet: Freshet, blog: Pages, database: Db) -> None:
    done = json.loads(freshet("feeds", "add", f"{blog.url}/", "--all", "--json").out)
    paths = [feed["url"].removeprefix(blog.url) for feed in done["feeds"]]
    assert paths == ["/main.xml", "/second.xml", "/comments.xml"]
    assert database.targets.count_documents({}) == 3


def test_urls_without_feeds_are_reported_and_others_added(
    freshet: Freshet, blog: Pages, database: Db
) -> None:
    names = (
        "none.html",
        "about.html",
        "private/feed.xml",
        "private/other.xml",
        "data.json",
        "no.xml",
        "guess.html",
    )
    done = freshet("feeds", "add", *(f"{blog.url}/{name}" for name in names), "ftp://x/")
    assert done.code == 1
    assert done.out == f"added  {blog.url}/feed.xml  Guessed\n"
    lines = [line.removeprefix(f"scrapy feeds: {blog.url}/") for line in done.err.splitlines()]
    assert lines[0] == "scrapy feeds: ftp://x/: not an http or https URL"
    assert lines[1].endswith(", and does not link to a feed")
    assert lines[2:4] == [
        "about.html: an HTML page, with 1 possible feed link but no feed",
        "private/feed.xml: robots.txt disallows fetching it. --no-fetch adds it without a check",
    ]
    assert lines[6] == "no.xml: status 404"
    assert urls(database.targets.find()) == {f"{blog.url}/feed.xml"}
    assert asked(blog)["/private/feed.xml"] == asked(blog)["/private/other.xml"] == 0


def test_unreachable_host_prints_one_line(freshet: Freshet, database: Db) -> None:
    done = freshet("feeds", "add", "http://127.0.0.1:9/")
    assert (done.code, done.out) == (1, "")
    assert done.complaint.startswith("scrapy feeds: http://127.0.0.1:9/: Connection was refused")
    assert not database.targets.find_one()


def test_no_fetch_adds_url_without_check(freshet: Freshet, database: Db) -> None:
    done = feeds(
        freshet, "add", "feed://x.example/a?utm_source=b", "--no-fetch", "http://y.example"
    )
    assert (done.code, done.out) == (0, "added  http://x.example/a\nadded  http://y.example/\n")
    assert urls(database.targets.find()) == {"http://x.example/a", "http://y.example/"}


@pytest.mark.parametrize("args", [("http://a.b", "http://c.d"), ("http://a.b", "--all")])
def test_title_is_allowed_for_one_feed_only(freshet: Freshet, args: tuple[str, ...]) -> None:
    done = feeds(freshet, "add", *args, "--title", "T")
    assert (done.code, done.complaint) == (
        1, "scrapy feeds: --title is for a single feed. Give one URL, without --all"
    )  # fmt: skip


def test_list_shows_state_of_each_feed(freshet: Freshet, prepared: Db) -> None:
    plan = {"id": "p", "rate_per_week": 12.5, "rate_low": 9.0, "rate_high": 17.0,
            "weeks": 1, "slots": [3]}  # fmt: skip
    push = {"hub": "https://hub.example/", "state": "active", "secret": "s3cret", "token": "t0ken"}
    store_feed(
        prepared,
        "https://a.example/",
        {"title": "My title", "plan": plan},
        {"missed_posts": 3.4, "gaps": 2},
    )
    store_feed(prepared, "https://b.example/", None, {"full": False, "feed_size": 15, "push": push})
    failing = {"outcome": "error", "consecutive_errors": 2}
    store_feed(prepared, "https://c.example/", failing, {"error": "status 500"})
    store_feed(prepared, "https://d.example/", {"gone": True, "consecutive_gone": 3})
    store_feed(prepared, "https://e.example/", {"alias_of": "https://a.example/"})
    store_feed(
        prepared, "https://f.example/", None, {"problems": ["no dates", "2 posts without id"]}
    )
    last = {"reason": "1 of 3 confirmations"}
    store_feed(prepared, "https://fa.example/", {"consecutive_gone": 1, "last_visit": last})
    feeds(freshet, "add", "--no-fetch", "https://g.example/")
    prepared.targets.insert_one(
        {"_id": "feeds https://post.example/", "spider": "feeds", "url": "https://post.example/",
         "kind": "item", "first_seen": NOW, "next_visit": NOW, "post": "feeds https://a.example/ 1"}
    )  # fmt: skip
    rows = listed(freshet)
    assert [row["url"][8] for row in rows] == list("abcdeffg")
    assert [row["state"] for row in rows] == [
        "ok", "push active", "status 500", "gone", "alias of https://a.example/", "2 problems",
        "gone: 1 of 3 confirmations", "never fetched",
    ]  # fmt: skip
    assert [row["rate_per_week"] for row in rows[:2]] == [12.5, 3.5]
    assert rows[0]["title"] == "My title"
    assert {name: rows[0]["plan"][name] for name in plan} == plan
    assert rows[1]["plan"] is None
    assert rows[1]["push"]["hub"] == "https://hub.example/"
    assert "s3cret" not in json.dumps(rows)
    assert "t0ken" not in json.dumps(rows)
    assert (rows[7]["rate_per_week"], rows[7]["feed_size"], rows[7]["last_visit"]) == (
        None,
        None,
        None,
    )
    assert {row["url"][8] for row in listed(freshet, "--errors")} == set("cdf")

    began = (NOW - datetime.now(UTC)) / HOUR
    table = feeds(freshet, "list", COLUMNS=120, hours=began).out.splitlines()
    assert " ".join(table[1].split()) == "feed URL a week size fetched next missed state"
    assert " ".join(table[3].split()) == "My title https://a.example/ 12.5 10 3 h ago in 5 h 3 ok"
    assert table[4].split()[4:] == ["3.5", "15+", "3", "h", "ago", "in", "5", "h", "push", "active"]
    assert table[-1] == "8 feeds"
    narrow = feeds(freshet, "list", COLUMNS=80).out
    assert max(map(len, narrow.splitlines())) <= 80
    assert "confirmations" in narrow, "states are not cut off"


def test_rate_assumes_history_of_at_least_one_week(freshet: Freshet, prepared: Db) -> None:
    past = {"since": NOW - HOUR, "until": NOW, "changes": Binary(bytes(12 * 3)), "false_dates": 0}
    store_feed(prepared, "https://a.example/", {"history": past})
    assert listed(freshet)[0]["rate_per_week"] == 3.0
    unsure = {"rate_per_week": 3.0, "rate_low": 0.2, "rate_high": 9.0}
    prepared.targets.update_one({}, {"$set": {"plan": unsure}}, bypass_document_validation=True)
    assert listed(freshet)[0]["rate_per_week"] is None
    assert "not known" in feeds(freshet, "list", COLUMNS=120).out


def test_list_filters_feeds(freshet: Freshet, prepared: Db) -> None:
    store_feed(
        prepared,
        "https://a.example/",
        {"categories": ["News/Local"], "aliases": ["https://old.example/"]},
    )
    store_feed(prepared, "https://b.example/", {"categories": ["News"]})
    store_feed(prepared, "https://c.example/", {"categories": ["Newspapers"]})

    def shown(*args: str) -> list[str]:
        return [row["url"] for row in listed(freshet, *args)]

    assert shown("--category", "News") == ["https://a.example/", "https://b.example/"]
    assert shown("--category", "News/Local") == ["https://a.example/"]
    assert shown("--category", "News/.*") == []
    assert shown("https://old.example#x", "https://C.example") == [
        "https://a.example/",
        "https://c.example/",
    ]
    assert feeds(freshet, "list", "--limit", "2").out.splitlines()[-1] == (
        "first 2 feeds shown. --limit N shows more, --json shows all"
    )
    assert feeds(freshet, "list", "--limit", "3").out.splitlines()[-1] == "3 feeds"
    unknown = feeds(freshet, "list", "https://z.example/")
    assert (unknown.code, unknown.complaint) == (
        1, "scrapy feeds: feed not found: https://z.example/. scrapy feeds list shows the feeds of "
        "feeds"
    )  # fmt: skip


def test_empty_list_suggests_adding_feeds(freshet: Freshet, database: Db) -> None:
    assert feeds(freshet, "list").out == (
        "no feeds yet. Add some with scrapy feeds import FILE or scrapy feeds add URL\n"
    )
    assert listed(freshet) == []
    assert feeds(freshet, "list", "--errors").out == "no matching feeds\n"


def collected(db: Db, url: str) -> None:
    """Store a feed with a post, the page of the post, and versions and visits of both."""
    key, page = f"feeds {url}", f"{url}posts/1"
    store_feed(db, url)
    times: Row = {"at": NOW, "spider": "feeds", "content_hash": "h"}
    visit = times | {"outcome": "new", "changed": 0}
    db.posts.insert_one(
        {"_id": f"{key} p1", "spider": "feeds", "feed": url, "guid": "p1", "url": page,
         "first_seen": NOW, "content_hash": "h"}
    )  # fmt: skip
    db.targets.insert_one(
        {"_id": f"feeds {page}", "spider": "feeds", "url": page, "kind": "item", "first_seen": NOW,
         "next_visit": NOW, "post": f"{key} p1"}
    )  # fmt: skip
    for target in (url, page):
        db.visits.insert_one(visit | {"target": target})
    for target in (f"{url} p1", page):
        db.versions.insert_one(times | {"_id": f"feeds {target} h", "target": target})
    db.days.insert_one({"spider": "feeds", "target": url, "day": NOW})


def test_remove_deletes_feed_and_its_data(freshet: Freshet, prepared: Db) -> None:
    collected(prepared, "https://a.example/")
    collected(prepared, "https://a.example/b/")
    alias = "https://old.example/"
    store_feed(prepared, alias, {"alias_of": "https://a.example/b/"})
    prepared.targets.update_one({"url": "https://a.example/b/"}, {"$set": {"aliases": [alias]}})
    other = {"_id": "shop https://a.example/b/", "spider": "shop", "url": "https://a.example/b/"}
    prepared.targets.insert_one(other | {"kind": "item", "first_seen": NOW, "next_visit": NOW})

    planned = feeds(freshet, "remove", alias, "--dry-run")
    summary = "1 post, 2 versions, 2 visits, 1 daily aggregate, 2 feeds, 3 targets"
    assert planned.out == f"would remove https://a.example/b/, {alias}: {summary}\n"
    asked_for = feeds(freshet, "remove", alias)
    assert (asked_for.code, asked_for.complaint) == (
        1, f"scrapy feeds: this deletes {summary}. Re-run with --yes to confirm"
    )  # fmt: skip
    done = feeds(freshet, "remove", alias, "--yes")
    assert (done.code, done.out) == (0, f"removed https://a.example/b/, {alias}: {summary}\n")

    left = {
        name: prepared[name].count_documents({})
        for name in ("targets", "feeds", "posts", "versions", "visits", "days")
    }
    assert left == {"targets": 3, "feeds": 1, "posts": 1, "versions": 2, "visits": 2, "days": 1}
    assert prepared.targets.count_documents({"spider": "shop"}) == 1
    assert in_json(freshet, "feeds", "remove", "https://a.example", "--yes")["urls"] == [
        "https://a.example/"
    ]
    assert prepared.targets.count_documents({}) == 1


def test_an_unknown_url_removes_nothing(freshet: Freshet, prepared: Db) -> None:
    store_feed(prepared, "https://a.example/")
    done = feeds(freshet, "remove", "https://a.example/", "https://z.example/", "--yes")
    assert (done.code, done.complaint) == (
        1, "scrapy feeds: feed not found: https://z.example/. scrapy feeds list shows the feeds of "
        "feeds"
    )  # fmt: skip
    assert prepared.targets.count_documents({}) == 1


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        ((), "ACTION is missing. Available: import, add, export, list, remove, push"),
        (("lst",), "unknown action 'lst'. Did you mean list?"),
        (("import",), "the following arguments are required: FILE|-"),
        (("import", "a", "b"), "unrecognized arguments: b"),
        (("add", "--no-fetch"), "the following arguments are required: URL"),
        (("list", "--yes"), "unknown option --yes"),
        (
            ("list", "--limit", "0"),
            "argument --limit: '0' is not a positive integer such as 100",
        ),
        (
            ("add", "http://a.b", "--category", "/"),
            "argument --category: '/' is not a category such as News/Local",
        ),
        (("export", "--format", "csv"), "argument --format: invalid choice: 'csv'"),
    ],
)
def test_wrong_usage_is_reported(freshet: Freshet, args: tuple[str, ...], complaint: str) -> None:
    done = feeds(freshet, *args)
    assert done.code == 2
    assert complaint in done.err.splitlines()[-1]


def test_help_lists_actions_with_options_and_examples(freshet: Freshet) -> None:
    help_text = feeds(freshet, "--help").out
    for action in ("import", "add", "export", "list", "remove", "push"):
        assert f"\nscrapy feeds {action} [" in help_text
        assert f"Example: scrapy feeds {action} " in help_text
    for option in ("--category NAME", "--no-fetch", "--format", "--errors", "--limit N", "--yes"):
        assert option in help_text


def test_feed_is_not_added_while_robots_txt_is_unavailable(freshet: Freshet) -> None:
    with Recorder() as server:
        server.answers |= {"/robots.txt": (503, "/"), "/feed.xml": RSS.format("News")}
        url = f"{server.url}/feed.xml"
        done = freshet("feeds", "add", url)
        reason = "robots.txt cannot be read now. --no-fetch adds it without a check"
        assert (done.code, done.complaint) == (1, f"scrapy feeds: {url}: {reason}")
