"""The feed reader: unread posts, folded copies, health, import, export, edits and removal."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest

from crawler.reports.feeds import AddReport
from crawler.storage import feed_reader, users
from crawler.storage.client import Database
from crawler.storage.feed_reader import NEWEST_FIRST
from crawler.storage.readers import Reader, document_of
from crawler.utils.time import NEVER
from crawler.web.options import WebOptions
from tests.integration.harness import Db, Freshet, Pages
from tests.integration.inside import run
from tests.integration.known_pages import on
from tests.integration.web.browser import Browser, Browsers, browsers_of

HOSTILE = "<script>alert(1)</script>\"'&"
NOW = datetime.now(UTC).replace(microsecond=0)
HOUR = timedelta(hours=1)
FEED, OTHER = "feeds https://a.example/feed", "feeds https://b.example/feed"


def put_feed(db: Db, key: str, *categories: str, **more: Any) -> None:
    spider, _, url = key.partition(" ")
    db.targets.insert_one(
        {"_id": key, "spider": spider, "url": url, "kind": "feed", "first_seen": NOW,
         "next_visit": NOW, "categories": list(categories), "title": None} | more
    )  # fmt: skip
    db.feeds.insert_one({"_id": key, "spider": spider, "url": url, "title": f"Title of {url}"})


def put_post(db: Db, feed: str, name: str, hours: float = 1, **more: Any) -> str:
    spider, _, url = feed.partition(" ")
    key = f"{feed} {name}"
    db.posts.insert_one(
        {"_id": key, "spider": spider, "feed": url, "guid": name, "url": f"https://p.example/{name}",
         "title": f"Title {name}", "text": f"Text of {name}.", "first_seen": NOW - hours * HOUR,
         "content_hash": name, "original": True} | more
    )  # fmt: skip
    return key


def titles(page: str) -> list[str]:
    return re.findall(r'data-open><bdi class="clamp">(.*?)</bdi>', page)


def test_empty_reader_shows_the_next_step(local: Browser) -> None:
    page = local.get("/feeds").text
    assert "No posts yet" in page
    assert 'href="/feeds/add"' in page
    assert "No feeds yet" in local.get("/feeds/health").text
    assert local.get("/api/v1/feeds").json() == {"feeds": [], "next": None}


def test_unread_posts_come_newest_first(local: Browser, database: Db) -> None:
    put_feed(database, FEED)
    for hours in (3, 1, 2):
        put_post(database, FEED, f"p{hours}", hours)
    put_post(database, FEED, "old", 24 * 100)
    page = local.get("/feeds").text
    assert titles(page) == ["Title p1", "Title p2", "Title p3"]
    assert "Title of https://a.example/feed" in page
    assert "Text of p1." in page


def test_posts_of_one_visit_come_newest_first(local: Browser, database: Db) -> None:
    put_feed(database, FEED)
    for days, name in ((3, "c"), (1, "a"), (2, "b")):
        put_post(database, FEED, name, published=NOW - 24 * days * HOUR)
    put_post(database, FEED, "undated")
    assert titles(local.get("/feeds").text) == ["Title a", "Title b", "Title c", "Title undated"]
    first = local.get("/api/v1/feeds/posts?limit=3").json()
    rest = local.get(f"/api/v1/feeds/posts?limit=3&cursor={first['next']}").json()
    assert [post["title"] for post in rest["posts"]] == ["Title undated"]


def test_read_marks_are_per_reader(anna: Browser, vic: Browser, database: Db) -> None:
    put_feed(database, FEED)
    key, other = put_post(database, FEED, "one"), put_post(database, FEED, "two", 2)
    form = {"post": key, "read": "true", "csrf": anna.token("/feeds")}
    assert anna.post("/feeds/read", form).status_code == 303
    assert titles(anna.get("/feeds").text) == ["Title two"]
    assert titles(vic.get("/feeds").text) == ["Title one", "Title two"]
    part = anna.post(
        "/feeds/read", form | {"read": "false"},
        **{"HX-Request": "true", "HX-Request-Type": "partial"},
    )  # fmt: skip
    assert "Mark as read" in part.text
    assert titles(anna.get("/feeds").text) == ["Title one", "Title two"]
    form = {"post": other, "read": "true", "csrf": vic.token("/feeds")}
    assert vic.post("/feeds/read", form).status_code == 303, "viewers cannot mark posts as read"


def test_concurrent_read_marks_are_all_kept(stored: tuple[Db, str]) -> None:
    db, uri = stored
    keys = [put_post(db, FEED, name) for name in ("a", "b", "c")]

    async def mark(adb: Database) -> list[bool]:
        a, b, c = [await feed_reader.post_of(adb, key) or {} for key in keys]
        # Each request reads the marks before another one writes.
        await asyncio.gather(*(feed_reader.mark_read(adb, "anna", post, NOW) for post in (a, b, c)))
        assert await feed_reader.mark_unread(adb, "anna", a, NOW)
        reader = await feed_reader.reader_of(adb, "anna", NOW)
        return [feed_reader.has_read(reader, post) for post in (a, b, c)]

    assert on(uri, mark) == [False, True, True]


def test_all_posts_of_a_folder_are_marked_as_read(local: Browser, database: Db) -> None:
    put_feed(database, FEED, "News/Local", visited_at=NOW)
    put_feed(database, OTHER, "Sport", visited_at=NOW)
    put_post(database, FEED, "n1")
    put_post(database, OTHER, "s1")
    page = local.get("/feeds?folder=News").text
    assert titles(page) == ["Title n1"]
    until = re.search(r'name="until" value="([^"]+)"', page)
    assert until
    put_post(database, FEED, "n2", 0.5)
    form = {"folder": "News", "until": until[1], "csrf": local.token("/feeds?folder=News")}
    assert local.post("/feeds/read-all", form).status_code == 303
    assert titles(local.get("/feeds").text) == ["Title n2", "Title s1"], "n2 was stored later"
    no_zone = {"until": "2026-01-01T00:00", "csrf": local.token("/feeds")}
    assert local.post("/feeds/read-all", no_zone).status_code == 422
    form = {"until": datetime.now(UTC).isoformat(), "csrf": local.token("/feeds")}
    local.post("/feeds/read-all", form)
    assert "Nothing unread" in local.get("/feeds").text
    assert len(titles(local.get("/feeds?all=true").text)) == 3


def test_marking_all_posts_can_be_undone_until_the_next_mark(local: Browser, database: Db) -> None:
    put_feed(database, FEED, "News")
    put_feed(database, OTHER, "Sport")
    first = put_post(database, FEED, "n1")
    put_post(database, OTHER, "s1")
    form = {"until": datetime.now(UTC).isoformat(), "csrf": local.token("/feeds/add")}
    csrf = {"X-CSRF-Token": form["csrf"]}
    done = local.post("/feeds/read-all", form | {"folder": "News"})
    page = local.get(done.headers["location"]).text
    assert "Marked all posts of this folder as read." in page
    assert titles(local.get("/feeds").text) == ["Title s1"]
    undone = local.post("/feeds/undo", form | {"folder": "News"})
    assert titles(local.get(undone.headers["location"]).text) == ["Title n1"]
    done = local.post("/feeds/read-all", form)
    assert "data-undo" in local.get(done.headers["location"]).text
    unread = local.request("POST", "/api/v1/feeds/undo", headers=csrf)
    assert [row["unread"] for row in unread.json()["feeds"]] == [1, 1]
    assert local.request("POST", "/api/v1/feeds/undo", headers=csrf).status_code == 409
    done = local.post("/feeds/read-all", form)
    local.post("/feeds/read", {"post": first, "read": "false"} | form)
    assert "data-undo" not in local.get(done.headers["location"]).text
    assert local.request("POST", "/api/v1/feeds/undo", headers=csrf).status_code == 409


def test_new_feeds_are_waited_for(local: Browser, database: Db) -> None:
    upload(local, OPML)
    page = local.get("/feeds").text
    assert "Nothing is running, so no feed is read" in page
    assert "every 2s" not in page
    now = datetime.now(UTC)
    process = {"id": "x", "host": "other", "pid": 1, "place": "p", "began": "b"}
    times = {"since": now, "until": now + HOUR}
    database.leases.insert_one(
        {"_id": "service", "number": 1, "shared": "", "holders": [process | times]}
    )
    page = local.get("/feeds").text
    assert "1 feed is being read for the first time" in page
    assert "every 2s" in page
    put_post(database, "feeds https://a.example/feed", "one")
    htmx = {"HX-Request": "true"}
    assert local.get("/feeds", headers=htmx).headers["hx-refresh"] == "true"
    assert "every 2s" not in local.get("/feeds").text


def test_a_folder_has_no_posts_of_a_feed_with_the_same_url_elsewhere(
    local: Browser, database: Db
) -> None:
    # Two spiders may read the same feed.
    for key in (FEED, "news https://b.example/feed"):
        put_feed(database, key, "News")
        put_post(database, key, "in")
    for key in (OTHER, "news https://a.example/feed"):
        put_feed(database, key, "Sport")
        put_post(database, key, "out")
    posts = local.get("/api/v1/feeds/posts?folder=News").json()["posts"]
    assert {post["feed"] for post in posts} == {FEED, "news https://b.example/feed"}


def test_post_before_the_time_of_all_feeds_stays_read(local: Browser, database: Db) -> None:
    put_feed(database, FEED)
    key = put_post(database, FEED, "one")
    local.request("POST", "/api/v1/feeds/read", json={"post": key, "read": True})
    local.request("POST", "/api/v1/feeds/read-all", json={"until": NOW.isoformat()})
    again = local.request("POST", "/api/v1/feeds/read", json={"post": key, "read": False}).json()
    assert again["read"] is True
    assert local.get(f"/api/v1/feeds/post?id={quote(key)}").json()["read"] is True


def test_reader_state_is_bounded(
    local: Browser, database: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crawler.storage.readers.MAX_ITEMS", 4)
    put_feed(database, FEED)
    keys = [put_post(database, FEED, f"p{n}", n) for n in range(1, 9)]
    for key in keys[:7]:
        assert local.request("POST", "/api/v1/feeds/read", json={"post": key}).status_code == 200
    (row,) = database.readers.find()
    assert 1 <= len(row["items"]) <= 4
    assert not titles(local.get("/feeds").text), "older posts were not merged into the read time"


def test_copies_are_folded_under_their_original(local: Browser, database: Db) -> None:
    put_feed(database, FEED, "News")
    put_feed(database, OTHER, "Sport")
    original = put_post(database, FEED, "original", 2)
    flags: dict[str, Any] = {"original": False, "similarity": 0.9}
    copy = put_post(database, OTHER, "copy", 1, duplicate_of=original, **flags)
    posts = local.get("/api/v1/feeds/posts").json()["posts"]
    assert [(post["id"], post["copies"]) for post in posts] == [(original, 1)]
    assert posts[0]["some_copies"][0]["id"] == copy
    # The original is not in this folder.
    posts = local.get("/api/v1/feeds/posts?folder=Sport").json()["posts"]
    assert [(post["id"], post["duplicate_of"]) for post in posts] == [(copy, original)]


def test_pagination_lists_each_post_once(local: Browser, database: Db) -> None:
    put_feed(database, FEED)
    keys = [put_post(database, FEED, f"p{n:02}", n // 3) for n in range(25)]
    seen: list[str] = []
    cursor = ""
    for _ in range(5):
        page = local.get(f"/api/v1/feeds/posts?limit=7{cursor}").json()
        seen += [post["id"] for post in page["posts"]]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert sorted(seen) == sorted(keys)
    assert len(set(seen)) == 25


def test_posts_are_found_by_an_index(database: Db) -> None:
    put_feed(database, FEED)
    put_post(database, FEED, "one")
    for query in (
        {"guid": {"$exists": True}, "first_seen": {"$gt": NOW - HOUR * 9}},
        {"guid": {"$exists": True}, "spider": {"$in": ["feeds"]}, "feed": {"$in": ["x", "y"]}},
    ):
        found = database.posts.find(query).sort(list(NEWEST_FIRST)).explain()
        plan = str(found["queryPlanner"]["winningPlan"])
        assert "IXSCAN" in plan
        assert "COLLSCAN" not in plan
        assert "'stage': 'SORT'" not in plan


def test_hostile_texts_are_shown_as_text(local: Browser, database: Db) -> None:
    put_feed(database, FEED, HOSTILE, title=HOSTILE * 20)
    key = put_post(
        database, FEED, HOSTILE, title=HOSTILE + "x" * 1_000_000, text=HOSTILE * 3,
        url="javascript:alert(1)",
    )  # fmt: skip
    for path, params in (
        ("/feeds", {}), ("/feeds/health", {}), ("/feeds/post", {"id": key}),
        ("/feeds/feed", {"id": FEED}), ("/feeds/remove", {"id": FEED}), ("/feeds", {"feed": FEED}),
        ("/feeds", {"folder": HOSTILE}),
    ):  # fmt: skip
        page = local.request("GET", path, params=params)
        assert page.status_code == 200, path
        assert HOSTILE not in page.text
        assert "<script>alert" not in page.text
        assert 'href="javascript:' not in page.text
        assert len(page.text) < 60_000


def test_a_post_shows_what_changed(local: Browser, database: Db) -> None:
    put_feed(database, FEED)
    key = put_post(database, FEED, "one")
    for at, words in ((3, "The price is 10 euros."), (1, "The price is 12 euros.")):
        database.versions.insert_one(
            {"spider": "feeds", "target": key.removeprefix("feeds "), "content_hash": str(at),
             "at": NOW - at * HOUR, "content": {"main_text": words}}
        )  # fmt: skip
    page = local.request("GET", "/feeds/post", params={"id": key}).text
    assert "The price is <del>10</del> euros." in page
    assert "The price is <ins>12</ins> euros." in page
    post = local.request("GET", "/api/v1/feeds/post", params={"id": key}).json()
    assert [[field["name"] for field in version["fields"]] for version in post["versions"]] == [
        ["main_text"], [],
    ]  # fmt: skip
    assert local.get("/feeds/post?id=nope").status_code == 404


def test_health_shows_feeds_with_errors(local: Browser, database: Db) -> None:
    past = NOW - HOUR
    put_feed(database, FEED, visited_at=past)
    put_feed(database, OTHER, visited_at=past, consecutive_errors=2, outcome="error")
    feeds = local.get("/api/v1/feeds").json()["feeds"]
    assert [feed["needs_attention"] for feed in feeds] == [False, True]
    page = local.get("/feeds/health?attention=true").text
    assert "b.example" in page
    assert "a.example" not in page
    first = local.get("/api/v1/feeds?limit=1").json()
    rest = local.get(f"/api/v1/feeds?limit=1&cursor={first['next']}").json()
    urls = [feed["url"] for part in (first, rest) for feed in part["feeds"]]
    assert urls == ["https://a.example/feed", "https://b.example/feed"]
    assert rest["next"] is None


OPML = b"""<?xml version="1.0"?><opml version="2.0"><body><outline text="News">
<outline type="rss" text="A" xmlUrl="https://a.example/feed"/>
<outline type="rss" text="B" xmlUrl="ftp://b.example/feed"/></outline></body></opml>"""


def upload(browser: Browser, content: bytes) -> Any:
    return browser.request(
        "POST", "/feeds/import", data={"csrf": browser.token("/feeds/add")},
        files={"file": ("list.opml", content)}, headers={"Origin": browser.origin},
    )  # fmt: skip


def test_opml_import_and_export(local: Browser, database: Db) -> None:
    page = upload(local, OPML)
    assert page.status_code == 200
    assert "1 feed added" in page.text
    assert "not an http or https URL" in page.text
    assert database.targets.find_one()["categories"] == ["News"]
    answer = local.get("/feeds/export")
    assert 'xmlUrl="https://a.example/feed"' in answer.text
    assert answer.headers["content-disposition"].startswith("attachment")


def test_invalid_upload_is_rejected_with_the_reason(local: Browser, database: Db) -> None:
    page = upload(local, b"<html><body>no</body></html>")
    assert page.status_code == 422
    assert "an HTML page, not OPML" in page.text
    assert upload(local, b"x" * 9_000_000).status_code == 413
    assert database.targets.count_documents({}) == 0


def test_concurrent_feed_edit_is_rejected(local: Browser, database: Db) -> None:
    put_feed(database, FEED, "News")
    token = local.token("/feeds/add")
    form = {"id": FEED, "title": "Mine", "folders": "News\n Sport / Local", "title_before": "",
            "folders_before": "News", "csrf": token}  # fmt: skip
    assert local.post("/feeds/edit", form).status_code == 303
    stored = database.targets.find_one({"_id": FEED})
    assert (stored["title"], stored["categories"]) == ("Mine", ["News", "Sport/Local"])
    late = local.post("/feeds/edit", form | {"title": "Other"})
    assert late.status_code == 422
    assert "Someone else changed this feed" in late.text
    assert 'value="Other"' in late.text
    assert database.targets.find_one({"_id": FEED})["title"] == "Mine"


def test_api_edits_a_feed(local: Browser, database: Db) -> None:
    put_feed(database, FEED, "News")
    path, query = "/api/v1/feeds/feed", {"id": FEED}
    found = local.get(path, params=query).json()
    assert found["feed"]["url"] == "https://a.example/feed"
    assert found["names"] == {"title": None, "folders": ["News"]}
    edit = {"title": " Mine ", "folders": ["News", " Sport / Local", "News"]}
    edited = local.request("PUT", path, params=query, json=edit | {"before": found["names"]})
    assert edited.json()["names"] == {"title": "Mine", "folders": ["News", "Sport/Local"]}
    late = local.request("PUT", path, params=query, json={"title": "X", "before": found["names"]})
    assert late.status_code == 409
    assert database.targets.find_one({"_id": FEED})["title"] == "Mine"
    last = local.request("PUT", path, params=query, json={"title": None, "folders": []})
    assert last.json()["names"] == {"title": None, "folders": []}
    assert database.audit.find_one({"action": f"PUT {path}"})["detail"].startswith(f"{FEED}: Mine")
    many = {"folders": [str(n) for n in range(101)]}
    assert local.request("PUT", path, params=query, json=many).status_code == 422
    missing = local.request("PUT", path, params={"id": OTHER}, json={})
    assert missing.status_code == 404


def test_api_imports_and_exports_lists(local: Browser, database: Db) -> None:
    path = "/api/v1/feeds/import"
    done = local.request("POST", path, files={"file": ("list.opml", OPML)}).json()
    assert (done["added"], done["refused"][0]["url"]) == (1, "ftp://b.example/feed")
    assert database.audit.find_one({"action": f"POST {path}"})["detail"] == "list.opml: 1 added"
    exported = local.get("/api/v1/feeds/export")
    assert exported.headers["content-type"].startswith("text/x-opml")
    again = local.request("POST", path, files={"file": ("again.opml", exported.content)}).json()
    assert (again["added"], again["known"]) == (0, 1)
    lines = "".join(f"https://{n}.example/feed\n" for n in range(1000)).encode().ljust(3_000_000)
    long = local.request("POST", path, files={"file": ("list.txt", lines)}).json()
    assert long["added"] == 1000, "lists are limited like other bodies"
    bad = local.request("POST", path, files={"file": ("x", b"<html><body>no</body></html>")})
    assert bad.status_code == 422
    assert "an HTML page" in bad.json()["detail"]
    assert local.request("POST", path, json={}).status_code == 422


def test_api_dry_run_counts_the_removal(local: Browser, database: Db) -> None:
    put_feed(database, FEED)
    put_post(database, FEED, "one")
    query = {"id": FEED, "dry_run": "true"}
    counted = local.request("DELETE", "/api/v1/feeds", params=query).json()
    assert (counted["dry_run"], counted["removed"]["posts"]) == (True, 1)
    assert database.posts.count_documents({}) == 1
    removed = local.request("DELETE", "/api/v1/feeds", params={"id": FEED}).json()
    assert removed["removed"] == counted["removed"]
    assert database.posts.count_documents({}) == 0


def test_feed_api_has_a_schema(local: Browser) -> None:
    schema = local.get("/api/openapi.json").json()
    import_ = schema["paths"]["/api/v1/feeds/import"]["post"]
    assert "multipart/form-data" in import_["requestBody"]["content"]
    export = schema["paths"]["/api/v1/feeds/export"]["get"]["responses"]["200"]["content"]
    assert export.keys() == {"text/x-opml"}
    edit = schema["paths"]["/api/v1/feeds/feed"]["put"]["requestBody"]["content"]
    assert edit["application/json"]["schema"] == {"$ref": "#/components/schemas/EditedFeed"}


def test_browser_import_requires_a_csrf_token(anna: Browser, vic: Browser, database: Db) -> None:
    path, files = "/api/v1/feeds/import", {"file": ("list.opml", OPML)}
    forged = anna.request("POST", path, files=files, headers={"Origin": anna.origin})
    assert forged.status_code == 403
    token = {"Origin": anna.origin, "X-CSRF-Token": anna.token("/account")}
    assert anna.request("POST", path, files=files, headers=token).status_code == 200
    viewer = {"Origin": vic.origin, "X-CSRF-Token": vic.token("/account")}
    assert vic.request("POST", path, files=files, headers=viewer).status_code == 403


def test_a_feed_is_removed_after_a_confirmation(local: Browser, database: Db) -> None:
    put_feed(database, FEED)
    put_post(database, FEED, "one")
    until = {"feed": FEED, "until": NOW.isoformat()}
    assert local.request("POST", "/api/v1/feeds/read-all", json=until).status_code == 204
    assert [row["sources"][0]["source"] for row in database.readers.find()] == [FEED]
    page = local.request("GET", "/feeds/remove", params={"id": FEED}).text
    assert "1 post" in page
    assert database.posts.count_documents({}) == 1
    form = {"id": FEED, "csrf": local.token("/feeds/add")}
    assert local.post("/feeds/remove", form).status_code == 303
    counts = {name: database[name].count_documents({}) for name in ("posts", "targets")}
    assert counts == {"posts": 0, "targets": 0}
    assert [row["sources"] for row in database.readers.find()] == [[]]
    assert local.post("/feeds/remove", form).status_code == 404
    assert database.audit.find_one({"action": "POST /feeds/remove"})["detail"].startswith(FEED)


def test_viewers_cannot_change_feeds(vic: Browser, database: Db) -> None:
    put_feed(database, FEED)
    form = {"id": FEED, "csrf": vic.token("/feeds")}
    for path in ("/feeds/edit", "/feeds/remove", "/feeds/add", "/feeds/import"):
        assert vic.post(path, form).status_code == 403, path
    assert vic.get("/feeds/add").status_code == 403
    assert database.targets.count_documents({}) == 1
    assert "/feeds/add" not in vic.get("/feeds/health").text


def test_removing_a_user_deletes_their_read_marks(browsers: Browsers, database: Db) -> None:
    for name in ("anna", "anna posts", "annabel"):
        database.readers.insert_one(document_of(Reader(name, NOW)) | {"_id": name})

    async def removed() -> None:
        async with browsers.app.state.database.opened() as store:
            await users.remove(store.db, "anna")

    browsers.loop.run_until_complete(removed())
    assert [row["_id"] for row in database.readers.find()] == ["annabel"]


def add(browser: Browser, url: str, **more: str) -> Any:
    form = {"url": url, "title": "", "folder": "", "csrf": browser.token("/feeds/add")} | more
    return browser.post("/feeds/add", form)


def test_feed_is_discovered_on_a_page_and_added(local: Browser, database: Db, pages: Pages) -> None:
    pages.file("index.html", '<link rel="alternate" type="application/rss+xml" href="feed.xml">')
    pages.file("feed.xml", "<rss version='2.0'><channel><title>Mine</title></channel></rss>")
    page = add(local, f"{pages.url}/index.html", folder=" News / Local ")
    assert page.status_code == 200
    assert "1 added" in page.text
    assert "Mine" in page.text
    (row,) = database.targets.find()
    assert (row["url"], row["categories"]) == (f"{pages.url}/feed.xml", ["News/Local"])


def test_page_without_a_feed_keeps_the_form_values(
    local: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: object, **__: object) -> AddReport:
        refused = {"where": "", "url": "x", "reason": f"no feed {HOSTILE}"}
        return {"added": 0, "known": 0, "feeds": [], "refused": [refused]}

    monkeypatch.setattr("crawler.web.routes.feeds.add_feeds", nothing)
    wrong = add(local, "https://a.example/none.html", title="Typed")
    assert wrong.status_code == 422
    assert "no feed &lt;script&gt;" in wrong.text
    assert 'value="Typed"' in wrong.text


def test_slow_page_does_not_block_the_app(local: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crawler.web.subprocesses.MAX_ADD_SECONDS", 0.05)
    page = add(local, "https://feed.example/")
    assert page.status_code == 422
    assert "did not answer within 0.05 s" in page.text
    monkeypatch.setattr("crawler.web.subprocesses._adding", asyncio.Semaphore(0))
    assert "other feeds are being added" in add(local, "https://feed.example/").text


def test_add_command_gets_the_settings_of_the_app(stored: tuple[Db, str]) -> None:
    with browsers_of(stored[1], WebOptions(settings=("-s", "FRESHET_BUDGET=none"))) as make:
        page = add(make(address="127.0.0.1"), "https://feed.example/")
    assert page.status_code == 422
    assert "FRESHET_BUDGET" in page.text


@pytest.mark.parametrize("url", ["ftp://a.example/", "--help", "https://u:p@a.example/"])
def test_a_url_that_is_not_a_feed_is_refused(local: Browser, database: Db, url: str) -> None:
    page = add(local, url)
    assert page.status_code == 422
    assert "problem-url" in page.text
    assert database.targets.count_documents({}) == 0


def test_a_muted_feed_has_no_next_visit(local: Browser, database: Db, freshet: Freshet) -> None:
    put_feed(database, FEED, next_visit=NEVER, muted_at=NOW, visited_at=NOW)
    for path in ("/feeds/health", f"/feeds/feed?id={quote(FEED)}"):
        assert "9999" not in local.get(path).text, path
    (row,) = [
        line for line in run(freshet, "feeds", "list").out.splitlines() if "a.example" in line
    ]
    assert "none" in row
