"""`scrapy duplicates` and `scrapy duplicates explain`: clusters, and comparisons of two posts."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from crawler.dedup.posts import id_of
from tests.integration.claiming import HOUR, NOW, Posts, candidate, edited, text
from tests.integration.harness import Db, Freshet, Result, Row
from tests.integration.inside import in_json, run

DUPLICATES = "characters"

LONG, OTHER = text(1), text(2)
DAY = timedelta(days=1)


def duplicates(freshet: Freshet, *args: object, **env: object) -> Result:
    return run(freshet, "duplicates", *args, **env)


class Shop:
    """Posts of a spider, as crawls store them."""

    def __init__(self, db: Db, uri: str) -> None:
        self.db, self.posts = db, Posts(uri)

    def put(self, *posts: tuple[str, str, datetime], spider: str = "shop") -> None:
        """Store posts in one batch: name, text, and time of publication."""
        keys = {name: f"{spider} https://{spider}.example/{name}" for name, *_ in posts}
        self.posts.claim(*(candidate(keys[name], words, at) for name, words, at in posts))
        for name, words, at in posts:
            stored = {
                "spider": spider, "url": keys[name].partition(" ")[2], "title": name.title(),
                "text": words, "fields": {}, "first_seen": at,
            }  # fmt: skip
            self.db.posts.update_one({"_id": keys[name]}, {"$set": stored})


@pytest.fixture
def shop(stored: tuple[Db, str]) -> Shop:
    return Shop(*stored)


@pytest.fixture
def clusters(shop: Shop) -> Shop:
    """Store a post with three copies by two spiders, a post with one, and two without copies."""
    shop.put(("first", LONG, NOW), ("second", edited(LONG, 3), NOW + DAY), ("alone", text(3), NOW))
    shop.put(("third", edited(LONG, 5), NOW + 2 * DAY), ("fourth", LONG, NOW + HOUR), spider="blog")
    shop.put(("one", OTHER, NOW - DAY), ("two", edited(OTHER, 2), NOW), ("only", text(4), NOW))
    return shop


def test_largest_clusters_are_listed_first(freshet: Freshet, clusters: Shop) -> None:
    found = in_json(freshet, "duplicates")
    assert {name: found[name] for name in ("posts", "clusters", "copies", "rebuilding")} == {
        "posts": 8, "clusters": 2, "copies": 4, "rebuilding": False,
    }  # fmt: skip
    assert [(row["copies"], row["original"]["title"]) for row in found["shown"]] == [
        (3, "First"), (1, "One"),
    ]  # fmt: skip
    assert found["shown"][0]["original"] == {
        "id": "shop https://shop.example/first", "spider": "shop", "title": "First",
        "url": "https://shop.example/first", "created": NOW.isoformat(),
    }  # fmt: skip


def test_list_as_text(freshet: Freshet, clusters: Shop) -> None:
    first, other = in_json(freshet, "duplicates", "list")["shown"]
    assert duplicates(freshet).out.splitlines() == [
        "First",
        f"{NOW:%Y-%m-%d}  +3 copies  https://shop.example/first",
        f"cluster {first['cluster']}",
        "",
        "One",
        f"{NOW - DAY:%Y-%m-%d}  +1 copy  https://shop.example/one",
        f"cluster {other['cluster']}",
        "",
        "8 posts compared: 2 clusters with 4 copies",
    ]
    cut = duplicates(freshet, "--limit", "1").out.splitlines()
    assert cut[-2:] == [
        "8 posts compared: 2 clusters with 4 copies",
        "1 largest shown. --limit N shows more, --json shows all",
    ]
    assert len(cut) == 6
    assert len(in_json(freshet, "duplicates", "--limit", "1")["shown"]) == 1


def test_clusters_are_filtered_by_spider(freshet: Freshet, clusters: Shop) -> None:
    found = in_json(freshet, "duplicates", "--spider", "blog")
    assert (found["posts"], found["clusters"], found["copies"]) == (2, 1, 3)
    assert found["shown"][0]["original"]["title"] == "First"
    unknown = duplicates(freshet, "--spider", "blo")
    assert (unknown.code, unknown.complaint) == (
        1, "scrapy duplicates: no posts of 'blo'. Spiders with posts: blog, shop"
    )  # fmt: skip


def test_an_empty_database_has_no_clusters(freshet: Freshet, database: Db) -> None:
    done = duplicates(freshet)
    assert (done.code, done.out) == (0, "0 posts compared: 0 clusters with 0 copies\n")


def test_cluster_is_shown_with_copies_and_history(freshet: Freshet, clusters: Shop) -> None:
    clusters.put(("early", edited(LONG, 1), NOW - 5 * DAY))
    (row,) = in_json(freshet, "duplicates", "--limit", "1")["shown"]
    found = in_json(freshet, "duplicates", "--cluster", row["cluster"])
    assert found["original"]["title"] == "Early"
    assert [member["title"] for member in found["members"]] == [
        "First",
        "Fourth",
        "Second",
        "Third",
    ]
    assert all(0.7 < member["similarity"] < 1 for member in found["members"])
    (change,) = found["changes"]
    assert (change["was"][-5:], change["post"][-5:]) == ("first", "early")
    lines = duplicates(freshet, "--cluster", row["cluster"]).out.splitlines()
    assert lines[1] == f"{NOW - 5 * DAY:%Y-%m-%d}  +4 copies  https://shop.example/early"
    assert f"{NOW:%Y-%m-%d %H:%M}  First" in lines[5]
    assert lines[6].strip() == "https://shop.example/first"
    assert lines[-1].endswith(
        "an earlier one came late: shop https://shop.example/early instead of "
        "shop https://shop.example/first"
    )
    cut = duplicates(freshet, "--cluster", row["cluster"], "--limit", "2").out
    assert "2 oldest shown. --limit N shows more, --json shows all" in cut


@pytest.mark.parametrize("given", ["nope", "69a5b1f0c2d4e8f1a2b3c4d5"])
def test_unknown_cluster_is_an_error(freshet: Freshet, database: Db, given: str) -> None:
    done = duplicates(freshet, "--cluster", given)
    assert (done.code, done.complaint) == (
        1, f"scrapy duplicates: cluster not found: {given!r}. scrapy duplicates lists the clusters"
    )  # fmt: skip


def test_a_cluster_without_copies_is_not_shown(freshet: Freshet, clusters: Shop) -> None:
    clusters.posts.remove("shop https://shop.example/two")
    found = in_json(freshet, "duplicates")
    assert (found["posts"], len(found["shown"])) == (7, 1)
    assert clusters.db.clusters.count_documents({}) == 2


def test_control_sequences_in_posts_are_not_printed(freshet: Freshet, clusters: Shop) -> None:
    nasty = "\x1b]0;title\x07\x1b[31mRed\u202e\r\n"
    clusters.db.posts.update_many({}, {"$set": {"title": nasty, "text": nasty * 9, "url": nasty}})
    cluster = in_json(freshet, "duplicates")["shown"][0]["cluster"]
    keys = ("shop https://shop.example/first", "shop https://shop.example/second")
    for words in ((), ("--cluster", cluster), ("explain", *keys)):
        shown = duplicates(freshet, *words).out
        assert "Red" in shown
        assert {x for x in shown if not x.isprintable()} == {"\n"}


def explained(freshet: Freshet, a: str, b: str, *args: object) -> Row:
    urls = (f"https://shop.example/{name}" for name in (a, b))
    return in_json(freshet, "duplicates", "explain", *urls, *args)


def test_a_copy_is_explained(freshet: Freshet, shop: Shop) -> None:
    shop.put(("one", LONG, NOW))
    shop.put(("two", edited(LONG, 3), NOW + HOUR))
    # A crawl compares the title together with the text.
    run(freshet, "duplicates", "rebuild")
    found = explained(freshet, "one", "two")
    assert found["duplicates"]
    assert found["verdict"].startswith("duplicates: B is a copy of A since ")
    assert 0.7 < found["similarity"] < 1
    assert found["exact"]["5 characters"] == pytest.approx(found["similarity"], abs=0.1)
    # Both compare the same 128 values; a stored byte matches by chance with probability 1/256.
    assert found["datasketch"]["5 characters"] == pytest.approx(found["similarity"], abs=0.03)
    assert (found["scheme"], found["threshold"], found["of_bands"]) == ("characters-3", 0.7, 16)
    assert 0 < found["shared_bands"] < 16
    assert found["a"] | {"compared_at": ""} == {
        "id": "shop https://shop.example/one", "spider": "shop",
        "url": "https://shop.example/one", "title": "One",
        "created": NOW.isoformat(), "characters": len(LONG) + 4, "words": 121,
            "boilerplate": 0.0,
        "shingles": ["5 characters"], "bandings": ["16 x 7"], "compared_at": "",
        "changed_since": False, "cluster": found["b"]["cluster"],
        "item": None, "original": "shop https://shop.example/one",
    }  # fmt: skip
    assert {part["kind"] for part in found["diff"]} == {"changed"}


def test_explanation_as_text(freshet: Freshet, shop: Shop) -> None:
    left = "It rains. Nobody goes out today, and nothing else is known of it. 天气很好。"
    shop.put(("one", left, NOW), ("two", left.replace("Nobody goes", "Few go"), NOW + HOUR))
    run(freshet, "duplicates", "rebuild")
    urls = ("https://shop.example/one", "https://shop.example/two")
    shown = duplicates(freshet, "explain", *urls, COLUMNS=70).out
    assert [line.rstrip() for line in shown.splitlines()] == [
        "A  One",
        "   https://shop.example/one",
        "   2026-03-02 09:00; 75 characters, 15 words; shingles of 5",
        "   characters; bands 25 x 5",
        "B  Two",
        "   https://shop.example/two",
        "   2026-03-02 10:00; 70 characters, 15 words; shingles of 5",
        "   characters; bands 25 x 5",
        "",
        "shared bands  3 of 25",
        "similarity    0.663 estimated by characters-3, threshold 0.7",
        "exact         0.608 (5 characters)",
        "datasketch    0.664 (5 characters)",
        "not duplicates: similarity 0.66 is below 0.70",
        "",
        "One                               | Two",
        "It rains.                           It rains.",
        "Nobody goes out today, and        | Few go out today, and nothing else",
        "nothing else is known of it.        is known of it.",
        "天气很好。                          天气很好。",
    ]


def test_posts_are_found_by_id_alias_and_page(freshet: Freshet, clusters: Shop) -> None:
    alias = {
        "_id": "shop https://shop.example/first", "spider": "shop", "kind": "item",
        "url": "https://shop.example/first", "aliases": ["https://shop.example/old"],
        "first_seen": NOW, "next_visit": NOW,
    }  # fmt: skip
    page = alias | {
        "_id": "shop https://shop.example/page", "url": "https://shop.example/page",
        "aliases": [], "post": "shop https://shop.example/second",
    }  # fmt: skip
    clusters.db.targets.insert_many([alias, page])
    found = explained(freshet, "old?utm_source=x", "page")
    assert (found["a"]["title"], found["b"]["title"]) == ("First", "Second")
    by_id: Any = in_json(
        freshet, "duplicates", "explain", "shop https://shop.example/first",
        "blog https://blog.example/third",
    )  # fmt: skip
    assert by_id["duplicates"]


def test_ambiguous_or_unknown_posts_are_errors(freshet: Freshet, clusters: Shop) -> None:
    url = "https://shop.example/first"
    clusters.db.posts.update_one({"title": "Third"}, {"$set": {"url": url}})
    several = duplicates(freshet, "explain", url, "https://shop.example/second")
    assert several.complaint == (
        f"scrapy duplicates: several posts have the URL {url}. Give the id of one: "
        f"'blog https://blog.example/third', 'shop {url}'"
    )
    one = duplicates(freshet, "explain", url, "https://shop.example/second", "--spider", "shop")
    assert one.code == 0
    clusters.db.posts.update_many({"url": url}, {"$set": {"item": "shop.example/first"}})
    clusters.db.posts.update_one({"title": "Third"}, {"$set": {"feed": "https://blog.example/"}})
    found = explained(freshet, "first", "second")
    assert found["a"]["id"] == f"shop {url}", "the page is preferred to the posts of feeds"
    same = duplicates(freshet, "explain", f"shop {url}", url, "--spider", "shop")
    assert same.complaint == f"scrapy duplicates: both are the same post: shop {url}"
    none = duplicates(freshet, "explain", url, "https://shop.example/none", "--spider", "shop")
    assert (none.code, none.complaint) == (
        1, "scrapy duplicates: post not found: https://shop.example/none. "
        "Did you mean https://shop.example/one? scrapy search WORDS finds posts",
    )  # fmt: skip


def test_explain_detects_changed_and_uncompared_posts(freshet: Freshet, shop: Shop) -> None:
    shop.put(("one", LONG, NOW), ("two", OTHER, NOW), ("three", text(3), NOW))
    run(freshet, "duplicates", "rebuild")
    assert explained(freshet, "one", "two")["verdict"].startswith("not duplicates: similarity 0.0")
    shop.db.posts.update_many({}, {"$set": {"text": LONG}})
    found = explained(freshet, "one", "two")
    assert found["verdict"].startswith("similar, but not marked as duplicates: the text of B has")
    assert (found["a"]["changed_since"], found["b"]["changed_since"]) == (False, True)
    shop.db.signatures.delete_one({"_id": id_of("shop https://shop.example/two")})
    assert "B has not been compared yet" in explained(freshet, "one", "two")["verdict"]
    shop.db.posts.update_one({"title": "Two"}, {"$set": {"text": None, "title": None}})
    assert explained(freshet, "one", "two")["verdict"].endswith("B has no text to compare")


def test_site_definition_chooses_compared_fields(freshet: Freshet, shop: Shop) -> None:
    shop.put(("one", LONG, NOW), ("two", OTHER, NOW))
    fields = {"plot": text(9), "price": 3}
    shop.db.posts.update_many({}, {"$set": {"compare": ["plot"], "fields": fields}})
    run(freshet, "duplicates", "rebuild")
    found = explained(freshet, "one", "two")
    assert (found["similarity"], found["duplicates"]) == (1.0, True)
    assert found["a"]["characters"] == len(fields["plot"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("lst",), "unknown action 'lst'. Did you mean list?"),
        (("--clustr", "x"), "unknown option --clustr. Did you mean --cluster?"),
        (("--limit", "0"), "argument --limit: '0' is not a positive integer such as 100"),
        (("explain", "https://a.example/"), "the following arguments are required: URL_B"),
        (("check",), "the following arguments are required: FILE|-"),
        (
            ("check", "x", "--threshold", "2"),
            "argument --threshold: '2' is not a number from 0.3 to 1",
        ),
        (("rebuild", "now"), "unrecognized arguments: now"),
    ],
)
def test_wrong_usage_is_reported(freshet: Freshet, words: tuple[str, ...], message: str) -> None:
    done = duplicates(freshet, *words)
    assert done.code == 2
    assert message in done.out + done.err


def test_help_lists_all_actions(freshet: Freshet) -> None:
    shown = duplicates(freshet, "--help").out
    assert "scrapy duplicates [options] [list|explain|check|rebuild] [ARG…]" in shown
    assert "scrapy duplicates [list] [--cluster ID] [--spider NAME] [--limit N]" in shown
    for action in (
        "explain [--spider NAME] URL_A",
        "check posts.jsonl",
        "rebuild -s",
    ):
        assert f"scrapy duplicates {action}" in shown
