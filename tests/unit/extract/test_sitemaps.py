"""Sitemaps as list pages: entries, indexes, compression, and common errors."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime
from pathlib import Path
from time import process_time

import pytest

from crawler.errors import BadResponse
from crawler.extract.links import listed_links
from crawler.extract.sitemaps import listing_of
from crawler.items import Kind, Link, LinkCounts
from tests.unit.pages import SITE, wrapper

LIMIT = 1_000_000
MAX_URL_LENGTH = 200
NAMESPACE = 'xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"'


def urlset(*entries: str) -> bytes:
    """Return a sitemap with these entries."""
    urls = "".join(f"<url>{entry}</url>" for entry in entries)
    return f'<?xml version="1.0" encoding="UTF-8"?><urlset {NAMESPACE}>{urls}</urlset>'.encode()


def index(*locations: str) -> bytes:
    """Return a sitemap index of these sitemaps."""
    maps = "".join(f"<sitemap><loc>{loc}</loc></sitemap>" for loc in locations)
    return f"<sitemapindex {NAMESPACE}>{maps}</sitemapindex>".encode()


def links(body: bytes) -> tuple[Link, ...]:
    """Return the wanted links in a sitemap."""
    sitemap = listing_of(body, LIMIT)
    assert sitemap is not None
    return listed_links(sitemap, f"{SITE}sitemap.xml", wrapper(), MAX_URL_LENGTH, LinkCounts())


def urls(body: bytes) -> list[str]:
    """Return the wanted URLs in a sitemap."""
    return [link.url for link in links(body)]


ONE = urlset("<loc>https://shop.example/item/1</loc>")


def test_selected_entries_become_links() -> None:
    body = urlset(
        "<loc>https://shop.example/item/1</loc>",
        "<loc>\n https://shop.example/category/tea/ </loc>",
        "<loc>https://shop.example/about</loc>",
        "<loc>https://other.example/item/2</loc>",
        "<loc>/item/3</loc>",
        "<loc>https://shop.example/item/4?utm_source=map&amp;a=1</loc>",
        "<loc>https://shop.example/item/1</loc>",
    )
    assert links(body) == (
        Link("https://shop.example/item/1", Kind.ITEM),
        Link("https://shop.example/category/tea/", Kind.LIST),
        Link("https://shop.example/item/3", Kind.ITEM),
        Link("https://shop.example/item/4?a=1", Kind.ITEM),
    )


@pytest.mark.parametrize(
    ("lastmod", "expected"),
    [
        ("2024-01-02", datetime(2024, 1, 2, tzinfo=UTC)),
        (" 2024-01-02T03:04:05Z\n", datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2024-01-02T03:04+02:00", datetime(2024, 1, 2, 1, 4, tzinfo=UTC)),
        ("2024-01-02T03:04:05", datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2024-01-02T03:04:05.5Z", datetime(2024, 1, 2, 3, 4, 5, 500_000, tzinfo=UTC)),
        ("yesterday", None),
        ("", None),
        ("0001-01-01T00:00:00+14:00", None),
        ("9999-12-31T23:59:59-12:00", None),
    ],
)
def test_lastmod_is_a_time_in_utc_or_none(lastmod: str, expected: datetime | None) -> None:
    body = urlset(f"<loc>https://shop.example/item/1</loc><lastmod>{lastmod}</lastmod>")
    assert [link.lastmod for link in links(body)] == [expected]


@pytest.mark.parametrize(
    "entry",
    [
        "<lastmod>2024-01-02</lastmod>",
        "<loc></loc>",
        "<loc>http://[::1/item/1</loc>",
        "<loc>https://shop.example:99999/item/1</loc>",
        f"<loc>https://shop.example/item/{'1' * MAX_URL_LENGTH}</loc>",
        "<loc>mailto:item/@shop.example</loc>",
    ],
    ids=["no loc", "empty loc", "invalid host", "port out of range", "too long", "mailto"],
)
def test_invalid_entries_are_skipped(entry: str) -> None:
    body = urlset(entry, "<loc>https://shop.example/item/2</loc>")
    assert urls(body) == ["https://shop.example/item/2"]


def test_entries_are_counted_by_class() -> None:
    counts = LinkCounts()
    expected = ("https://shop.example/item/1", "https://shop.example/about", "https://b.example/")
    sitemap = listing_of(urlset(*(f"<loc>{url}</loc>" for url in expected)), LIMIT)
    assert sitemap is not None
    listed_links(sitemap, f"{SITE}sitemap.xml", wrapper(), MAX_URL_LENGTH, counts)
    assert counts.counts == {
        "pages with links": 1, "links": 2, "item links": 1, "unmatched links": 1,
        "foreign links": 1,
    }  # fmt: skip


def test_sitemaps_in_an_index_become_list_pages() -> None:
    body = index("https://shop.example/items.xml.gz", "/more.xml")
    assert links(body) == (
        Link("https://shop.example/items.xml.gz", Kind.LIST),
        Link("https://shop.example/more.xml", Kind.LIST),
    )


@pytest.mark.parametrize(
    "location",
    [
        "https://shop.example:99999/items.xml",
        "http://[::1/items.xml",
        "https://other.example/items.xml",
        f"https://shop.example/{'a' * MAX_URL_LENGTH}.xml",
    ],
    ids=["port out of range", "invalid host", "another site", "too long"],
)
def test_invalid_sitemap_urls_in_an_index_are_skipped(location: str) -> None:
    assert urls(index(location, "/good.xml")) == ["https://shop.example/good.xml"]


@pytest.mark.parametrize(
    "loc",
    [
        "https://shop.example/item/?a=1&b=2", "https://shop.example/item/?a=1&amp;b=2",
        "https://shop.example/item/?a=1&#38;b=2", "<![CDATA[https://shop.example/item/?a=1&b=2]]>",
        "https://shop.example/item/?a=1&b=2<!-- & -->",
    ],
)  # fmt: skip
def test_raw_and_escaped_ampersands_are_the_same(loc: str) -> None:
    assert urls(urlset(f"<loc>{loc}</loc>")) == ["https://shop.example/item/?a=1&b=2"]
    assert urls(urlset("<loc>https://shop.example/item/?a=1&copy;=2</loc>")) == [
        "https://shop.example/item/?a=1&copy%3B=2"
    ]


def test_text_sitemap_has_one_url_per_line() -> None:
    lines = "\ufeffhttps://shop.example/item/1\r\n\n# more\nhttps://shop.example/category/tea/\n"
    expected = ["https://shop.example/item/1", "https://shop.example/category/tea/"]
    assert urls(lines.encode()) == expected
    assert urls(gzip.compress(lines.encode())) == expected


@pytest.mark.parametrize(
    "text", ["https://shop.example/item/1 is new", "See\nhttps://shop.example/item/1", "http", "\n"]
)
def test_other_text_is_not_a_sitemap(text: str) -> None:
    assert listing_of(text.encode(), LIMIT) is None


RSS = (
    '<?xml version="1.0"?><rss version="2.0"><channel><link>https://shop.example/item/0</link>'
    "<item><title>A & B</title><link>https://shop.example/item/1?a=1&b=2</link></item>"
    '<item><guid isPermaLink="true">https://shop.example/item/2</guid></item></channel></rss>'
)
ATOM = (
    '<feed xmlns="http://www.w3.org/2005/Atom"><link href="https://shop.example/item/0"/>'
    '<entry><link rel="edit" href="/x"/><link href="/item/1"/><updated>2024-01-02T03:04:05Z'
    "</updated></entry></feed>"
)


def test_entries_of_feeds_become_links() -> None:
    assert urls(RSS.encode()) == [
        "https://shop.example/item/1?a=1&b=2", "https://shop.example/item/2"
    ]  # fmt: skip
    (link,) = links(ATOM.encode())
    assert (link.url, link.lastmod) == (
        "https://shop.example/item/1", datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)
    )  # fmt: skip


def test_gzipped_sitemap_is_decompressed() -> None:
    assert urls(gzip.compress(ONE)) == ["https://shop.example/item/1"]


def test_all_gzip_members_are_read() -> None:
    body = gzip.compress(ONE[:60]) + gzip.compress(ONE[60:])
    assert urls(body) == ["https://shop.example/item/1"]


def test_gzip_bomb_is_rejected() -> None:
    entry = "<loc>https://shop.example/item/{}</loc>"
    bomb = gzip.compress(urlset(*(entry.format(n) for n in range(20_000))), 9)
    with pytest.raises(BadResponse, match="more than 10000 bytes"):
        listing_of(bomb, 10_000)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"<html><body>no map</body></html>", b"\x1f\x8b broken", b"\x1f\x8b",
        gzip.compress(b"something else"), b'{"urlset": 1}',
    ],
    ids=["empty", "HTML page", "broken gzip", "gzip magic only", "gzip of other data", "JSON"],
)  # fmt: skip
def test_other_documents_are_not_sitemaps(body: bytes) -> None:
    assert listing_of(body, LIMIT) is None


def test_page_with_urlset_in_a_comment_is_not_a_sitemap() -> None:
    assert listing_of(b"<!-- <urlset> --><html><a href='/item/1'>x</a></html>", LIMIT) is None


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (ONE[:-9], ["https://shop.example/item/1"]),
        (ONE.replace(b"</url></urlset>", b"<extra>&nbsp;</url></urlset>"),
         ["https://shop.example/item/1"]),
        (b"\xef\xbb\xbf" + ONE, ["https://shop.example/item/1"]),
        (b"\n" + ONE, ["https://shop.example/item/1"]),
        (ONE.replace(NAMESPACE.encode(), b""), ["https://shop.example/item/1"]),
        (b"<urlset>" + b"<a>" * 50_000, []),
        (b"<urlset/>", []),
    ],
    ids=["truncated", "unknown entity", "byte order mark", "blank line", "no namespace", "deep",
         "empty"],
)  # fmt: skip
def test_broken_xml_is_parsed_as_far_as_possible(body: bytes, expected: list[str]) -> None:
    assert urls(body) == expected


def test_external_entities_are_not_resolved(tmp_path: Path) -> None:
    secret = tmp_path / "file"
    secret.write_text("secret", encoding="utf-8")
    body = (
        f'<!DOCTYPE urlset [<!ENTITY e SYSTEM "{secret.as_uri()}">]>'
        "<urlset><url><loc>https://shop.example/item/&e;</loc></url></urlset>"
    )
    sitemap = listing_of(body.encode(), LIMIT)
    links = listed_links(sitemap, SITE, wrapper(), MAX_URL_LENGTH, LinkCounts()) if sitemap else ()
    assert not any("secret" in link.url for link in links)


@pytest.mark.parametrize(
    "compressed",
    [gzip.compress(ONE)[:-8], gzip.compress(ONE) + b"\r\n", gzip.compress(ONE) + b"\0" * 512],
    ids=["truncated", "trailing newline", "zero-padded"],
)
def test_damaged_gzip_is_read_as_far_as_possible(compressed: bytes) -> None:
    assert urls(compressed) == ["https://shop.example/item/1"]


@pytest.mark.parametrize(
    "before", ["<!--a-->", "<?a?>", "<!-- ", "<!DOCTYPE a>", "<!DOCTYPE a [", " "]
)
def test_prolog_is_scanned_quickly(before: str) -> None:
    started = process_time()
    assert listing_of((before * 32 + "<html>").encode(), LIMIT) is None
    assert process_time() - started < 1


def test_comments_and_instructions_before_the_root_are_accepted() -> None:
    head = b'<?xml-stylesheet href="/s.xsl"?>\n<!-- by a plugin -->\n<!-- and another -->\n'
    xml, _, rest = ONE.partition(b"?>")
    assert urls(xml + b"?>" + head + rest) == ["https://shop.example/item/1"]
