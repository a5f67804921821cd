"""`scrapy search`: matching, display of results, and hidden duplicates."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId

from crawler.storage import posts
from tests.integration.harness import Db, Freshet, Pages, Result, Row
from tests.integration.inside import in_json, run

NOW = datetime.now(UTC).replace(microsecond=0)
DAY = timedelta(days=1)


@pytest.fixture
def prepared(freshet: Freshet, database: Db) -> Db:
    """Return an empty database with its collections and the search index."""
    assert run(freshet, "targets").code == 0
    return database


def put(db: Db, name: str, text: str | None = None, **more: Any) -> str:
    """Store a post as a crawl does; return its `_id`."""
    url = f"https://x.example/{name}"
    post: Row = {
        "_id": f"shop {url}", "spider": "shop", "url": url, "title": None, "text": text,
        "fields": {}, "categories": [], "first_seen": NOW, "content_hash": "h", "original": True,
    } | more  # fmt: skip
    if words := posts.words_of(post):
        post["words"] = words
    db.posts.insert_one(post)
    return str(post["_id"])


def copy(db: Db, name: str, of: str, similarity: float, **more: Any) -> str:
    """Store a duplicate of a post in its cluster; return its `_id`."""
    original = db.posts.find_one({"_id": of})
    assert original is not None
    cluster = original.get("cluster") or ObjectId()
    db.posts.update_one({"_id": of}, {"$set": {"cluster": cluster}})
    flags = {"original": False, "duplicate_of": of, "similarity": similarity, "cluster": cluster}
    return put(db, name, original["text"], title=original["title"], **flags | more)


def names(freshet: Freshet, *args: object) -> list[str]:
    """Return the names of the posts found, in order."""
    found = run(freshet, "search", *args, "--json")
    assert found.code == (0 if json.loads(found.out) else 1), found.err
    return [row["url"].rpartition("/")[2] for row in json.loads(found.out)]


def test_all_words_must_match_as_words(freshet: Freshet, prepared: Db) -> None:
    put(prepared, "dog", "The dog chases a category of mice.")
    put(prepared, "cat", "The Cat sees no dog.")
    put(prepared, "hot-dog", "A hot dog, once.")
    assert set(names(freshet, "dog")) == {"dog", "cat", "hot-dog"}
    assert names(freshet, "dog", "cat") == ["cat"]
    assert names(freshet, "hot dog") == names(freshet, '"hot dog"') == ["hot-dog"]
    assert names(freshet, "dog hot") == []
    assert names(freshet, '"a hot dog" once') == ["hot-dog"]
    assert set(names(freshet, "cat", "mice", "--any")) == {"cat", "dog"}
    assert set(names(freshet, "cat", "hot dog", "no such", "--any")) == {"cat", "hot-dog"}
    assert names(freshet, "dog", "--without", "cat", "--without", "hot dog") == ["dog"]


def test_since_without_words_lists_newest_posts(freshet: Freshet, prepared: Db) -> None:
    put(prepared, "old", "moon", first_seen=NOW - 9 * DAY)
    put(prepared, "seen", "moon", first_seen=NOW - DAY)
    put(prepared, "said", "sun", published=NOW - 2 * DAY)
    put(prepared, "new", "sun", spider="news")
    copy(prepared, "copy", put(prepared, "first", "stars", published=NOW - 3 * DAY), 0.9)
    assert names(freshet, "--since", "7d") == ["new", "seen", "said", "first"]
    assert names(freshet, "--since", "7d", "--spider", "shop") == ["seen", "said", "first"]
    assert names(freshet, "--since", "7d", "--without", "moon", "--limit", "2") == ["new", "said"]
    done = run(freshet, "search", "--since", "20h")
    assert done.out.splitlines()[-3:-1] == [f"{NOW:%Y-%m-%d}  https://x.example/new", "  sun"]
    nothing = run(freshet, "search", "--since", "2100-01-01")
    assert (nothing.code, nothing.complaint) == (
        1, "scrapy search: no posts since then. Try an earlier --since, or run scrapy crawl "
        "NAME",
    )  # fmt: skip
    assert "WORD is missing. --since 7d lists the newest posts" in run(freshet, "search").err


def test_newest_posts_use_an_index(freshet: Freshet, prepared: Db) -> None:
    for k in range(200):
        when = {"published": NOW - k * DAY} if k % 2 else {"first_seen": NOW - k * DAY}
        put(prepared, f"p{k}", "moon", **when)
    prepared.command("profile", 2)
    found = names(freshet, "--since", "10d")
    prepared.command("profile", 0)
    assert found == [f"p{k}" for k in range(11)][: len(found)]
    assert len(found) >= 10
    query = {"command.aggregate": "posts", "command.pipeline.0.$match.original": True}
    (done,) = prepared.system.profile.find(query)
    assert done["docsExamined"] <= 20


def test_results_are_sorted_by_score_then_date(freshet: Freshet, prepared: Db) -> None:
    put(prepared, "old", "moon and more", first_seen=NOW - DAY)
    put(prepared, "late", "moon and more", published=NOW - 9 * DAY)
    put(prepared, "new", "moon and more")
    put(prepared, "title", "more", title="Moon", first_seen=NOW - 99 * DAY)
    put(prepared, "often", "moon moon moon more", first_seen=NOW - 99 * DAY)
    assert names(freshet, "moon") == ["title", "often", "new", "old", "late"]


# Text of a post, matching queries, and queries without a match.
FOUND = {
    "umlauts": ("Grüße aus MÜNCHEN, Weißstraße", ["munchen", "Weissstrasse"], ["munche"]),
    "Chinese": ("我们在一个虚拟世界里。", ["虚拟世界", "拟世", "一个 虚拟"], ["世拟", "界"]),
    "Japanese": ("新しいバス停とｺﾝﾋﾟｭｰﾀ", ["バス停", "コンピュータ", "新しい"], ["ハス停", "停"]),
    "Korean": ("도서관에서 책을 읽는다（서울）", ["도서관", "책을", "서울"], ["관서"]),
    "decomposed Korean": ("\u1109\u1165\u110b\u116e\u11af에서", ["서울", "울에"], []),
    "Thai": ("ภาษาไทยสวย", ["ไทย", "ภาษา"], ["ทไ"]),
    "Russian": ("Москва слезам не верит", ["МОСКВА", "слезам не"], ["моск"]),
    "Greek": ("Ο Οδυσσέας", ["οδυσσεας", "ΟΔΥΣΣΕΑΣ"], []),
    "mixed": ("我在GitHub上写Python3代码", ["github", "Python3 代码", "GitHub上"], ["hub"]),
    "in one row": ("great😀 for €100, Foo™", ["great", "100", "foo"], ["reat"]),
    "wide": ("ＦＲＥＳＨ ﬁsh", ["fresh", "fish"], []),
    "apostrophes": ("it don’t matter", ["don't", "don’t matter"], ["dont"]),
    "names": ("use snake_case in C++", ["snake", "snake_case", "c++"], []),
}  # fmt: skip


@pytest.mark.parametrize("case", FOUND)
def test_words_are_found_in_any_language(freshet: Freshet, prepared: Db, case: str) -> None:
    text, found, missed = FOUND[case]
    put(prepared, "text", text)
    put(prepared, "title", title=text)
    put(prepared, "field", fields={"deep": [{"er": text}]})
    put(prepared, "other", "Something else, 别的东西, 다른 것")
    for word in found:
        assert set(names(freshet, word)) == {"text", "title", "field"}, word
    for word in missed:
        assert names(freshet, word) == [], word


def test_language_field_does_not_affect_the_index(freshet: Freshet, prepared: Db) -> None:
    put(prepared, "der", "die Straßen des Ortes", language="german", fields={"language": "none"})
    put(prepared, "unknown", "die Straßen", language="klingon")
    assert set(names(freshet, "die")) == {"der", "unknown"}
    assert names(freshet, "Strasse") == [], "words were stemmed"


def test_fields_are_searched_except_links(freshet: Freshet, prepared: Db) -> None:
    fields = {"maker": "Acme", "tags": ["garden", "盆栽"], "page": "https://acme.example/roses"}
    put(prepared, "rose", title="Rose", fields=fields | {"price": {"currency": "EUR"}})
    put(
        prepared,
        "page",
        "Short",
        fields={"page": "of roses"},
        page={"fields": {"main": "A garden"}},
    )
    assert names(freshet, "rose", "acme", "盆栽") == ["rose"]
    assert set(names(freshet, "garden")) == {"rose", "page"}
    assert names(freshet, "roses") == ["page"]
    assert names(freshet, "https") == names(freshet, "example") == []


@pytest.fixture
def cluster(prepared: Db) -> Db:
    """Return a post with three copies and a post without copies."""
    first = put(prepared, "first", "The moon landed.", title="Moon", published=NOW - 2 * DAY)
    copy(prepared, "second", first, 0.912, published=NOW - DAY)
    copy(prepared, "third", first, 0.95)
    copy(prepared, "fourth", first, 0.95, published=NOW - 3 * DAY)
    put(prepared, "alone", "Nobody copies the moon.")
    return prepared


def test_copies_are_hidden_behind_their_original(freshet: Freshet, cluster: Db) -> None:
    found: Any = in_json(freshet, "search", "moon")
    assert [(row["url"][-5:], row["copies"]) for row in found] == [("first", 3), ("alone", 0)]
    lines = run(freshet, "search", "moon").out.splitlines()
    assert lines == [
        "Moon",
        f"{NOW - 2 * DAY:%Y-%m-%d}  +3 copies  https://x.example/first",
        "  The moon landed.",
        "",
        "(no title)",
        f"{NOW:%Y-%m-%d}  https://x.example/alone",
        "  Nobody copies the moon.",
        "",
    ]


def test_filters_on_a_copy_find_its_original(freshet: Freshet, prepared: Db) -> None:
    of = put(prepared, "first", "moon rises", categories=["News"])
    copy(prepared, "copied", of, 0.9, spider="blog", categories=["Tea/Green"])
    put(prepared, "other", "moon sets", spider="blog")
    put(prepared, "third", "moon stays", categories=["Coffee"])
    assert sorted(names(freshet, "moon", "--spider", "blog")) == ["first", "other"]
    assert names(freshet, "moon", "--category", "Tea") == ["first"]
    # One post must match both conditions.
    found = run(freshet, "search", "moon", "--category", "Tea", "--spider", "shop")
    assert found.code == 1


def test_sources_of_an_item_are_one_hit_with_earliest_date(freshet: Freshet, prepared: Db) -> None:
    page = {"item": "x.example/page", "first_seen": NOW - DAY}
    put(prepared, "page", "moon moon and some more of it", **page)
    put(
        prepared, "post", "moon", spider="feeds", feed="https://x.example/feed", guid="1",
        published=NOW - 9 * DAY, item="x.example/page",
    )  # fmt: skip
    put(prepared, "late", "moon", first_seen=NOW - 2 * DAY)
    (first, second) = list[Any](in_json(freshet, "search", "moon"))
    found = {row["url"].rpartition("/")[2]: row for row in (first, second)}
    assert set(found) == {"page", "late"}
    assert found["page"]["date"] == (NOW - 9 * DAY).isoformat()
    assert names(freshet, "moon", "--since", "3d") == ["late"]
    assert names(freshet, "moon", "--spider", "feeds") == ["post"]
    assert names(freshet, "some", "--spider", "feeds") == ["page"]


def test_all_option_shows_copies(freshet: Freshet, cluster: Db) -> None:
    (row,) = list[Any](in_json(freshet, "search", "landed", "--all"))
    assert [(post["url"][-6:], post["similarity"]) for post in row["hidden"]] == [
        ("fourth", 0.95), ("/third", 0.95), ("second", 0.912),
    ]  # fmt: skip
    assert {post["id"].partition(" ")[0] for post in row["hidden"]} == {"shop"}
    assert {post["duplicate_of"] for post in row["hidden"]} == {row["id"]}
    lines = run(freshet, "search", "landed", "--all").out.splitlines()
    assert lines[3:6] == [
        f"  copy  95% alike  {NOW - 3 * DAY:%Y-%m-%d}  https://x.example/fourth",
        f"  copy  95% alike  {NOW:%Y-%m-%d}  https://x.example/third",
        f"  copy  91% alike  {NOW - DAY:%Y-%m-%d}  https://x.example/second",
    ]


def test_search_follows_a_change_of_the_original(freshet: Freshet, cluster: Db) -> None:
    found = cluster.posts.find_one({"url": "https://x.example/second"})
    assert found is not None
    cluster.posts.update_one(
        {"url": "https://x.example/first"},
        {"$set": {"original": False, "duplicate_of": found["_id"], "similarity": 0.912}},
    )
    cluster.posts.update_one(
        {"_id": found["_id"]},
        {"$set": {"original": True}, "$unset": {"duplicate_of": "", "similarity": ""}},
    )
    (row,) = list[Any](in_json(freshet, "search", "landed"))
    assert (row["url"][-6:], row["copies"]) == ("second", 1)
    cluster.posts.update_one({"_id": found["_id"]}, {"$set": {"original": False}})
    assert names(freshet, "landed") == []


def test_edit_without_indexed_words_unsets_them() -> None:
    edit: Row = {"$set": {"text": "虚拟世"}}
    assert posts.with_words(edit, edit["$set"]) == {
        "$set": {"text": "虚拟世", "words": "虚拟 拟世"}
    }
    edit = {"$set": {"title": "Plain", "fields": None}, "$unset": {"cluster": ""}}
    assert posts.with_words(edit, edit["$set"]) == {
        "$set": {"title": "Plain", "fields": None}, "$unset": {"cluster": "", "words": ""}
    }  # fmt: skip


def test_search_finds_current_content_after_crawls(
    freshet: Freshet, pages: Pages, prepared: Db
) -> None:
    path = freshet.wrapper(
        "pages", start_urls=[f"{pages.url}/list.html"], item_pages=r"/item\.html$",
        fields={"title": "h1", "world": "p"},
    )  # fmt: skip
    pages.list("list.html", ["item.html"])
    pages.item("item.html", "虚拟世界", ["Straße"])
    freshet.crawl(path)
    assert names(freshet, "拟世", "strasse") == ["item.html"]
    pages.item("item.html", "A world", ["street"])
    freshet.crawl(path, "-a", "full=1", hours=48)
    assert names(freshet, "world", "street") == ["item.html"]
    assert names(freshet, "拟世") == []
    (post,) = prepared.posts.find()
    assert (post["original"], post["words"]) == (True, "street")


def test_followed_post_is_found_by_page_and_feed_text(
    freshet: Freshet, pages: Pages, prepared: Db
) -> None:
    pages.item("/a.html", "The whole story of 虚拟世界, as it was told in the house by the river.")
    entry = (
        "<item><title>深度学习</title><guid>1</guid><link>a.html</link><category>Weiß</category>"
    )
    pages.file(
        "/feed.xml",
        f'<rss version="2.0"><channel><title>F</title><link>{pages.url}/</link><item>{entry}'
        "<description>Only a summary</description></item></channel></rss>",
    )
    assert run(freshet, "feeds", "add", f"{pages.url}/feed.xml", "--no-fetch").code == 0
    done = freshet("crawl", "feeds", "-a", "follow=1", FRESHET_HOST_REQUESTS=0)
    assert done.code == 0, done.err
    assert names(freshet, "深度学习", "拟世", "weiss", "whole story") == ["a.html"]
    assert names(freshet, "summary") == []


def test_json_output_has_all_fields_of_a_hit(freshet: Freshet, prepared: Db) -> None:
    put(
        prepared, "lamp", "It is bright.", title="A lamp", categories=["home/light"],
        fields={"title": "A lamp", "maker": "Lux"}, published=NOW - DAY,
    )  # fmt: skip
    put(prepared, "linkless", "so bright", url=None, guid="1", feed="https://x.example/feed")
    other, lamp = list[Any](in_json(freshet, "search", "bright"))
    assert 0 < lamp.pop("score") < other["score"]
    assert lamp == {
        "id": "shop https://x.example/lamp", "spider": "shop", "title": "A lamp",
        "url": "https://x.example/lamp", "categories": ["home/light"], "feed": None,
        "date": (NOW - DAY).isoformat(), "published": (NOW - DAY).isoformat(),
        "first_seen": NOW.isoformat(), "copies": 0, "cluster": None,
        "snippet": "It is bright.", "marks": [[6, 12]], "item": None,
        "sources": [
            {"id": "shop https://x.example/lamp", "spider": "shop",
             "url": "https://x.example/lamp", "feed": None}
        ],
    }  # fmt: skip
    assert (other["url"], other["feed"]) == (None, "https://x.example/feed")
    assert other["date"] == other["first_seen"]
    assert "https://x.example/feed\n  so bright" in run(freshet, "search", "bright").out


def test_matching_passage_is_shown(freshet: Freshet, prepared: Db) -> None:
    put(prepared, "long", "one two three four " * 200 + "then the Moon " + "rose and sank " * 200)
    put(prepared, "field", "No word of it.", fields={"maker": "Moon and Sons"})
    out = run(freshet, "search", "moon").out
    passages = [line for line in out.splitlines() if "oon" in line]
    assert len(passages) == 2
    assert all(len(line) <= 80 for line in out.splitlines())
    assert "  Moon and Sons" in passages
    narrow = run(freshet, "search", "moon", COLUMNS=40).out
    assert max(map(len, narrow.splitlines())) <= 40


def test_results_are_filtered_by_spider_category_and_date(freshet: Freshet, prepared: Db) -> None:
    put(prepared, "day", "moon", published=NOW - DAY, categories=["sky/night"])
    put(prepared, "week", "moon", published=NOW - 7 * DAY, categories=["sky"])
    put(prepared, "seen", "moon", published=None, first_seen=NOW - 3 * DAY, categories=["skyline"])
    put(prepared, "blog", "moon", spider="blog", published=NOW - 30 * DAY)
    assert names(freshet, "moon", "--spider", "blog") == ["blog"]
    assert names(freshet, "moon", "--category", "sky") == ["day", "week"]
    assert names(freshet, "moon", "--category", "s.y") == []
    assert names(freshet, "moon", "--since", "2d") == ["day"]
    assert names(freshet, "moon", "--since", f"{NOW - 4 * DAY:%Y-%m-%d}") == ["day", "seen"]
    assert names(freshet, "moon", "--since", (NOW - 3 * DAY).isoformat()) == ["day", "seen"]
    assert names(freshet, "moon", "--since", "90000w") == ["day", "seen", "week", "blog"]


def test_limit_option_sets_the_number_of_posts(freshet: Freshet, prepared: Db) -> None:
    for i in range(30):
        put(prepared, f"p{i:02}", "moon", first_seen=NOW + timedelta(minutes=i))
    first = run(freshet, "search", "moon", "--limit", "2").out.splitlines()
    assert first[1].endswith("/p29")
    assert first[-1] == "first 2 posts shown. --limit N shows more"
    assert len(names(freshet, "moon")) == 20
    assert len(names(freshet, "moon", "--limit", 1000)) == 30
    assert "more" not in run(freshet, "search", "moon", "--limit", 30).out


def test_no_results_exits_with_1_like_grep(freshet: Freshet, prepared: Db) -> None:
    put(prepared, "post", "The moon. 虚拟世界")

    def complaint(*args: object) -> str:
        found = run(freshet, "search", *args)
        assert (found.code, found.out) == (1, "")
        assert run(freshet, "search", *args, "--json").out == "[]\n"
        return found.complaint

    assert complaint("sun") == "scrapy search: no posts found"
    assert complaint("moon", "sun") == (
        "scrapy search: no posts found with all of the words. --any finds posts with at least one "
        "of them"
    )
    assert complaint("!") == "scrapy search: the query has no letters or digits to search for"
    assert complaint("世").endswith(
        "A single character matches only as a separate word. Add the next character"
    )
    assert complaint("sun", "--spider", "shop") == "scrapy search: no posts found"


def test_spider_without_posts_is_an_error(freshet: Freshet, prepared: Db) -> None:
    assert run(freshet, "search", "moon", "--spider", "x").complaint == (
        "scrapy search: no posts of 'x'. Spiders with posts: none. Run scrapy crawl first"
    )
    put(prepared, "post", "The moon")
    found = run(freshet, "search", "moon", "--spider", "\udcff", "--json")
    assert (found.code, found.complaint) == (
        1, "scrapy search: no posts of '\ufffd'. Spiders with posts: shop"
    )  # fmt: skip


def test_missing_index_error_states_the_fix(freshet: Freshet, prepared: Db) -> None:
    prepared.posts.drop_index("search")
    found = run(freshet, "search", "moon")
    assert (found.code, found.complaint) == (
        1,
        "scrapy search: posts have no search index. Run db.meta.deleteOne({_id: 'schema'}) in "
        "mongosh; the next command creates the index",
    )


HOSTILE = [
    '"', '""', '"moon', 'moon"', '" -moon', "moon\0", "\0", "moon\udcff", "$where", '{"$gt": ""}',
    "moon' || '1'=='1", ".*", "(", "[", "\\", "\\x00", "moon*", "mo[ou]n", "\u0301", "😀", "\u202e",
    "moon " * 2000, "moon" * 2500, "虚拟" * 5000, "虚" * 10_000, '"moon" ' * 1500, " ".join(
        f"w{i}" for i in range(3000)
    ),
]  # fmt: skip


@pytest.mark.parametrize("option", [(), ("--any",), ("moon", "--without")])
def test_hostile_queries_match_only_words(
    freshet: Freshet, prepared: Db, option: tuple[str, ...]
) -> None:
    put(prepared, "moon", "the moon")
    put(prepared, "sun", "the sun", title="secret")
    for given in HOSTILE:
        found = run(freshet, "search", *option, given)
        assert found.code in (0, 1), given[:20]
        assert len(found.err.splitlines()) == found.code, given[:20]
        assert "secret" not in found.out, given[:20]


def test_control_characters_of_posts_are_not_printed(freshet: Freshet, prepared: Db) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J moon \u202eback\r\n"
    original = put(prepared, "evil", evil, title=evil, url="https://x.example/\x1b[31m")
    copy(prepared, "copy", original, 1.0, url="https://x.example/\x9b31m")
    found = run(freshet, "search", "moon", "--all")
    assert found.code == 0
    assert [x for x in found.out if not x.isprintable() and x != "\n"] == []
    assert found.out.splitlines()[0] == "]0;owned [2J moon back"


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        ((), "WORD is missing. --since 7d lists"),
        (("--any",), "WORD is missing. --since 7d lists"),
        (("moon", "-xyz"), "unknown option -xyz. --without WORD leaves out posts with a word"),
        (
            ("moon", "--limit", "0"),
            "argument --limit: '0' is not a positive integer such as 100",
        ),
        (
            ("moon", "--since", "soon"),
            "argument --since: 'soon' is not a time such as 2026-01-31",
        ),
        (
            ("moon", "--since", "0001-01-01T00:00+01:00"),
            "argument --since: '0001-01-01T00:00+01:00'",
        ),
        (
            ("moon", "--category", "/"),
            "argument --category: '/' is not a category",
        ),
    ],
)
def test_invalid_usage_exits_with_2(
    freshet: Freshet, args: tuple[str, ...], complaint: str
) -> None:
    done: Result = run(freshet, "search", *args)
    assert done.code == 2
    assert complaint in done.err.splitlines()[-1]


def test_help_has_an_example(freshet: Freshet) -> None:
    text = run(freshet, "search", "--help").out
    assert 'Example: scrapy search "virtual world" game --since 30d' in text


def test_a_text_without_words_is_not_shown_as_a_passage(freshet: Freshet, prepared: Db) -> None:
    put(prepared, "jug", title="Amber jug", fields={"price": {"amount": 5, "currency": "£"}})
    shown = run(freshet, "search", "jug").out
    assert "Amber jug" in shown
    assert "£" not in shown
