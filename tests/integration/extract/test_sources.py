"""A page and the feed posts that link to it are one item with several sources."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.claiming import edited, text
from tests.integration.dedup.test_duplicates_crawl import article, site
from tests.integration.feeds.test_feed_crawl import crawl, post, rss, subscribe
from tests.integration.harness import Db, Freshet, Pages, Row
from tests.integration.inside import in_json, run

DUPLICATES = "characters"

pytestmark = pytest.mark.soak
NAMES = ("a", "b", "c")
WORDS = {name: f"{name}word {text(number)}" for number, name in enumerate(NAMES)}
FULL = WORDS
EXCERPT = {name: " ".join(words.split()[:12]) for name, words in WORDS.items()}
Texts = dict[str, str]


def shown(pages: Pages, name: str) -> str:
    return f"{pages.url}/item-{name}.html"


def feed(pages: Pages, texts: Texts, name: str = "feed.xml") -> str:
    """Write a feed with posts for these items and return its URL."""
    items = (post(item, words, shown(pages, item)) for item, words in texts.items())
    pages.file(name, rss(*items))
    return f"{pages.url}/{name}"


def blog(freshet: Freshet, pages: Pages) -> Path:
    """Write the pages of a blog and return its site definition."""
    for name, words in WORDS.items():
        article(pages, name, words)
    return site(freshet, pages, *NAMES, spider="blog")


def hits(freshet: Freshet, *args: object) -> list[Row]:
    result = run(freshet, "search", *args, "--json")
    rows: list[Row] = [] if result.code else list[Any](in_json(freshet, "search", *args))
    return rows


def sources(row: Row) -> list[str]:
    return sorted(source["spider"] for source in row["sources"])


def items(db: Db) -> dict[str, list[str]]:
    """Return the spiders of each item's sources; check that no post is a duplicate."""
    assert db.posts.count_documents({"duplicate_of": {"$exists": True}}) == 0
    assert db.posts.count_documents({"original": {"$ne": True}}) == 0
    spiders: dict[str, list[str]] = {}
    for row in db.posts.find({}).sort("spider"):
        spiders.setdefault(row["item"].rpartition("/")[2], []).append(row["spider"])
    return spiders


def flags(db: Db) -> dict[str, tuple[Any, ...]]:
    """Return the flags of each post; a cluster is a list of its members, since its id changes."""
    rows = list(db.posts.find())
    members: dict[Any, list[str]] = {}
    for row in rows:
        members.setdefault(row.get("cluster"), []).append(row["_id"])
    return {
        row["_id"]: (
            row["original"],
            row.get("duplicate_of"),
            row.get("item"),
            sorted(members[row["cluster"]]) if "cluster" in row else None,
        )
        for row in rows
    }


Crawls = Callable[[str], None]


@pytest.mark.parametrize("first", ["page", "feed"])
def test_page_and_post_of_its_feed_are_one_item(
    first: str, freshet: Freshet, stored: tuple[Db, str], pages: Pages
) -> None:
    """The post of `a` has the page's text, that of `b` an excerpt, and that of `c` another text."""
    db, uri = stored
    texts = {"a": FULL["a"], "b": EXCERPT["b"], "c": f"cword {text(102, 40)}"}
    wrapper, url = blog(freshet, pages), feed(pages, texts)
    subscribe(db, uri, url)
    order = ("page", "feed") if first == "page" else ("feed", "page")
    for step in order:
        crawl(freshet) if step == "feed" else freshet.crawl(wrapper)

    assert items(db) == {f"item-{name}.html": ["blog", "feeds"] for name in NAMES}
    for name in NAMES:
        (hit,) = hits(freshet, f"{name}word")
        assert (sources(hit), hit["copies"]) == (["blog", "feeds"], 0)
        assert hit["id"] == f"blog {shown(pages, name)}"
    for spider in ("blog", "feeds"):
        assert (
            len(hits(freshet, *(f"{name}word" for name in NAMES), "--any", "--spider", spider)) == 3
        )
    assert (
        in_json(freshet, "duplicates")["clusters"],
        in_json(freshet, "duplicates")["copies"],
    ) == (0, 0)

    for name in NAMES:
        page = in_json(freshet, "history", shown(pages, name))
        assert (page["spider"], len(page["visits"])) == ("blog", 1)
        assert [source["feed"] for source in page["sources"]] == [url]
        https = shown(pages, name).replace("http:", "https:")
        assert in_json(freshet, "history", https)["visits"] == page["visits"]
        of_feed = in_json(freshet, "history", shown(pages, name), "--source", url)
        assert of_feed["post"]["guid"] == name
    wrong = run(freshet, "history", shown(pages, "a"), "--source", "https://x.example/feed")
    assert (wrong.code, url in wrong.complaint) == (1, True)

    before = flags(db)
    assert run(freshet, "duplicates", "rebuild").code == 0
    assert flags(db) == before


def test_search_shows_source_with_most_text_and_names_all(
    freshet: Freshet, stored: tuple[Db, str], pages: Pages
) -> None:
    db, uri = stored
    article(pages, "a", "aword in short")
    freshet.crawl(site(freshet, pages, "a", spider="blog"))
    url = feed(pages, {"a": FULL["a"]})
    subscribe(db, uri, url)
    crawl(freshet)
    (hit,) = hits(freshet, "aword")
    assert (hit["spider"], sources(hit)) == ("feeds", ["blog", "feeds"])
    assert hit["date"] == hit["published"] is not None
    printed = run(freshet, "search", "aword").out
    assert f"sources: blog, feeds ({url})" in printed
    (hit,) = hits(freshet, "short")
    assert hit["spider"] == "blog"


def test_copies_of_an_item_are_copies_of_all_its_sources(
    freshet: Freshet, stored: tuple[Db, str], pages: Pages
) -> None:
    db, uri = stored
    wrapper, url = blog(freshet, pages), feed(pages, FULL)
    subscribe(db, uri, url)
    crawl(freshet)
    freshet.crawl(wrapper)
    article(pages, "copy", edited(FULL["a"], 3))
    freshet.crawl(site(freshet, pages, "copy", spider="copies"))

    (copied,) = db.posts.find({"duplicate_of": {"$exists": True}})
    assert copied["spider"] == "copies"
    (hit,) = hits(freshet, "aword")
    assert (sources(hit), hit["copies"]) == (["blog", "feeds"], 1)
    (hit,) = hits(freshet, "aword", "--spider", "copies", "--all")
    assert [post["spider"] for post in hit["hidden"]] == ["copies"]
    listed = in_json(freshet, "duplicates")
    assert (listed["clusters"], listed["copies"]) == (1, 1)
    (cluster,) = listed["shown"]
    details = in_json(freshet, "duplicates", "--cluster", cluster["cluster"])
    assert [post["spider"] for post in details["members"]] == ["copies"]
    assert len(details["sources"]) == 1
    both = in_json(freshet, "duplicates", "explain", shown(pages, "a"), copied["url"])
    assert (both["duplicates"], both["a"]["id"]) == (True, f"blog {shown(pages, 'a')}")
    same = in_json(freshet, "duplicates", "explain", both["a"]["id"], f"feeds {url} a")
    assert (same["duplicates"], same["same_item"]) == (False, True)

    before = flags(db)
    assert run(freshet, "duplicates", "rebuild").code == 0
    assert flags(db) == before
    # Posts compared with a removed source are compared with the remaining source.
    assert freshet("feeds", "remove", url, "--yes").code == 0
    assert {row["spider"] for row in db.posts.find({"original": True})} == {"blog"}
    assert db.posts.find_one({"spider": "copies"})["duplicate_of"] == f"blog {shown(pages, 'a')}"


def test_posts_of_several_feeds_with_one_link_are_one_item(
    freshet: Freshet, stored: tuple[Db, str], pages: Pages
) -> None:
    db, uri = stored
    feeds = [feed(pages, FULL), feed(pages, {"a": EXCERPT["a"]}, "planet.xml")]
    tagged = f"{shown(pages, 'a')}?utm_source=rss".replace("http://", "https://")
    pages.file("tagged.xml", rss(post("t", FULL["a"], tagged)))
    subscribe(db, uri, *feeds, f"{pages.url}/tagged.xml")
    crawl(freshet)
    (hit,) = hits(freshet, "aword")
    assert (len(hit["sources"]), hit["copies"]) == (3, 0)
    assert items(db)["item-a.html"] == ["feeds"] * 3


def test_posts_of_one_feed_with_one_link_are_separate_items(
    freshet: Freshet, stored: tuple[Db, str], pages: Pages
) -> None:
    db, uri = stored
    article(pages, "changes", f"same {text(50)}")
    freshet.crawl(site(freshet, pages, "changes", spider="blog"))
    link = shown(pages, "changes")
    subscribe(db, uri, f"{pages.url}/all.xml", f"{pages.url}/one.xml")
    pages.file(
        "all.xml", rss(*(post(f"v{n}", f"same {text(n)}", f"{link}#v{n}") for n in range(3)))
    )
    known_post = post("known", text(30))

    def only(name: str, words: str) -> None:
        """Write a feed with one post for the link and a known post that identifies the feed."""
        # Posts of one second that link to one page are the same post with a new id.
        ago_hours = 10.0 - int(name[1:])
        pages.file("one.xml", rss(known_post, post(name, f"same {words}", link, ago_hours)))

    only("w0", text(10))
    crawl(freshet)
    # A feed's only post with this link counts as the page's post until another one appears.
    of_link = {"item": {"$regex": "item-changes"}}
    assert sorted(row["spider"] for row in db.posts.find(of_link)) == ["blog", "feeds"]
    for n in range(1, 4):
        only(f"w{n}", text(10 + n))
        crawl(freshet, hours=24 * n)
        assert [row["spider"] for row in db.posts.find(of_link)] == ["blog"]
    assert len(hits(freshet, "same")) == 8
    only("w3", f"{text(13)} edited")
    crawl(freshet, hours=24 * 5)
    assert [row["spider"] for row in db.posts.find(of_link)] == ["blog"]
    # Only a few of the posts that share a link are kept as evidence.
    witnesses = {"url": link, "feed": f"{pages.url}/one.xml", "link": {"$exists": True}}
    assert db.posts.count_documents(witnesses) == 2


def test_post_leaves_item_if_its_feed_repeats_the_link(
    freshet: Freshet, stored: tuple[Db, str], pages: Pages
) -> None:
    db, uri = stored
    article(pages, "a", FULL["a"])
    freshet.crawl(site(freshet, pages, "a", spider="blog"))
    subscribe(db, uri, feed(pages, {"a": FULL["a"]}))
    crawl(freshet)
    assert items(db) == {"item-a.html": ["blog", "feeds"]}
    again = (post(name, FULL[words], shown(pages, "a")) for name, words in (("n", "b"), ("a", "a")))
    pages.file("feed.xml", rss(*again))
    crawl(freshet, hours=24)
    (copied,) = db.posts.find({"duplicate_of": {"$exists": True}})
    assert {copied["_id"], copied["duplicate_of"]} == {
        f"blog {shown(pages, 'a')}", f"feeds {pages.url}/feed.xml a",
    }  # fmt: skip
    before = flags(db)
    assert run(freshet, "duplicates", "rebuild").code == 0
    assert flags(db) == before


def test_links_to_lists_feeds_and_home_pages_are_not_items(
    freshet: Freshet, stored: tuple[Db, str], pages: Pages
) -> None:
    db, uri = stored
    freshet.crawl(blog(freshet, pages))
    links = (
        f"{pages.url}/list.html",
        f"{pages.url}/other.xml",
        f"{pages.url}/",
        f"{pages.url}/home",
    )
    for n, link in enumerate(links):
        home = f"<link>{pages.url}/home</link>"
        pages.file(f"feed{n}.xml", rss(post(f"p{n}", text(n), link), channel=home))
    subscribe(
        db, uri, *(f"{pages.url}/feed{n}.xml" for n in range(len(links))), f"{pages.url}/other.xml"
    )
    pages.file("other.xml", rss())
    crawl(freshet)
    assert db.posts.count_documents({"spider": "feeds"}) == len(links)
    assert db.posts.count_documents({"spider": "feeds", "item": {"$exists": True}}) == 0
    explanation = in_json(freshet, "duplicates", "explain", links[2], links[3])
    assert (explanation["a"]["url"], explanation["b"]["url"]) == (links[2], links[3])


@pytest.mark.parametrize("first", ["page", "feed"])
def test_redirecting_links_belong_to_items_of_their_destinations(
    first: str, freshet: Freshet, stored: tuple[Db, str], pages: Pages
) -> None:
    """The list links to some pages with and without the slash that the server adds."""
    db, uri = stored
    listed = {
        "one": ["/item/one"],
        "oneslash": ["/item/oneslash"],
        "both": ["/item/both/", "/item/both"],
        "bothslash": ["/item/bothslash/", "/item/bothslash"],
    }
    pages.list("list.html", [link for links in listed.values() for link in links])
    posts = []
    for number, name in enumerate(listed):
        words = f"{name}word {text(number)}"
        pages.file(f"item/{name}/index.html", f"<h1>{name}word</h1><p>{words}</p>")
        slash = "/" if name.endswith("slash") else ""
        posts.append(post(name, words, f"{pages.url}/item/{name}{slash}"))
    pages.file("feed.xml", rss(*posts))
    wrapper = freshet.wrapper(
        "blog", start_urls=[f"{pages.url}/list.html"], item_pages=r"/item/\w+/?$",
        fields={"title": "h1"},
    )  # fmt: skip
    subscribe(db, uri, f"{pages.url}/feed.xml")
    for step in ("page", "feed") if first == "page" else ("feed", "page"):
        crawl(freshet) if step == "feed" else freshet.crawl(wrapper)
    for name in listed:
        (hit,) = hits(freshet, f"{name}word")
        assert sources(hit) == ["blog", "feeds"], name
    assert len({row.get("item") for row in db.signatures.find()}) == len(listed)


@pytest.mark.parametrize("first", ["page", "feed"])
def test_followed_post_and_page_of_another_spider_are_one_item(
    first: str, freshet: Freshet, stored: tuple[Db, str], pages: Pages
) -> None:
    db, uri = stored
    wrapper, url = blog(freshet, pages), feed(pages, EXCERPT)
    subscribe(db, uri, url)
    for step in ("page", "feed") if first == "page" else ("feed", "page"):
        crawl(freshet, "-a", "follow=1") if step == "feed" else freshet.crawl(wrapper)
    assert db.posts.count_documents({"page": {"$exists": True}}) == 3
    assert items(db) == {f"item-{name}.html": ["blog", "feeds"] for name in NAMES}
    (hit,) = hits(freshet, "aword")
    assert hit["copies"] == 0
    assert in_json(freshet, "history", shown(pages, "a"))["spider"] == "blog"


def test_links_that_redirect_to_one_page_are_separate_items(
    freshet: Freshet, stored: tuple[Db, str], pages: Pages
) -> None:
    """Keep posts separate if their links all redirect to one consent page."""
    db, uri = stored
    pages.file("consent/index.html", f"<p>{text(70)}</p>")
    for name in NAMES:
        (pages.home / name).symlink_to(pages.home / "consent")
    links = {name: f"{pages.url}/{name}" for name in NAMES}
    pages.file("feed.xml", rss(*(post(name, FULL[name], link) for name, link in links.items())))
    subscribe(db, uri, f"{pages.url}/feed.xml")
    crawl(freshet, "-a", "follow=1")
    assert len(db.posts.distinct("item")) == 3


def test_source_remains_after_other_source_is_deleted(
    freshet: Freshet, stored: tuple[Db, str], pages: Pages
) -> None:
    db, uri = stored
    wrapper, url = blog(freshet, pages), feed(pages, FULL)
    subscribe(db, uri, url)
    freshet.crawl(wrapper)
    crawl(freshet)
    assert run(freshet, "forget", "blog", "--yes").code == 0
    assert items(db) == {f"item-{name}.html": ["feeds"] for name in NAMES}
    (hit,) = hits(freshet, "aword")
    assert sources(hit) == ["feeds"]
    assert in_json(freshet, "history", shown(pages, "a"))["post"]["feed"] == url

    freshet.crawl(wrapper, hours=1)
    assert items(db)["item-a.html"] == ["blog", "feeds"]
    assert run(freshet, "feeds", "remove", url, "--yes").code == 0
    assert items(db) == {f"item-{name}.html": ["blog"] for name in NAMES}
    assert sources(hits(freshet, "aword")[0]) == ["blog"]


def test_forget_url_deletes_all_its_sources(
    freshet: Freshet, stored: tuple[Db, str], pages: Pages
) -> None:
    db, uri = stored
    freshet.crawl(blog(freshet, pages))
    tagged = f"{shown(pages, 'a')}?utm_source=rss"
    pages.file("feed.xml", rss(post("a", FULL["a"], tagged), post("b", FULL["b"])))
    subscribe(db, uri, f"{pages.url}/feed.xml")
    crawl(freshet)
    assert in_json(freshet, "forget", shown(pages, "a"), "--yes")["deleted"]["posts"] == 2
    assert hits(freshet, "aword") == []
    assert len(hits(freshet, "bword")) == 1
    assert db.versions.count_documents({"target": {"$regex": " a$|item-a"}}) == 0
    assert db.signatures.count_documents({"post": {"$regex": " a$|item-a"}}) == 0


def test_sources_are_one_item_with_duplicates_off(
    freshet: Freshet, stored: tuple[Db, str], pages: Pages
) -> None:
    db, uri = stored
    off = {"FRESHET_DUPLICATES": "off"}
    subscribe(db, uri, feed(pages, FULL))
    freshet.crawl(blog(freshet, pages), **off)
    crawl(freshet, **off)
    (hit,) = hits(freshet, "aword")
    assert sources(hit) == ["blog", "feeds"]
