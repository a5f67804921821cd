"""Sitemaps as list pages: entries, indexes, compression, and what is broken in the wild."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

import pytest

from crawler.errors import Misbehaves
from crawler.extract.links import sitemap_links, sitemap_of
from crawler.items import Kind, Link, LinkCounts
from tests.unit.pages import SITE, wrapper

LIMIT = 1_000_000
LONGEST = 200
NAMESPACE = 'xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"'


def urlset(*entries: str) -> bytes:
    """A sitemap with these entries."""
    urls = "".join(f"<url>{entry}</url>" for entry in entries)
    return f'<?xml version="1.0" encoding="UTF-8"?><urlset {NAMESPACE}>{urls}</urlset>'.encode()


def index(*locations: str) -> bytes:
    """A sitemap index with these sitemaps."""
    maps = "".join(f"<sitemap><loc>{loc}</loc></sitemap>" for loc in locations)
    return f"<sitemapindex {NAMESPACE}>{maps}</sitemapindex>".encode()


def links(body: bytes) -> tuple[Link, ...]:
    """The wanted links of a sitemap."""
    sitemap = sitemap_of(body, LIMIT)
    assert sitemap is not None
    return sitemap_links(sitemap, f"{SITE}sitemap.xml", wrapper(), LONGEST, LinkCounts())


def urls(body: bytes) -> list[str]:
    """The wanted URLs of a sitemap."""
    return [link.url for link in links(body)]


ONE = urlset("<loc>https://shop.example/item/1</loc>")


def test_entries_that_the_wrapper_wants_are_links() -> None:
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
        f"<loc>https://shop.example/item/{'1' * LONGEST}</loc>",
        "<loc>mailto:item/@shop.example</loc>",
    ],
    ids=["no loc", "empty loc", "half an address", "port out of range", "too long", "no page"],
)
def test_a_broken_entry_does_not_hide_the_others(entry: str) -> None:
    body = urlset(entry, "<loc>https://shop.example/item/2</loc>")
    assert urls(body) == ["https://shop.example/item/2"]


def test_entries_are_counted_by_what_the_patterns_make_of_them() -> None:
    counts = LinkCounts()
    found = ("https://shop.example/item/1", "https://shop.example/about", "https://b.example/")
    sitemap = sitemap_of(urlset(*(f"<loc>{url}</loc>" for url in found)), LIMIT)
    assert sitemap is not None
    sitemap_links(sitemap, f"{SITE}sitemap.xml", wrapper(), LONGEST, counts)
    assert counts.counts == {
        "pages with links": 1, "links": 2, "item links": 1, "unmatched links": 1,
        "foreign links": 1,
    }  # fmt: skip


def test_the_sitemaps_of_an_index_are_list_pages() -> None:
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
        f"https://shop.example/{'a' * LONGEST}.xml",
    ],
    ids=["port out of range", "half an address", "another site", "too long"],
)
def test_an_index_is_held_to_the_same_rules(location: str) -> None:
    assert urls(index(location, "/good.xml")) == ["https://shop.example/good.xml"]


def test_a_gzipped_sitemap_is_unpacked() -> None:
    assert urls(gzip.compress(ONE)) == ["https://shop.example/item/1"]


def test_a_sitemap_of_several_gzip_members_is_read_to_its_end() -> None:
    body = gzip.compress(ONE[:60]) + gzip.compress(ONE[60:])
    assert urls(body) == ["https://shop.example/item/1"]


def test_a_gzip_bomb_is_refused() -> None:
    entry = "<loc>https://shop.example/item/{}</loc>"
    bomb = gzip.compress(urlset(*(entry.format(n) for n in range(20_000))), 9)
    with pytest.raises(Misbehaves, match="more than 10000 bytes"):
        sitemap_of(bomb, 10_000)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"<html><body>no map</body></html>", b"\x1f\x8b broken", b"\x1f\x8b",
        gzip.compress(b"something else"), b'{"urlset": 1}',
    ],
    ids=["empty", "a page", "broken gzip", "gzip magic alone", "gzip of another", "JSON"],
)  # fmt: skip
def test_what_is_no_sitemap_is_none(body: bytes) -> None:
    assert sitemap_of(body, LIMIT) is None


def test_a_page_that_only_writes_about_sitemaps_is_none() -> None:
    assert sitemap_of(b"<!-- <urlset> --><html><a href='/item/1'>x</a></html>", LIMIT) is None


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
    ids=["interrupted", "unknown entity", "byte order mark", "blank line", "no namespace", "deep",
         "empty"],
)  # fmt: skip
def test_broken_xml_gives_what_can_be_read(body: bytes, expected: list[str]) -> None:
    assert urls(body) == expected


def test_entities_of_a_sitemap_do_not_reach_files(tmp_path: Path) -> None:
    secret = tmp_path / "file"
    secret.write_text("secret", encoding="utf-8")
    body = (
        f'<!DOCTYPE urlset [<!ENTITY e SYSTEM "{secret.as_uri()}">]>'
        "<urlset><url><loc>https://shop.example/item/&e;</loc></url></urlset>"
    )
    sitemap = sitemap_of(body.encode(), LIMIT)
    found = sitemap_links(sitemap, SITE, wrapper(), LONGEST, LinkCounts()) if sitemap else ()
    assert not any("secret" in link.url for link in found)


@pytest.mark.parametrize(
    "packed",
    [gzip.compress(ONE)[:-8], gzip.compress(ONE) + b"\r\n", gzip.compress(ONE) + b"\0" * 512],
    ids=["interrupted", "more after it", "padded"],
)
def test_a_gzipped_sitemap_is_read_as_far_as_it_goes(packed: bytes) -> None:
    assert urls(packed) == ["https://shop.example/item/1"]


@pytest.mark.parametrize(
    "before", ["<!--a-->", "<?a?>", "<!-- ", "<!DOCTYPE a>", "<!DOCTYPE a [", " "]
)
def test_what_stands_before_the_root_takes_no_time(before: str) -> None:
    started = perf_counter()
    assert sitemap_of((before * 32 + "<html>").encode(), LIMIT) is None
    assert perf_counter() - started < 1


def test_comments_and_instructions_may_stand_before_the_root() -> None:
    head = b'<?xml-stylesheet href="/s.xsl"?>\n<!-- by a plugin -->\n<!-- and another -->\n'
    xml, _, rest = ONE.partition(b"?>")
    assert urls(xml + b"?>" + head + rest) == ["https://shop.example/item/1"]
