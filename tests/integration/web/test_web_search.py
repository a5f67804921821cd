"""Search in the web app: matches, order, near-duplicates, filters, pages and hostile texts."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any
from urllib.parse import urlencode
from xml.etree import ElementTree

import pytest
from bson import ObjectId

from crawler.storage import posts, saved_searches, search_pages, search_versions, users
from tests.integration.harness import Db
from tests.integration.known_pages import on
from tests.integration.web.browser import Browser, Browsers

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
DAY = timedelta(days=1)
HOSTILE = "<script>alert(1)</script>\"'&"


def put(db: Db, name: str, text: str = "", **more: Any) -> str:
    """Store an item of the site `shop` as a crawl does; return its `_id`."""
    spider = more.get("spider", "shop")
    url = f"https://{spider}.example/{name}"
    post = {
        "_id": f"{spider} {url}", "spider": spider, "url": url, "title": name.capitalize(),
        "text": text, "fields": {}, "categories": [], "first_seen": NOW, "content_hash": "h",
        "original": True,
    } | more  # fmt: skip
    if words := posts.words_of(post):
        post["words"] = words
    db.posts.insert_one(post)
    return str(post["_id"])


def put_post(db: Db, name: str, text: str = "", days: float = 1, **more: Any) -> str:
    """Store a post of a feed."""
    feed = {"feed": "https://news.example/feed", "guid": name, "published": NOW - days * DAY}
    return put(db, name, text, **{"spider": "feeds"} | feed | more)


def put_copy(db: Db, name: str, of: str, **more: Any) -> str:
    """Store a near-duplicate of a post."""
    original = db.posts.find_one({"_id": of})
    assert original is not None
    cluster = original.get("cluster") or ObjectId()
    db.posts.update_one({"_id": of}, {"$set": {"cluster": cluster}})
    flags = {"original": False, "duplicate_of": of, "similarity": 0.93, "cluster": cluster}
    return put(db, name, original["text"], **flags | more)


def names(browser: Browser, q: str = "", **more: Any) -> list[str]:
    """Return the names that the API finds, in order."""
    found = browser.get(f"/api/v1/search?{urlencode({'q': q} | more)}")
    assert found.status_code == 200, found.text
    return [each["name"] for each in found.json()["found"]]


def shown(page: str) -> list[str]:
    """Return the names on a page, in order."""
    found = re.findall(r'data-open><bdi class="clamp">(.*?)</bdi>', page)
    return [unescape(re.sub("</?mark>", "", each)) for each in found]


def test_before_the_first_crawl_the_page_names_the_next_step(local: Browser) -> None:
    page = local.get("/search").text
    assert "Nothing to search yet" in page
    assert 'href="/setup"' in page
    assert 'href="/feeds/add"' in page
    assert 'data-key="s" aria-current="page">Search</a>' in page


def test_words_phrases_and_excluded_words(local: Browser, database: Db) -> None:
    put(database, "lamp", "A red lamp of walnut wood.")
    put(database, "table", "A walnut table, and red wood.")
    put(database, "chair", "A chair of oak; lamps are sold separately.")
    assert set(names(local, "walnut")) == {"Lamp", "Table"}
    assert names(local, "walnut LAMP") == ["Lamp"]
    assert names(local, '"walnut wood"') == ["Lamp"]
    assert names(local, "“red wood”") == ["Table"]
    assert names(local, "walnut -lamp") == ["Table"]
    assert names(local, 'walnut -"red lamp"') == ["Table"]
    assert names(local, "lampshade") == []
    assert set(names(local, "-walnut")) == {"Chair"}, "without words, the newest others"


def test_accents_and_scripts_without_spaces(local: Browser, database: Db) -> None:
    put(database, "city", "Grüße aus MÜNCHEN")
    put(database, "world", "我们在一个虚拟世界里。")
    assert names(local, "munchen") == names(local, "München gruße") == ["City"]
    assert names(local, "虚拟世界") == names(local, "一个 虚拟") == ["World"]
    page = local.get(f"/search?{urlencode({'q': '界'})}").text
    assert "Add the next character" in page


def test_a_result_reads_like_an_entry(local: Browser, database: Db) -> None:
    price = {"amount": 289.9, "currency": "£"}
    key = put(
        database, "lamp", "Turned by hand. A lamp of walnut.",
        fields={"stock": "9", "price": price}, categories=["Lamps"],
    )  # fmt: skip
    put_post(database, "news", "A lamp exhibition.")
    times = {"first_seen": NOW, "next_visit": NOW}
    database.targets.insert_many(
        [
            {"_id": "feeds https://news.example/feed", "spider": "feeds", "title": "Daily News",
             "url": "https://news.example/feed", "kind": "feed"} | times,
            {"_id": key, "spider": "shop", "url": "x", "kind": "item"} | times,
        ]
    )  # fmt: skip
    page = local.get("/search?q=lamp").text
    assert shown(page) == ["Lamp", "News"]
    assert '<bdi class="clamp"><mark>Lamp</mark></bdi>' in page
    assert "A <mark>lamp</mark> of walnut." in page
    assert "2 results, the best match first." in page
    first = page[page.index('<li class="hit"') : page.index("News</bdi>")]
    assert re.search(r'href="/targets/[\w-]+" data-open', first)
    assert 'href="/sites/shop"' in first
    assert "category=Lamps" in first
    assert "<b>£289.90</b>" in first
    assert first.index("price") < first.index("stock")
    assert "<bdi>Daily News</bdi>" in page
    found = local.get("/api/v1/search?q=lamp").json()
    assert (found["count"], found["order"], found["next"]) == (2, "best", None)
    item, post = found["found"]
    assert (item["kind"], item["site"], item["target"]) == ("item", "shop", key)
    assert [value["name"] for value in item["values"]] == ["price", "stock"]
    start, stop = item["marks"][0]
    assert item["snippet"][start:stop] == "lamp"
    assert (post["kind"], post["source"], post["target"]) == ("post", "Daily News", None)


def test_near_duplicates_are_folded(local: Browser, database: Db) -> None:
    original = put(database, "first", "The moon over the harbor.")
    put_copy(database, "copy", original, spider="mirror")
    page = local.get("/search?q=moon").text
    assert shown(page) == ["First"]
    assert re.search(r"also on <bdi>mirror</bdi>: <a [^>]+><bdi>Copy</bdi></a>", page)
    for number in range(30):
        put_copy(database, f"copy{number}", original, spider="other")
    page = local.get("/search?q=moon").text
    assert "and 30 more copies" in page
    assert "and 11 more, which are not listed here" in page
    (found,) = local.get("/api/v1/search?q=moon&site=mirror").json()["found"]
    assert (found["site"], found["copies"], len(found["also"])) == ("shop", 31, 20)


def test_a_page_and_the_posts_about_it_are_one_result(local: Browser, database: Db) -> None:
    put(database, "page", "moon " * 40, item="shop.example/page")
    put_post(database, "post", "moon", item="shop.example/page")
    put_post(database, "other", "moon")
    assert set(names(local, "moon")) == {"Page", "Other"}
    assert set(names(local)) == {"Page", "Other"}
    found = local.get("/api/v1/search?q=moon").json()["found"]
    assert [each["also"][0]["site"] for each in found if each["also"]] == ["feeds"]
    assert "same page" in local.get("/search?q=moon").text


def test_filters(local: Browser, database: Db) -> None:
    put(database, "lamp", "moon", categories=["Home/Lamps"])
    put(database, "rug", "moon", categories=["Rugs"], spider="store", first_seen=NOW - 9 * DAY)
    put_post(database, "post", "moon", days=3)
    for q in ("moon", ""):
        assert names(local, q, site="store") == ["Rug"]
        assert names(local, q, category="Home") == ["Lamp"]
        assert names(local, q, category="Hom") == []
        assert names(local, q, kind="post") == ["Post"]
        assert set(names(local, q, kind="item")) == {"Lamp", "Rug"}
        assert names(local, q, **{"from": "2026-11-18"}) == ["Lamp"]
        assert names(local, q, **{"from": "2026-11-17", "to": "2026-11-17"}) == ["Post"]
        assert names(local, q, to="2026-11-16", site="store") == ["Rug"]
    page = local.get("/search?q=moon&site=nowhere").text
    assert "Nothing found" in page
    assert "Search without the filters" in page
    assert "<option selected>nowhere</option>" in page


def test_without_words_the_newest_come_first(local: Browser, database: Db) -> None:
    put(database, "old", first_seen=NOW - 4 * DAY)
    put(database, "new", first_seen=NOW)
    put_post(database, "middle", days=2)
    assert names(local) == ["New", "Middle", "Old"]
    page = local.get("/search").text
    assert shown(page) == ["New", "Middle", "Old"]
    assert "3 results, the newest first." in page


def every_page(browser: Browser, **query: Any) -> list[str]:
    """Return the names of all pages."""
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        part = {"cursor": cursor} if cursor else {}
        answer = browser.get(f"/api/v1/search?{urlencode(query | part)}").json()
        found += [each["name"] for each in answer["found"]]
        cursor = answer["next"]
    return found


def test_pages_have_each_result_once(local: Browser, database: Db) -> None:
    for number in range(23):
        # Many have the same date and the same score.
        put(database, f"item{number}", "moon", first_seen=NOW - number // 9 * DAY)
        put_post(database, f"post{number}", "moon", days=number // 9)
    for query in ({"q": "moon"}, {"q": ""}, {"q": "-sun", "kind": "item"}):
        whole = names(local, **query, limit=200)
        assert len(set(whole)) == len(whole) == (23 if "kind" in query else 46)
        assert sorted(every_page(local, **query, limit=7)) == sorted(whole)
    assert every_page(local, q="moon", limit=7) == names(local, "moon", limit=200)
    page = local.get("/search?q=moon&limit=7").text
    assert "46 results" in page
    assert 'rel="next"' in page


def test_frequent_words_list_the_newest(
    local: Browser, database: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("RARE", 2), ("MAX_RANKED", 5), ("STEPS", (4, 6)), ("MAX_SCORED", 5)):
        monkeypatch.setattr(search_pages, name, value)
    for number in range(30):
        text = "moon Über" if number % 3 else "moons uber"
        put(database, f"item{number}", text, first_seen=NOW - number * DAY)
    wanted = [f"Item{number}" for number in range(30) if number % 3]
    for query in ("moon", "moon uber"):
        answer = local.get(f"/api/v1/search?q={query}&limit=50").json()
        assert answer["order"] == "newest"
        assert len(answer["found"]) < 10, "a page reads few posts"
        assert every_page(local, q=query, limit=50) == every_page(local, q=query, limit=3) == wanted
    put(database, "rare", "moon and comet", first_seen=NOW - 99 * DAY)
    assert names(local, "moon comet") == ["Rare"], "looked up by the rarest word"
    page = local.get("/search?q=moon&limit=50").text
    assert "This word is in thousands of items and posts, so they are not ranked" in page
    assert re.search(r"\d posts were searched for this page", page)
    assert "Search older ones" in page
    page = local.get("/search?q=moon+-über").text
    assert re.search(r"None of the \d newest posts matches", page)


def test_frequent_words_are_found_in_any_form(
    local: Browser, database: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = (
        "Grüße aus MÜNCHEN, Weißstraße", "我们在一个虚拟世界里。", "新しいバス停とｺﾝﾋﾟｭｰﾀ",
        "도서관에서 책을 읽는다（서울）", "Ο Οδυσσέας", "我在GitHub上写Python3代码",
        "ＦＲＥＳＨ ﬁsh", "it don’t matter", "use snake_case in C++", "great😀 for €100, Foo™",
        "Cafe\u0301 co\u00adop",
    )  # fmt: skip
    queries = (
        "munchen", "Weissstrasse", "虚拟世界", "拟世", "バス停", "コンピュータ", "도서관", "서울",
        "οδυσσεας", "github", "Python3 代码", "fresh fish", "don't", "snake_case", "c++", "great",
        "foo 100", "café coop", "cafe", "fish -100", "cafe -snake", "100 -fish -\"not there\"",
    )  # fmt: skip
    for number, text in enumerate(texts):
        put(database, f"text{number}", text)
        put(database, f"title{number}", title=text)
        put(database, f"field{number}", fields={"deep": [{"er": text}]})
    urls = {query: sorted(_urls(local, query)) for query in queries}
    assert all(len(found) == 3 for found in urls.values()), urls
    monkeypatch.setattr(search_pages, "RARE", 0)
    monkeypatch.setattr(search_pages, "MAX_RANKED", 0)
    assert {query: sorted(_urls(local, query)) for query in queries} == urls


def _urls(browser: Browser, query: str) -> list[str]:
    found = browser.get(f"/api/v1/search?{urlencode({'q': query})}").json()["found"]
    return [each["url"] for each in found]


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("q=%21%3F", "the query has no letters or digits to search for"),
        ("q=moon&from=2026-02-01&to=2026-01-01", "the first day must not be after the last day"),
    ],
)
def test_a_query_that_cannot_work_is_answered_in_one_line(
    local: Browser, database: Db, query: str, problem: str
) -> None:
    put(database, "lamp", "moon")
    page = local.get(f"/search?{query}")
    assert page.status_code == 422
    assert problem in page.text
    assert 'aria-invalid="true"' in page.text
    answer = local.get(f"/api/v1/search?{query}")
    assert (answer.status_code, problem in answer.json()["detail"]) == (422, True)


@pytest.mark.parametrize(
    "query",
    ["from=yesterday", f"q={'x' * 501}", "kind=cell", "cursor=x", "cursor=WyJiIiwxXQ",
     "cursor=WyJuIiwxLDIsM10", "cursor=WyJ6IiwxLDIsM10", "q=a&cursor=WyJiIix7Im8iOiIxIn0sMiwzXQ"],
)  # fmt: skip
def test_invalid_parameters_are_rejected(local: Browser, database: Db, query: str) -> None:
    put(database, "a", "a")
    for path in ("/search", "/api/v1/search"):
        assert local.get(f"{path}?{query}").status_code == 422, path


def test_hostile_texts_are_escaped(local: Browser, database: Db) -> None:
    put(
        database, "evil", f"{HOSTILE} moon <mark>{HOSTILE}", title=f"moon {HOSTILE} {'x' * 5000}",
        fields={"price": HOSTILE, "note": HOSTILE}, categories=[HOSTILE],
        url="javascript:alert(1)",
    )  # fmt: skip
    put_copy(database, "copy", "shop https://shop.example/evil", title=HOSTILE)
    for query in ("moon", HOSTILE, "script alert", ""):
        page = local.get(f"/search?{urlencode({'q': query})}").text
        assert "<script>alert" not in page
        assert 'href="javascript:' not in page
        assert len(page) < 20_000
    assert "&lt;<mark>script</mark>&gt;" in local.get("/search?q=script").text


def test_posts_that_are_long_are_cut(local: Browser, database: Db) -> None:
    put(database, "long", f"{'word ' * 150_000} moon {'x' * 300_000}")
    (found,) = local.get("/api/v1/search?q=moon").json()["found"]
    assert len(found["snippet"]) < 300
    assert [found["snippet"][start:stop] for start, stop in found["marks"]] == ["moon"]


def test_viewers_can_search(vic: Browser, database: Db) -> None:
    put(database, "lamp", "moon")
    assert shown(vic.get("/search?q=moon").text) == ["Lamp"]


def test_searches_read_posts_by_an_index(
    local: Browser, database: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(60):
        put(database, f"item{number}", "moon" if number % 2 else "sun", spider=f"s{number % 3}",
            first_seen=NOW - number * DAY)  # fmt: skip
        put_post(database, f"post{number}", "moon", days=number)
    local.get("/search")
    database.command("profile", 2)
    for ranked in (search_pages.MAX_RANKED, 5):
        monkeypatch.setattr(search_pages, "RARE", 5)
        monkeypatch.setattr(search_pages, "MAX_RANKED", ranked)
        for query in ("q=", "q=&site=s1", "q=&to=2026-10-20", "q=moon", "q=moon&site=s1"):
            assert local.get(f"/search?limit=5&{query}").status_code == 200
    database.command("profile", 0)
    of_posts = database.system.profile.find({"ns": f"{database.name}.posts"})
    plans = [row["planSummary"] for row in of_posts if "planSummary" in row]
    assert any("published" in plan for plan in plans)
    assert [plan for plan in plans if "COLLSCAN" in plan] == []


def save(browser: Browser, name: str, **parts: str) -> str:
    """Save a search with the form of the page; return its id."""
    form = {"name": name, "csrf": browser.token("/search?q=x")} | parts
    assert browser.post("/search/saved", form).status_code == 303
    searches = browser.get("/api/v1/search/saved").json()["searches"]
    return next(str(each["id"]) for each in searches if each["name"] == name)


def test_newest_first_on_request(local: Browser, database: Db) -> None:
    put(database, "title", "a text", title="Moon", first_seen=NOW - 9 * DAY)
    for number in range(5):
        put(database, f"text{number}", "a text of the moon", first_seen=NOW - number * DAY)
    newest = ["Text0", "Text1", "Text2", "Text3", "Text4", "Moon"]
    assert names(local, "moon")[0] == "Moon"
    assert names(local, "moon", sort="newest") == newest
    assert every_page(local, q="moon", sort="newest", limit=2) == newest
    cursor = local.get("/api/v1/search?q=moon&limit=2").json()["next"]
    other = local.get(f"/api/v1/search?q=moon&sort=newest&cursor={cursor}")
    assert other.status_code == 422, "the cursor of another order"


def test_saved_searches_are_each_users_own(anna: Browser, vic: Browser, database: Db) -> None:
    put(database, "lamp", "moon", categories=["Lamps"])
    search = save(anna, "Moon lamps", q="moon", category="Lamps", site="", kind="")
    page = anna.get("/search?q=moon&category=Lamps").text
    assert re.search(r'category=Lamps" aria-current="page"><bdi>Moon lamps</bdi>', page)
    assert "Moon lamps" not in vic.get("/search?q=moon").text
    assert "No saved searches" in vic.get("/search/saved").text
    form = {"id": search, "csrf": vic.token("/search?q=moon")}
    for path in ("/search/saved/remove", "/search/saved/feed", "/search/saved/feed/end"):
        assert vic.post(path, form).status_code == 404, path
    save(anna, "Moon lamps", q="sun")
    (row,) = anna.get("/api/v1/search/saved").json()["searches"]
    assert row["query"] == {"q": "sun"}, "the same name replaces it"
    form = {"id": search, "csrf": anna.token("/search/saved")}
    assert anna.post("/search/saved/remove", form).status_code == 303
    assert anna.get("/api/v1/search/saved").json() == {"searches": []}


def test_searches_that_cannot_be_saved_say_why(
    local: Browser, database: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(database, "lamp", "moon")
    monkeypatch.setattr(saved_searches, "MAX_SAVED", 1)
    save(local, "One", q="moon")
    form = {"csrf": local.token("/search/saved")}
    for given, problem in (
        ({"name": "Two", "q": "sun"}, "Remove one first"),
        ({"name": "One", "q": "!!"}, "no letters or digits"),
        ({"name": "One"}, "nothing to save"),
        ({"name": " ", "q": "moon"}, 'role="alert">name: '),
        ({"name": HOSTILE * 9, "q": "moon"}, 'role="alert">name: '),
    ):
        page = local.post("/search/saved", form | given)
        assert (page.status_code, problem in page.text) == (422, True), given


def test_a_saved_search_has_a_feed_of_its_newest_matches(
    anna: Browser, browsers: Browsers, database: Db
) -> None:
    put_post(database, "old", "moon", days=9)
    lamp = put(database, "lamp", f"moon {HOSTILE}", fields={"price": "£9.90"})
    put_copy(database, "copy", lamp, spider="mirror")
    search = save(anna, "Moon", q="moon")
    form = {"id": search, "csrf": anna.token("/search/saved")}
    page = anna.post("/search/saved/feed", form).text
    address = re.search(r"http://[^<]+/search/feed.atom\?token=[\w-]+", page)
    assert address
    stranger = browsers(address="203.0.113.77")
    answer = stranger.get(address[0])
    assert answer.headers["content-type"] == "application/atom+xml; charset=utf-8"
    atom = "{http://www.w3.org/2005/Atom}"
    feed = ElementTree.fromstring(answer.text)
    entries = feed.findall(f"{atom}entry")
    assert [each.findtext(f"{atom}title") for each in entries] == ["Lamp", "Old"]
    text = entries[0].findtext(f"{atom}content") or ""
    assert "price £9.90" in text
    assert "also on mirror" in text
    etag = {"If-None-Match": answer.headers["etag"]}
    assert stranger.get(address[0], headers=etag).status_code == 304
    assert anna.post("/search/saved/feed/end", form).status_code == 303
    assert stranger.get(address[0]).status_code == 404
    made = anna.post("/search/saved/feed", form).text
    address = re.search(r"http://[^<]+/search/feed.atom\?token=[\w-]+", made)
    assert address
    assert stranger.get(address[0]).status_code == 200
    database.users.delete_one({"_id": "anna"})
    assert stranger.get(address[0]).status_code == 404


def test_removing_a_user_removes_the_saved_searches(
    stored: tuple[Db, str], anna: Browser, database: Db
) -> None:
    save(anna, "Moon", q="moon")
    on(stored[1], lambda db: users.remove(db, "anna"))
    assert database.saved_searches.count_documents({}) == 0


def put_version(db: Db, key: str, text: str, days: float, **fields: Any) -> str:
    """Store an earlier version of an item or a post; return its content hash."""
    spider, target = key.split(" ", 1)
    content_hash = f"h{days}"
    db.versions.insert_one(
        {"_id": f"{key} {content_hash}", "spider": spider, "target": target, "size": len(text),
         "content_hash": content_hash, "at": NOW - days * DAY,
         "content": {"title": "Page", "main_text": text, **fields}}
    )  # fmt: skip
    return content_hash


def found_versions(browser: Browser, q: str = "", **more: Any) -> list[dict[str, Any]]:
    """Return the earlier versions that the API finds, in order."""
    found = browser.get(f"/api/v1/search?{urlencode({'q': q, 'kind': 'version'} | more)}")
    assert found.status_code == 200, found.text
    return list(found.json()["found"])


def test_what_a_page_no_longer_says_is_found_among_its_earlier_versions(
    local: Browser, database: Db
) -> None:
    key = put(database, "lamp", "A lamp of oak.", content_hash="now", categories=["Lamps"])
    times = {"first_seen": NOW, "next_visit": NOW}
    database.targets.insert_one(
        {"_id": key, "spider": "shop", "url": key.split()[1], "kind": "item"} | times
    )
    put_version(database, key, "A lamp of walnut.", 30)
    newer = put_version(database, key, "A lamp of walnut wood, now cheaper.", 10)
    put_version(database, key, "A lamp of ash.", 5, price="12.50")
    assert names(local, "walnut") == []
    (hit,) = found_versions(local, "walnut")
    assert (hit["version"], hit["more_versions"], hit["target"]) == (newer, 1, key)
    assert hit["post"] == key
    page = local.get("/search?q=walnut&kind=version").text
    assert "A lamp of <mark>walnut</mark> wood" in page
    assert "as it was on" in page
    assert "and in 1 older version" in page
    link = re.search(r'<h2><a href="([^"]+)"', page)
    assert link is not None
    assert "now cheaper" in local.get(unescape(link[1])).text
    assert "Search earlier versions" in local.get("/search?q=walnut").text


def test_earlier_versions_by_phrase_value_category_site_and_day(
    local: Browser, database: Db
) -> None:
    key = put(database, "lamp", "now", content_hash="now", categories=["Lamps/Desk"])
    put_version(database, key, "A red lamp.", 20, price="12.50")
    other = put(database, "chair", "now", spider="paper", content_hash="now")
    put_version(database, other, "A red chair.", 3)
    assert len(found_versions(local, "red")) == 2
    assert [hit["post"] for hit in found_versions(local, '"red lamp"')] == [key]
    assert [hit["post"] for hit in found_versions(local, "12.50")] == [key]
    assert [hit["post"] for hit in found_versions(local, "red -lamp")] == [other]
    assert [hit["post"] for hit in found_versions(local, "red", category="Lamps")] == [key]
    assert [hit["post"] for hit in found_versions(local, "red", site="paper")] == [other]
    day = (NOW - 20 * DAY).date()
    assert [hit["post"] for hit in found_versions(local, **{"from": day, "to": day})] == [key]


def test_current_contents_and_list_pages_are_no_earlier_versions(
    local: Browser, database: Db
) -> None:
    put_version(database, put(database, "lamp", "A lamp.", content_hash="h1"), "A lamp.", 1)
    put_version(database, "shop https://shop.example/all", "A lamp.", 1)
    assert found_versions(local, "lamp") == []
    assert "Nothing found" in local.get("/search?q=lamp&kind=version").text


def test_each_earlier_version_is_on_one_page(
    local: Browser, database: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_versions, "HASHES", 4)
    monkeypatch.setattr(search_versions, "MAX_HASHES", 8)
    keys = [put(database, f"lamp{n}", "now", content_hash="now") for n in range(30)]
    for n, key in enumerate(keys):
        # Several versions of the same time, and every third one does not match.
        put_version(database, key, "A lamp." if n % 3 else "A chair.", n // 5)
    seen, cursor, pages = [], None, 0
    while pages == 0 or cursor:
        more = {"q": "lamp", "kind": "version", "limit": 7} | ({"cursor": cursor} if cursor else {})
        found = local.get(f"/api/v1/search?{urlencode(more)}").json()
        seen += [hit["post"] for hit in found["found"]]
        cursor, pages = found["next"], pages + 1
    assert sorted(seen) == sorted(key for n, key in enumerate(keys) if n % 3)
    assert pages > 3, "of at most eight versions each"
    answer = local.get("/api/v1/search?kind=version&cursor=x")
    assert answer.status_code == 422
