"""Malicious sitemaps, feeds, feed lists, and JSON documents."""

from __future__ import annotations

import io

import pytest
from scrapy.http import JsonResponse

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.extract.fields import text
from crawler.extract.links import listed_links
from crawler.extract.sitemaps import listing_of
from crawler.feeds.parser import read
from crawler.feeds.subscriptions import FeedList, read_list
from crawler.items import FeedDocument, LinkCounts, NoFeed
from crawler.utils.sandbox import time_limit
from tests.unit.pages import NOON, SITE, wrapper

ENTITIES = '<!ENTITY a "lol">' + "".join(
    f'<!ENTITY {name} "{f"&{before};" * 10}">'
    for before, name in zip("abcdefghijkl", "bcdefghijklm", strict=True)
)
LAUGHS = f"<?xml version='1.0'?><!DOCTYPE x [{ENTITIES}]>"
FILE_ENTITY = "<?xml version='1.0'?><!DOCTYPE x [<!ENTITY m SYSTEM 'file:///etc/passwd'>]>"
DEEP = 50_000
FLOOD = " ".join(f'a{n}="1"' for n in range(DEEP))
NAMESPACE = "http://www.sitemaps.org/schemas/sitemap/0.9"
ENTRY = f"<url><loc>{SITE}item/1</loc></url>"


def sitemap_urls(markup: str, before: str = "") -> list[str]:
    """Return the wanted URLs in a sitemap."""
    body = f'{before}<urlset xmlns="{NAMESPACE}">{markup}</urlset>'.encode()
    sitemap = listing_of(body, 1 << 24)
    assert sitemap is not None
    return [link.url for link in listed_links(sitemap, SITE, wrapper(), 200, LinkCounts())]


@pytest.mark.parametrize("before", [LAUGHS, FILE_ENTITY], ids=["laughs", "a file"])
def test_entities_of_a_sitemap_are_not_resolved(before: str) -> None:
    urls = sitemap_urls(f"<url><loc>{SITE}item/&m;</loc></url>{ENTRY}", before)
    assert set(urls) <= {f"{SITE}item/", f"{SITE}item/1"}


@pytest.mark.parametrize(
    "more",
    ["<url>" * DEEP, f"<url {FLOOD}/>", "<!-- x -->" * DEEP],
    ids=["deep", "attributes", "comments"],
)
def test_sitemap_entries_before_a_flood_are_read(more: str) -> None:
    assert sitemap_urls(ENTRY + more) == [f"{SITE}item/1"]


def feed(markup: str, before: str = "") -> FeedDocument:
    """Parse an RSS feed that contains this markup."""
    item = "<item><guid>1</guid><title>One</title></item>"
    body = f"{before}<rss version='2.0'><channel>{item}{markup}</channel></rss>"
    return read(body.encode(), SITE, None, NOON)


def ids(of: FeedDocument) -> list[str]:
    return [entry.id for entry in of.entries]


@pytest.mark.parametrize("before", [LAUGHS, FILE_ENTITY], ids=["laughs", "a file"])
def test_entities_of_a_feed_are_not_resolved(before: str) -> None:
    parsed = feed("<item><guid>2</guid><title>&m;</title></item>", before)
    assert ids(parsed) == ["1", "2"]
    assert parsed.entries[1].content["title"] in ("&m;", "m")


@pytest.mark.parametrize(
    "more",
    [
        "<x>" * 5_000 + "</x>" * 5_000,
        "<description>" + "<div>" * 20_000 + "</description>",
        f"<x {FLOOD}/>",
        "<category>c</category>" * 5_000,
    ],
    ids=["deep", "deep markup", "attributes", "categories"],
)
def test_a_flood_in_a_feed_does_not_hide_its_posts(more: str) -> None:
    assert ids(feed(f"<item><guid>2</guid>{more}</item>"))[0] == "1"


def test_document_with_many_doctypes_is_read_quickly() -> None:
    with time_limit(3):
        assert ids(feed("", "<!DOCTYPE[>" * 20_000)) == ["1"]


def opml(markup: str, before: str = "") -> FeedList:
    """Parse an OPML document that contains this markup."""
    body = f"{before}<opml><body><outline text='One' xmlUrl='{SITE}feed'/>{markup}</body></opml>"
    return read_list(io.BytesIO(body.encode()), "feeds.opml", Config.load())


@pytest.mark.parametrize("before", [LAUGHS, FILE_ENTITY], ids=["laughs", "a file"])
def test_entities_of_a_list_are_not_resolved(before: str) -> None:
    feed_list = opml(f"<outline text='&m;' xmlUrl='{SITE}two'/>", before)
    assert [feed.url for feed in feed_list.feeds] == [f"{SITE}feed", f"{SITE}two"]
    assert (feed_list.feeds[1].title or "") in ("", "&m;")


def test_deeply_nested_list_is_read_until_the_depth_limit() -> None:
    feed_list = opml("<outline text='f'>" * DEEP)
    assert [feed.url for feed in feed_list.feeds] == [f"{SITE}feed"]
    assert "Excessive depth" in feed_list.problems[0]


def test_outline_with_too_many_attributes_is_rejected() -> None:
    feed_list = opml(f"<outline {FLOOD} xmlUrl='{SITE}two'/>")
    assert [feed.url for feed in feed_list.feeds] == [f"{SITE}feed"]
    assert [entry.reason for entry in feed_list.refused] == ["a tag with more than 200 attributes"]


def test_too_many_attributes_in_broken_markup_reject_the_list() -> None:
    flood = FLOOD.replace('"', "")
    with pytest.raises(ConfigError, match="a tag with more than 200 attributes"):
        opml(f"<outline {flood} xmlUrl='{SITE}two'/>")


def nested(opening: str, closing: str) -> str:
    return opening * DEEP + closing * DEEP


@pytest.mark.parametrize(
    "body", [nested("[", "]"), nested('{"a":', "}")[:-DEEP] + "1" + "}" * DEEP], ids=["[", "{"]
)
def test_deeply_nested_json_raises_an_error(body: str) -> None:
    page = JsonResponse(SITE, body=body.encode(), encoding="utf-8")
    with pytest.raises(RecursionError):
        text(jmespath="a").read(page, wrapper().zone)
    with pytest.raises(NoFeed):
        read(body.encode(), SITE, None, NOON)
