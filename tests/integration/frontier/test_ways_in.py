"""Entry points of a site: a sitemap as a start URL, and links on item pages."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.conftest import SITE_ITEMS
from tests.integration.demo import FIELDS, ITEMS, POSTS
from tests.integration.harness import Db, Freshet, Pages, asked, outcomes, target, urls, visits
from tests.site.running import RunningSite
from tests.site.world import START, World

pytestmark = pytest.mark.soak

ENTRY = "<url><loc>{0}</loc></url>"
SITEMAP = '<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{0}</urlset>'
INDEX = '<sitemapindex xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{0}</sitemapindex>'


def chain_wrapper(freshet: Freshet, pages: Pages, **keys: object) -> Path:
    """Write a chain of items: the list links to the first, each item to the next."""
    pages.list("list.html", ["item-a.html"])
    pages.item("item-a.html", "A", ["item-b.html", "/about.html"])
    pages.item("item-b.html", "B", ["item-c.html", "item-a.html"])
    pages.item("item-c.html", "C", ["item-a.html#top", "item-c.html"])
    given: dict[str, object] = {"start_urls": [f"{pages.url}/list.html"], "fields": {"title": "h1"}}
    return freshet.wrapper("chain", item_pages="/item-", **given | keys)


def test_sitemap_adds_all_its_pages(freshet: Freshet, database: Db, site: RunningSite) -> None:
    sitemap = f"{site.url}/sitemap.xml"
    wrapper = freshet.wrapper("map", start_urls=[sitemap], item_pages=[ITEMS, POSTS], fields=FIELDS)
    freshet.crawl(wrapper)
    live = World(items=SITE_ITEMS).paths(START)
    assert urls(database.posts.find()) == {site.url + path for path in live}
    assert asked(site).total() == len(live) + 1
    assert target(database, sitemap)["kind"] == "list"


def test_sitemap_indexes_and_compressed_sitemaps_are_read(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    maps = [f"{pages.url}/one.xml", f"{pages.url}/two.xml.gz"]
    entries = (f"<sitemap><loc>{url}</loc></sitemap>" for url in maps)
    pages.file("sitemap.xml", INDEX.format("".join(entries)))
    pages.file("one.xml", SITEMAP.format(ENTRY.format(f"{pages.url}/item-a.html")))
    compressed = SITEMAP.format(ENTRY.format(f"{pages.url}/item-b.html")).encode()
    (pages.home / "two.xml.gz").write_bytes(gzip.compress(compressed))
    pages.item("item-a.html", "A")
    pages.item("item-b.html", "B")
    wrapper = freshet.wrapper(
        "index",
        start_urls=[f"{pages.url}/sitemap.xml"],
        item_pages="/item-",
        fields={"title": "h1"},
    )
    freshet.crawl(wrapper)
    assert database.posts.distinct("title") == ["A", "B"]
    assert outcomes(database) == {"new": 5}


def test_an_item_that_leaves_the_sitemap_is_unlisted(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    entries = [ENTRY.format(f"{pages.url}/item-{name}.html") for name in "ab"]
    pages.file("sitemap.xml", SITEMAP.format("".join(entries)))
    pages.item("item-a.html", "A")
    pages.item("item-b.html", "B")
    wrapper = freshet.wrapper(
        "map", start_urls=[f"{pages.url}/sitemap.xml"], item_pages="/item-", fields={"title": "h1"}
    )
    freshet.crawl(wrapper)
    pages.file("sitemap.xml", SITEMAP.format(entries[0]))
    freshet.crawl(wrapper, hours=7)
    assert target(database, f"{pages.url}/item-b.html")["unlisted_at"]
    assert target(database, f"{pages.url}/item-a.html").get("unlisted_at") is None


def test_links_on_item_pages_are_not_followed_by_default(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    freshet.crawl(chain_wrapper(freshet, pages))
    assert set(asked(pages)) == {"/list.html", "/item-a.html"}
    assert database.posts.distinct("title") == ["A"]


def test_follow_item_links_finds_items_that_no_list_shows(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    freshet.crawl(chain_wrapper(freshet, pages, follow_item_links=True))
    assert asked(pages) == dict.fromkeys(
        ["/list.html", "/item-a.html", "/item-b.html", "/item-c.html"], 1
    )
    assert database.posts.distinct("title") == ["A", "B", "C"]


def test_new_link_on_unchanged_item_is_found(freshet: Freshet, database: Db, pages: Pages) -> None:
    wrapper = chain_wrapper(freshet, pages, follow_item_links=True)
    freshet.crawl(wrapper)
    pages.item("item-d.html", "D")
    pages.item("item-a.html", "A", ["item-b.html", "item-d.html"])
    freshet.crawl(wrapper, hours=25)
    assert database.posts.distinct("title") == ["A", "B", "C", "D"]
    assert visits(database, target=f"{pages.url}/item-a.html")[-1]["outcome"] == "unchanged"


def test_item_without_remaining_links_is_unlisted(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    wrapper = chain_wrapper(freshet, pages, follow_item_links=True)
    freshet.crawl(wrapper)
    pages.item("item-b.html", "B", ["item-a.html"])
    pages.item("item-c.html", "C")
    freshet.crawl(wrapper, hours=25)
    assert target(database, f"{pages.url}/item-c.html")["unlisted_at"]
    assert target(database, f"{pages.url}/item-b.html").get("unlisted_at") is None


def test_arguments_define_site_without_file(freshet: Freshet, database: Db, pages: Pages) -> None:
    chain_wrapper(freshet, pages)
    args = ("name=words", f"start_urls={pages.url}/list.html", "item_pages=/item-")
    result = freshet("crawl", "site", *(word for arg in args for word in ("-a", arg)))
    assert result.code == 0, result.err
    (post,) = database.posts.find({"spider": "words"})
    assert post["title"] == "A"


def test_two_sites_have_separate_targets_for_one_page(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    freshet.crawl(chain_wrapper(freshet, pages))
    other = chain_wrapper(freshet, pages, follow_item_links=True).read_text(encoding="utf-8")
    path = freshet.folder / "other.toml"
    path.write_text(other.replace('"chain"', '"other"'), encoding="utf-8")
    freshet.crawl(path)
    assert database.posts.count_documents({"url": f"{pages.url}/item-a.html"}) == 2
    assert database.targets.count_documents({"spider": "chain"}) == 2
    assert database.targets.count_documents({"spider": "other"}) == 4
