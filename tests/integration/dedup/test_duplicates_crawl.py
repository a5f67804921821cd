"""Near-duplicates in a crawl: marked and stored, but excluded from search results."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.integration.claiming import edited, text
from tests.integration.feeds.test_feed_crawl import crawl, post, rss, subscribe
from tests.integration.harness import Db, Freshet, Pages

pytestmark = pytest.mark.soak

DUPLICATES = "characters"

FIRST, OTHER = text(1), text(2)
BOILERPLATE = "<nav>Home Shop About Contact Imprint</nav>{}<footer>All rights reserved</footer>"


def article(pages: Pages, name: str, words: str) -> None:
    """Write an item page with a title and a main text inside the site's boilerplate."""
    body = BOILERPLATE.format(f"<article><h1>{name}</h1><p>{words}</p></article>")
    pages.file(f"item-{name}.html", f"<html><body>{body}</body></html>")


def site(
    freshet: Freshet, pages: Pages, *names: str, spider: str = "copies", **keys: object
) -> Path:
    """Write a list of items and the site definition."""
    pages.list("list.html", [f"item-{name}.html" for name in names])
    given: dict[str, object] = {
        "start_urls": [f"{pages.url}/list.html"],
        "item_pages": r"/item-\w+\.html$",
    }
    return freshet.wrapper(spider, **given | keys)


def flags(db: Db) -> dict[str, str | None]:
    """Return the original of each post, and check that a search shows only originals."""
    names = {row["_id"]: row["title"] for row in db.posts.find()}
    found = {row["title"]: names.get(row.get("duplicate_of")) for row in db.posts.find()}
    shown = {row["title"] for row in db.posts.find({"original": True})}
    assert shown == {name for name, of in found.items() if of is None}
    return found


def test_copy_is_stored_and_exported_with_its_flags(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    article(pages, "a", FIRST)
    wrapper = site(freshet, pages, "a")
    freshet.crawl(wrapper)
    article(pages, "b", edited(FIRST, 3))
    article(pages, "c", OTHER)
    site(freshet, pages, "a", "b", "c")
    export = freshet.folder / "items.jsonl"

    freshet.crawl(wrapper, "-O", export, hours=7)

    assert flags(database) == {"a": None, "b": "a", "c": None}
    exported = {row["title"]: row for row in map(json.loads, export.read_text().splitlines())}
    key = f"copies {pages.url}/item-a.html"
    assert (exported["b"]["duplicate_of"], "duplicate_of" in exported["c"]) == (key, False)
    assert exported["b"]["similarity"] == pytest.approx(0.9, abs=0.09)


def test_an_edited_copy_is_compared_again(freshet: Freshet, database: Db, pages: Pages) -> None:
    article(pages, "a", FIRST)
    article(pages, "b", edited(FIRST, 3))
    wrapper = site(freshet, pages, "a", "b")
    freshet.crawl(wrapper)
    assert sorted(filter(None, flags(database).values())) in (["a"], ["b"])

    article(pages, "b", OTHER)
    freshet.crawl(wrapper, "-a", "full=1", hours=1)
    assert flags(database) == {"a": None, "b": None}

    article(pages, "b", edited(FIRST, 1))
    freshet.crawl(wrapper, "-a", "full=1", hours=2)
    assert list(flags(database).values()).count(None) == 1


def test_forgetting_original_promotes_its_copy(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    article(pages, "a", FIRST)
    wrapper = site(freshet, pages, "a")
    freshet.crawl(wrapper)
    article(pages, "b", edited(FIRST, 3))
    site(freshet, pages, "a", "b")
    freshet.crawl(wrapper, hours=7)
    assert flags(database) == {"a": None, "b": "a"}
    assert freshet("forget", f"{pages.url}/item-a.html", "--yes").code == 0
    assert flags(database) == {"b": None}


def test_posts_that_share_only_boilerplate_are_not_duplicates(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    for number in range(12):
        article(pages, f"p{number}", text(number, words=20 + 10 * number))
    wrapper = site(freshet, pages, *(f"p{number}" for number in range(12)))
    freshet.crawl(wrapper)
    assert set(flags(database).values()) == {None}


def test_posts_of_feeds_are_compared_across_spiders(
    freshet: Freshet, stored: tuple[Db, str], pages: Pages
) -> None:
    db, uri = stored
    subscribe(db, uri, f"{pages.url}/one.xml")
    pages.file("one.xml", rss(post("early", FIRST), post("own", OTHER)))
    crawl(freshet)
    subscribe(db, uri, f"{pages.url}/two.xml")
    pages.file("two.xml", rss(post("late", edited(FIRST, 2))))
    crawl(freshet)
    assert flags(db) == {"late": "early", "early": None, "own": None}

    article(pages, "page", edited(FIRST, 4))
    freshet.crawl(site(freshet, pages, "page"))
    assert flags(db)["page"] == "early"

    assert freshet("feeds", "remove", f"{pages.url}/one.xml", "--yes").code == 0
    assert flags(db) == {"late": None, "page": "late"}


@pytest.mark.parametrize("ago_hours", [0.5, 3, 30, 24 * 365])
@pytest.mark.parametrize("is_known", [True, False])
def test_backdated_copy_does_not_replace_the_post_that_was_seen_first(
    freshet: Freshet, stored: tuple[Db, str], pages: Pages, ago_hours: float, *, is_known: bool
) -> None:
    """Whether the feed was visited before makes no difference."""
    db, uri = stored
    subscribe(db, uri, f"{pages.url}/honest.xml")
    pages.file("honest.xml", rss(post("old", OTHER, ago_hours=90)))
    pages.file("copier.xml", rss(post("other", text(3), ago_hours=90)))
    if is_known:
        subscribe(db, uri, f"{pages.url}/copier.xml")
    crawl(freshet, hours=-24)
    pages.file("honest.xml", rss(post("honest", FIRST, ago_hours=0.2), post("old", OTHER)))
    crawl(freshet)
    if not is_known:
        subscribe(db, uri, f"{pages.url}/copier.xml")
    pages.file("copier.xml", rss(post("copy", edited(FIRST, 2), ago_hours=ago_hours)))
    crawl(freshet, "-a", "full=1")
    assert flags(db)["copy"] == "honest"
    assert flags(db)["honest"] is None


def visit(freshet: Freshet, db: Db, url: str, hours: float = 0) -> None:
    """Crawl only one of the feeds."""
    for query, days in (({}, 999), ({"url": url}, -999)):
        due = datetime.now(UTC) + timedelta(days=days)
        db.targets.update_many(query, {"$set": {"next_visit": due}})
    crawl(freshet, hours=hours)


def test_dates_count_unless_a_visit_contradicts_them(
    freshet: Freshet, stored: tuple[Db, str], pages: Pages
) -> None:
    """The planet copies a post and is visited more often than the blog."""
    db, uri = stored
    blog, planet, liar = (f"{pages.url}/{name}.xml" for name in ("blog", "planet", "liar"))
    subscribe(db, uri, blog, planet, liar)
    pages.file("blog.xml", rss(post("a", text(3), ago_hours=90)))
    pages.file("planet.xml", rss(post("b", text(4), ago_hours=90)))
    pages.file("liar.xml", rss(post("c", text(5), ago_hours=90)))
    crawl(freshet, hours=-24)
    # This feed states a date at which it was seen without the post.
    pages.file("liar.xml", rss(post("false", text(6), ago_hours=80), post("c", text(5))))
    visit(freshet, db, liar, hours=-3)
    visit(freshet, db, planet, hours=-2)
    pages.file("planet.xml", rss(post("copy", FIRST, ago_hours=1)))
    visit(freshet, db, planet, hours=-0.5)
    pages.file("liar.xml", rss(post("copy again", edited(FIRST, 3), ago_hours=2.5)))
    visit(freshet, db, liar, hours=-0.2)
    assert flags(db)["copy again"] == "copy"
    pages.file("blog.xml", rss(post("first", edited(FIRST, 2), ago_hours=4)))
    visit(freshet, db, blog)
    assert flags(db)["first"] is None
    assert flags(db)["copy"] == flags(db)["copy again"] == "first"
    assert db.feeds.find_one({"url": liar})["false_dates"] == 1


def test_posts_without_text_are_compared_by_title(
    freshet: Freshet, stored: tuple[Db, str], pages: Pages
) -> None:
    db, uri = stored
    subscribe(db, uri, f"{pages.url}/links.xml")
    titles = ("Rust without allocations", "The history of tea", "Comments considered harmful")
    pages.file("links.xml", rss(*(post(title, "Comments") for title in titles)))
    crawl(freshet)
    assert flags(db) == dict.fromkeys(titles)


def test_short_records_are_duplicates_only_if_equal(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    tea, bread = "A Short History of Tea", "A Short History of Bread"
    names = {"a": tea, "b": bread, "c": tea}
    for name, title in names.items():
        pages.file(f"item-{name}.html", f"<h1>{title}</h1><p>In stock (22 available)</p>")
    fields = {"title": "h1", "stock": "p"}
    freshet.crawl(site(freshet, pages, *names, fields=fields))
    assert database.posts.count_documents({"original": True}) == 2
    assert database.posts.count_documents({"title": bread, "original": True}) == 1


def test_products_with_the_same_price_and_stock_are_not_duplicates(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    """Neither within a site nor across sites, whether all fields are compared or chosen ones."""
    names = "abc"
    for name in names:
        pages.file(
            f"item-{name}.html",
            f"<h1>Kettle {name}</h1><p class=p>49.90 €</p><p class=s>In stock (9 available)</p>"
            "<p class=d>2026-03-01</p><p class=n>12</p>",
        )
    price, number = {"css": ".p", "type": "price"}, {"css": ".n", "type": "number"}
    fields = {"price": price, "stock": ".s", "size": number, "since": {"css": ".d", "type": "date"}}
    for spider, keys in (
        ("one", {"fields": fields}),
        ("two", {"fields": {"price": ".p", "stock": ".s"}}),
        ("three", {"fields": fields | {"title": "h1"}, "duplicates": ["price", "stock"]}),
    ):
        freshet.crawl(site(freshet, pages, *names, spider=spider, **keys))
    assert database.posts.count_documents({"original": True}) == 9
    done = freshet("explain", f"{pages.url}/item-a.html", "--spider", "one", "--json")
    reason = json.loads(done.out)["not_compared"]
    assert reason.startswith("it has too few words to compare, 0 of 5.")


WIDGET = """<div class="card card-body shadow-sm" data-widget="product-description-panel-v2"
  data-tracking="view:item click:add-to-basket scroll:reviews" style="margin:0;padding:0 12px">
  <header class="card-header d-flex justify-content-between align-items-center"></header>{}
  <script>window.dataLayer.push({{event: "item view", currency: "EUR", list: "search results"}})
  </script></div>"""


def test_html_fields_are_compared_and_searched_by_their_text(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    texts = {"a": text(1, words=30), "b": text(2, words=30), "c": text(1, words=30)}
    for name, words in texts.items():
        body = WIDGET.format(f"<p>{words}</p>")
        if name == "c":
            body = f'<div class="other">{words.replace(" ", "</b> <b>", 5)}</div>'
        pages.file(f"item-{name}.html", f"<h1><i>{name}</i></h1>{body}")
    html = {
        "title": {"css": "h1", "type": "html"},
        "body": {"css": "div", "type": "html"},
    }
    freshet.crawl(site(freshet, pages, *texts, fields=html, duplicates=["body"]))
    assert database.posts.count_documents({"original": True}) == 2
    assert database.posts.count_documents({"title": "b", "original": True}) == 1
    post = database.posts.find_one({"title": "b"})
    assert post is not None
    assert post["markup"] == ["title", "body"]
    assert post["fields"]["body"].startswith("<div class=")

    word = texts["b"].split()[0]
    (found,) = json.loads(freshet("search", word, "--spider", "copies", "--json").out)
    assert found["url"].endswith("item-b.html")
    assert "<" not in found["snippet"]
    for unseen in ("tracking", "card", "dataLayer"):
        assert freshet("search", unseen, "--json").out.strip() == "[]"

    assert freshet("duplicates", "rebuild", FRESHET_DUPLICATES=DUPLICATES).code == 0
    assert database.posts.count_documents({"original": True}) == 2


def test_site_definition_sets_compared_fields(freshet: Freshet, database: Db, pages: Pages) -> None:
    for name in ("a", "b"):
        pages.file(f"item-{name}.html", f"<h1>{name}</h1><p>{FIRST}</p><i>{text(ord(name))}</i>")
    fields = {"title": "h1", "body": "p", "note": "i"}
    freshet.crawl(site(freshet, pages, "a", "b", fields=fields, duplicates=["note"]))
    assert set(flags(database).values()) == {None}
    assert database.posts.find_one()["compare"] == ["note"]

    freshet.crawl(site(freshet, pages, "a", "b", fields=fields, duplicates=["body"], spider="x"))
    assert database.posts.count_documents({"spider": "x", "original": True}) == 1

    freshet.crawl(site(freshet, pages, "a", "b", fields=fields, duplicates=False, spider="y"))
    assert database.posts.count_documents({"spider": "y", "original": True}) == 2


def test_crawl_rejects_scheme_other_than_stored_one(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    article(pages, "a", FIRST)
    wrapper = site(freshet, pages, "a")
    freshet.crawl(wrapper)
    words = ("crawl", "site", "-a", f"wrapper={wrapper}")
    result = freshet(*words, hours=7, FRESHET_DUPLICATES="words")
    assert result.code == 1
    (line,) = [line for line in result.err.splitlines() if "] ERROR:" in line]
    assert "characters-3" in line
    assert "words-3" in line
    assert "scrapy duplicates rebuild" in line
    assert freshet(*words, hours=7, FRESHET_DUPLICATES="off").code == 0


def test_workers_of_one_run_find_each_others_copies(
    freshet: Freshet, database: Db, pages: Pages, redis: str
) -> None:
    stories = 8
    names = [f"{story}x{copy}" for copy in range(4) for story in range(stories)]
    for name in names:
        story, _, copy = name.partition("x")
        article(pages, name, edited(text(int(story)), int(copy)))
    wrapper = site(freshet, pages, *names, delay_seconds=0)
    words = ("crawl", "site", "-a", f"wrapper={wrapper}")
    workers = [freshet.start(*words, REDIS_URL=redis) for _ in range(2)]
    for worker in workers:
        _, err = worker.communicate(timeout=60)
        assert worker.returncode == 0, err
    found = flags(database)
    assert found.keys() == set(names)
    originals = {name.partition("x")[0]: name for name, of in found.items() if of is None}
    assert len(originals) == list(found.values()).count(None) == stories
    assert all(of in (None, originals[name.partition("x")[0]]) for name, of in found.items())
    # A run without Redis knows these posts.
    article(pages, "late", edited(text(0), 5))
    site(freshet, pages, *names, "late")
    freshet.crawl(wrapper, hours=7)
    assert flags(database) == found | {"late": originals["0"]}
