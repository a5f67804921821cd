"""Discovery of the feeds that a web page links to."""

from __future__ import annotations

import pytest
from scrapy.http import HtmlResponse

from crawler.feeds.discovery import MAX_CANDIDATES, Candidates, candidates

PAGE = "https://blog.example/2026/post.html"
RSS = 'rel="alternate" type="application/rss+xml"'


def candidates_on(body: str, url: str = PAGE) -> Candidates:
    """Return the feed candidates on a page with this body."""
    return candidates(HtmlResponse(url, body=body.encode(), encoding="utf-8"))


@pytest.mark.parametrize(
    "link",
    [
        f'<link {RSS} href="/feed">',
        '<link rel="alternate" type="application/atom+xml" href="/feed">',
        '<link rel="alternate" type="application/feed+json" href="/feed">',
        '<link rel="alternate" type="application/rdf+xml" href="/feed">',
        '<LINK REL="Alternate Home" TYPE=" application/RSS+xml; charset=utf-8 " HREF=" /feed\n">',
        '<link rel="feed" href="/feed">',
        f'<base href="https://blog.example/"><link {RSS} href="feed">',
        f'<base href="/"><link {RSS} href="feed#top">',
        f'<base href="http://[::1"><link {RSS} href="/feed">',
        f'</head><body><p><link {RSS} href="https://blog.example/feed">',
    ],
)
def test_a_feed_that_a_page_declares(link: str) -> None:
    assert candidates_on(link).declared == ("https://blog.example/feed",)


@pytest.mark.parametrize(
    "link",
    [
        '<link rel="stylesheet" type="text/css" href="/feed">',
        '<link rel="alternate" hreflang="de" href="/de/">',
        '<link rel="alternate" type="application/json" href="/wp-json/posts/1">',
        '<link rel="alternate" type="text/html" href="/feed">',
        f'<link {RSS}>',
        f'<link {RSS} href="">',
        f'<link {RSS} href="#top">',
        f'<link {RSS} href="{PAGE}">',
        f'<link {RSS} href="javascript:feed()">',
        f'<link {RSS} href="http://[::1/feed">',
        f'<!-- <link {RSS} href="/feed"> -->',
        "",
    ],
)  # fmt: skip
def test_what_is_no_feed_of_the_page(link: str) -> None:
    assert candidates_on(link) == Candidates((), ())


def test_feeds_stand_in_the_order_of_the_page_and_those_of_comments_last() -> None:
    page = (
        f'<link {RSS} href="/post/comments/feed"><link {RSS} title="Kommentare" href="/k.xml">'
        f'<link {RSS} href="/rss"><link {RSS} href="/atom"><link {RSS} href="/rss?utm_source=x">'
    )
    paths = [url.removeprefix("https://blog.example") for url in candidates_on(page).declared]
    assert paths == ["/rss", "/atom", "/post/comments/feed", "/k.xml"]


@pytest.mark.parametrize(
    "path",
    ["/feed", "/feed/", "/blog/rss", "/rss.xml", "/atom.xml", "/index.xml", "/feed.json",
     "/x/feed.xml", "/news.rss", "/news.atom", "/all-rss.xml", "/index.rdf", "/feed?lang=en"],
)  # fmt: skip
def test_a_link_that_looks_like_a_feed(path: str) -> None:
    named = candidates_on(f'<a href="/about">About</a><a href="{path}">RSS</a>')
    assert named == Candidates((), (f"https://blog.example{path}",))


@pytest.mark.parametrize(
    "path",
    ["/feedback", "/feeds-explained.html", "/rss.html", "/sitemap.xml", "/index.json", "/surfeed"],
)
def test_a_link_that_does_not(path: str) -> None:
    assert candidates_on(f'<a href="{path}">x</a>').guessed == ()


def test_what_is_declared_is_not_guessed_as_well() -> None:
    named = candidates_on(
        f'<link {RSS} href="/feed"><a href="/feed#x">RSS</a><a href="/atom.xml">Atom</a>'
    )
    assert named == Candidates(("https://blog.example/feed",), ("https://blog.example/atom.xml",))


def test_a_page_with_thousands_of_links_names_some() -> None:
    page = "".join(f'<link {RSS} href="/{i}"><a href="/{i}/feed">x</a>' for i in range(2000))
    named = candidates_on(page)
    assert (len(named.declared), len(named.guessed)) == (MAX_CANDIDATES, MAX_CANDIDATES)
