"""Feed documents in every format, and documents that are not feeds."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime

import pytest

from crawler.feeds.parser import read
from crawler.items import Bounds, NoFeed
from tests.unit.feeding import FEED_URL, NOW, atom, item, json_feed, only, reading, rss

CDF = """<CHANNEL HREF="https://a.example/"><TITLE>A channel</TITLE>
<ITEM HREF="https://a.example/1"><TITLE>One</TITLE><ABSTRACT>Said</ABSTRACT></ITEM></CHANNEL>"""
RDF = """<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"
 xmlns="http://purl.org/rss/1.0/" xmlns:dc="http://purl.org/dc/elements/1.1/">
<channel rdf:about="https://a.example/"><title>A channel</title><link>https://a.example/</link>
</channel><item rdf:about="https://a.example/1"><title>One</title>
<link>https://a.example/1</link><dc:date>2024-04-01T10:00:00Z</dc:date></item></rdf:RDF>"""
ATOM_03 = """<feed version="0.3" xmlns="http://purl.org/atom/ns#"><title>Old</title>
<link rel="alternate" type="text/html" href="https://a.example/"/><entry><title>One</title>
<link rel="alternate" type="text/html" href="https://a.example/1"/><id>tag:1</id>
<issued>2024-04-01T10:00:00Z</issued><modified>2024-04-02T10:00:00Z</modified></entry></feed>"""


def test_reads_rss() -> None:
    document = reading(
        rss(
            item(
                "<pubDate>Mon, 01 Apr 2024 10:00:00 +0200</pubDate><description>Short</description>"
                "<content:encoded><![CDATA[<p>Long &amp; <b>bold</b></p>]]></content:encoded>"
                "<dc:creator>Ada</dc:creator><category>news</category><category>sea</category>"
                '<enclosure url="https://a.example/1.mp3" type="audio/mpeg" length="5"/>'
            )
        )
    )
    (entry,) = document.entries
    assert (document.format, document.title, document.problems) == ("rss20", "A blog", ())
    assert document.site == "https://a.example/blog/"
    assert (entry.id, entry.url) == ("tag:1", "https://a.example/blog/1")
    assert entry.published == datetime(2024, 4, 1, 8, tzinfo=UTC)
    assert entry.content == {
        "title": "Post 1",
        "main_text": "Long & bold",
        "author": "Ada",
        "tags": ["news", "sea"],
        "enclosures": ["https://a.example/1.mp3"],
    }


def test_reads_atom() -> None:
    entry = only(
        atom(
            "<entry><id>tag:1</id><title>One</title><summary>Short</summary>"
            '<link rel="edit" href="https://a.example/edit/1"/>'
            '<link rel="alternate" type="application/json" href="https://a.example/1.json"/>'
            '<link href="https://a.example/1"/>'
            '<link rel="enclosure" href="https://a.example/1.mp3"/>'
            "<author><name>Ada</name></author><author><name>Bob</name></author>"
            '<category term="sea"/><published>2024-04-01T10:00:00Z</published>'
            "<updated>2024-04-20T10:00:00Z</updated>"
            '<content type="html">&lt;p&gt;Long&lt;/p&gt;</content></entry>'
        )
    )
    assert (entry.id, entry.url) == ("tag:1", "https://a.example/1")
    assert entry.published == datetime(2024, 4, 1, 10, tzinfo=UTC)
    assert entry.content == {
        "title": "One",
        "main_text": "Long",
        "author": "Ada, Bob",
        "tags": ["sea"],
        "enclosures": ["https://a.example/1.mp3"],
    }


def test_reads_json_feed() -> None:
    document = reading(
        json_feed(
            {
                "id": 1,
                "url": "/1",
                "title": "One & <one>",
                "content_html": "<p>Long</p>",
                "summary": "Short",
                "date_published": "2024-04-01T10:00:00+02:00",
                "authors": [{"name": "Ada"}, {"url": "https://a.example/bob"}],
                "tags": ["sea", 5],
                "attachments": [{"url": "https://a.example/1.mp3", "mime_type": "audio/mpeg"}],
            },
            home_page_url="https://a.example/",
            feed_url="https://a.example/feed.json",
            hubs=[{"type": "WebSub", "url": "https://hub.example/"}],
        )
    )
    (entry,) = document.entries
    assert (document.format, document.title, document.problems) == ("json11", "A blog", ())
    assert (document.site, document.topic) == ("https://a.example/", "https://a.example/feed.json")
    assert document.hubs == ("https://hub.example/",)
    assert (entry.id, entry.url) == ("1", "https://a.example/1")
    assert entry.published == datetime(2024, 4, 1, 8, tzinfo=UTC)
    assert entry.content == {
        "title": "One & <one>",
        "main_text": "Long",
        "author": "Ada",
        "tags": ["sea"],
        "enclosures": ["https://a.example/1.mp3"],
    }


@pytest.mark.parametrize(
    ("document", "version"),
    [
        (RDF, "rss10"),
        (CDF, "cdf"),
        (ATOM_03, "atom03"),
        ('<rss version="0.91"><channel><item><title>One</title></item></channel></rss>', "rss091u"),
        ("<rss><channel><item><title>One</title></item></channel></rss>", "rss"),
        ('{"version": "https://jsonfeed.org/version/1", "items": [{"title": "One"}]}', "json1"),
    ],
)
def test_reads_older_formats(document: str, version: str) -> None:
    parsed = reading(document)
    assert (parsed.format, parsed.problems) == (version, ())
    assert [entry.content["title"] for entry in parsed.entries] == ["One"]


@pytest.mark.parametrize("document", [rss(), atom(), json_feed()])
def test_a_feed_without_posts_is_a_feed(document: str) -> None:
    parsed = reading(document)
    assert (parsed.entries, parsed.problems, parsed.title) == ((), (), "A blog")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "empty"),
        (b" \n\0 ", "empty"),
        (b"\xef\xbb\xbf", "empty"),
        (
            b"<!DOCTYPE html><html><head><title>Just a\nmoment...</title></head>",
            "an HTML page: 'Just a moment...'",
        ),
        (b"<html><body>Not found</body></html>", "an HTML page"),
        (b"<!doctype html><title>&Eacute;t&eacute;</title><p>x", "an HTML page: 'Été'"),
        (b"<opml version='2.0'><body/></opml>", "a list of feeds in OPML"),
        (b"<urlset><url><loc>https://a.example/</loc></url></urlset>", "a sitemap"),
        (b"<note><to>Ada</to></note>", "an XML document with root <note>"),
        (
            b"<note><to>Ada",
            "an XML document with root <note>, malformed: its end is missing, line 1",
        ),
        (b"User-agent: *", "text without markup"),
        (gzip.compress(rss(item()).encode()), "binary data"),
        (bytes(range(256)) * 20, "binary data"),
        (b'{"posts": []}', "JSON, but not a JSON Feed"),
        (b"[1, 2]", "JSON, but not a JSON Feed"),
        (b'{"version": "https://jsonfeed.org/version/1", ', "malformed JSON"),
        (b"[" * 100_000, "JSON, nested too deeply"),
    ],
)
def test_other_documents_are_rejected_with_their_type(body: bytes, reason: str) -> None:
    with pytest.raises(NoFeed) as refused:
        reading(body)
    assert str(refused.value).startswith(reason)


def test_entries_in_an_unknown_format_are_read_and_reported() -> None:
    parsed = reading("<news><item><title>One</title></item></news>")
    assert (parsed.format, len(parsed.entries)) == ("unknown", 1)
    assert parsed.problems == ("entries in an unknown format",)


def test_content_type_header_is_ignored() -> None:
    assert reading(rss(item()), "text/html").problems == ()


def test_relative_links_are_resolved() -> None:
    document = reading(
        atom(
            '<entry><id>1</id><link href="../one"/></entry>'
            '<entry xml:base="https://b.example/x/"><id>2</id><link href="two"/></entry>',
            attributes='xml:base="https://a.example/y/z/"',
        )
    )
    assert [e.url for e in document.entries] == [
        "https://a.example/y/one",
        "https://b.example/x/two",
    ]
    assert only(rss("<item><link>/one</link></item>")).url == "https://a.example/one"


@pytest.mark.parametrize(
    ("inside", "url"),
    [
        ("<link>javascript:alert(1)</link>", None),
        ("<link>mailto:a@a.example</link>", None),
        ("<link>http://[::1</link>", None),
        ("<link></link>", None),
        ("", None),
        ("<link> https://a.example/a\n\tb </link>", "https://a.example/ab"),
        ("<link>https://a.example/?a=1&amp;b=2</link>", "https://a.example/?a=1&b=2"),
        (
            "<link>https://proxy.example/1</link>"
            "<feedburner:origLink>https://a.example/1</feedburner:origLink>",
            "https://a.example/1",
        ),
        ("<guid>https://a.example/1</guid>", "https://a.example/1"),
        ("<guid>/1</guid>", "https://a.example/1"),
        ('<guid isPermaLink="false">https://a.example/1</guid>', None),
        ("<guid>4711</guid>", None),
        ("<link/><guid>https://a.example/1</guid>", "https://a.example/1"),
        ("<link>mailto:a@a.example</link><guid>/1</guid>", "https://a.example/1"),
        ('<link/><guid isPermaLink="false">https://a.example/1</guid>', None),
    ],
)
def test_entry_url_comes_from_link_or_permalink_guid(inside: str, url: str | None) -> None:
    entry = only(rss(f"<item><title>One</title>{inside}</item>"))
    assert (entry.url, entry.content["title"]) == (url, "One")


def test_episode_has_its_podcast_title_if_it_has_no_other() -> None:
    named = "<itunes:title>Episode &amp;amp; more</itunes:title>"
    assert only(rss(f"<item>{named}</item>")).content["title"] == "Episode & more"
    assert only(rss(f"<item>{named}<title>Title</title></item>")).content["title"] == "Title"


def test_guid_does_not_depend_on_the_feed_url() -> None:
    document = rss("<item><guid>4711</guid></item>").encode()
    ids = {read(document, url, None, NOW).entries[0].id for url in (FEED_URL, "http://b.example/")}
    assert ids == {"4711"}


@pytest.mark.parametrize(
    ("channel", "bounds"),
    [
        ("", Bounds()),
        ("<ttl>90</ttl>", Bounds(every_hours=1.5)),
        ("<ttl>0</ttl>", Bounds()),
        ("<ttl>-5</ttl>", Bounds()),
        ("<ttl>soon</ttl>", Bounds()),
        ("<ttl>nan</ttl>", Bounds()),
        ("<ttl>20000</ttl>", Bounds(every_hours=168)),
        ("<ttl>50000</ttl>", Bounds()),
        ("<sy:updatePeriod>daily</sy:updatePeriod>", Bounds(every_hours=24)),
        (
            "<sy:updatePeriod> hourly </sy:updatePeriod><sy:updateFrequency>2</sy:updateFrequency>",
            Bounds(every_hours=0.5),
        ),
        (
            "<sy:updatePeriod>daily</sy:updatePeriod><sy:updateFrequency>0</sy:updateFrequency>",
            Bounds(),
        ),
        ("<sy:updatePeriod>yearly</sy:updatePeriod>", Bounds()),
        ("<ttl>60</ttl><sy:updatePeriod>daily</sy:updatePeriod>", Bounds(every_hours=24)),
        (
            "<skipHours><hour>5</hour><hour>24</hour><hour>25</hour><hour>x</hour></skipHours>",
            Bounds(skip_hours=(0, 5)),
        ),
        (
            f"<skipHours>{''.join(f'<hour>{n}</hour>' for n in range(1, 25))}</skipHours>",
            Bounds(),
        ),
        (
            "<skipDays><day>Sunday</day><day> saturday</day><day>Someday</day></skipDays>",
            Bounds(skip_days=(5, 6)),
        ),
    ],
)
def test_reads_update_bounds(channel: str, bounds: Bounds) -> None:
    assert reading(rss(item(), channel=channel)).bounds == bounds


@pytest.mark.parametrize("place", ["before", "after"])
def test_hubs_and_topic_are_found_before_and_after_entries(place: str) -> None:
    links = (
        '<atom:link rel="hub" href="https://hub.example/"/>'
        '<atom:link rel="hub" href="https://hub2.example/"/>'
        '<atom:link rel="hub" href="https://hub.example/"/>'
        '<atom:link rel="self" href="/feed"/>'
    )
    parts = (links, item()) if place == "before" else (item(), links)
    document = reading(rss(*parts))
    assert document.hubs == ("https://hub.example/", "https://hub2.example/")
    assert document.topic == "https://a.example/feed"
    assert document.site == "https://a.example/blog/"


def test_hub_links_of_entries_are_ignored() -> None:
    document = reading(
        atom('<entry><id>1</id><link rel="hub" href="https://hub.example/"/></entry>')
    )
    assert document.hubs == ()


def test_number_of_entries_is_limited_and_reported() -> None:
    for document in (
        rss(*(item(n=n) for n in range(9))),
        json_feed(*({"id": n} for n in range(9))),
    ):
        parsed = read(document.encode(), FEED_URL, None, NOW, max_entries=3)
        assert len(parsed.entries) == 3
        assert parsed.problems == ("more than 3 entries: the rest is left out",)


def test_fields_of_wrong_types_are_ignored() -> None:
    wrong = {"id": [1], "url": 5, "title": {}, "tags": "sea", "authors": [1], "attachments": {}}
    entry = only(json_feed({**wrong, "content_text": "Said", "author": "Ada"}))
    assert (entry.url, entry.content) == (None, {"main_text": "Said"})


def test_half_an_emoji_in_a_json_feed_is_a_replacement_character() -> None:
    entry = only(json_feed({"id": "a\ud83d", "title": "Sea \ud83d", "content_text": "\ude00 Said"}))
    assert entry.content == {"title": "Sea \ufffd", "main_text": "\ufffd Said"}
    assert entry.id == "a\ufffd"


def test_media_rss_files_are_enclosures() -> None:
    entry = only(rss(item(
        '<media:content url="/img/1.jpg" medium="image"/><media:group>'
        '<media:content url="https://a.example/1.mp4"/></media:group>'
        '<media:thumbnail url="https://a.example/1t.jpg"/>'
        '<enclosure url="https://a.example/1.mp3" type="audio/mpeg"/>'
    )))  # fmt: skip
    files = ["1.mp3", "img/1.jpg", "1.mp4"]
    assert entry.content["enclosures"] == [f"https://a.example/{file}" for file in files]


@pytest.mark.parametrize(
    "link",
    ["magnet:?xt=urn:btih:0123456789abcdef&dn=a", "gemini://capsule.example/log/1.gmi",
     "gopher://hole.example/0/1", "ftp://files.example/1.zip"],
)  # fmt: skip
def test_links_that_other_programs_open_are_kept(link: str) -> None:
    written = link.replace("&", "&amp;")
    assert only(rss(f"<item><title>A</title><link>{written}</link></item>")).url == link
    linked = f'<entry><id>x</id><title>A</title><link href="{written}"/></entry>'
    assert only(atom(linked)).url == link
    assert only(json_feed({"id": "1", "url": link, "content_text": "a"})).url == link


@pytest.mark.parametrize("link", ["javascript:alert(1)", "data:text/html,x", "file:///etc/passwd"])
def test_links_that_no_reader_should_open_are_dropped(link: str) -> None:
    assert only(rss(f"<item><title>A</title><link>{link}</link></item>")).url is None
