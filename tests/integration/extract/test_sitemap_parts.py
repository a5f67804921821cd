"""The parts of a sitemap index may be text, feeds and compressed; others are errors."""

from __future__ import annotations

from tests.integration.harness import Db, Freshet, Pages, target, visits


def test_parts_of_an_index_in_all_formats_are_read(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    parts = ["a.xml", "b.txt", "c.rss", "d.txt", "e.xml"]
    locations = "".join(f"<sitemap><loc>{pages.url}/{part}</loc></sitemap>" for part in parts)
    pages.file("index.xml", f'<?xml version="1.0"?><sitemapindex>{locations}</sitemapindex>')
    pages.file("a.xml", f"<urlset><url><loc>{pages.url}/item/a</loc></url></urlset>")
    pages.file("b.txt", f"{pages.url}/item/b\n{pages.url}/item/c\n")
    entry = f"<item><link>{pages.url}/item/d</link></item>"
    pages.file("c.rss", f"<rss version='2.0'><channel>{entry}</channel></rss>")
    pages.file("d.txt", "No sitemap here")
    pages.file("e.xml", '<?xml version="1.0"?><shop><item id="1"/></shop>')
    for name in "abcd":
        pages.item(f"item/{name}", name)
    file = freshet.wrapper("shop", start_urls=[f"{pages.url}/index.xml"], item_pages="/item/")
    freshet.crawl(file)
    items = {row["url"].rpartition("/")[2] for row in database.targets.find({"kind": "item"})}
    assert items == set("abcd")
    reasons = {
        row["target"].rpartition("/")[2]: row["reason"] for row in visits(database, outcome="error")
    }
    assert reasons == {
        "d.txt": "plain text instead of a page with links, or of one URL per line",
        "e.xml": "XML that is neither a sitemap nor a feed",
    }
    assert target(database, f"{pages.url}/b.txt")["kind"] == "list"
