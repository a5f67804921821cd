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
def test_declared_feed_is_found(link: str) -> None:
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
def test_other_links_are_not_feeds(link: str) -> None:
    assert candidates_on(link) == Candidates((), ())


def test_feeds_keep_page_order_with_comment_feeds_last() -> None:
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
def test_feed_like_link_is_guessed(path: str) -> None:
    found = candidates_on(f'<a href="/about">About</a><a href="{path}">RSS</a>')
    assert found == Candidates((), (f"https://blog.example{path}",))


@pytest.mark.parametrize(
    "path",
    ["/feedback", "/feeds-explained.html", "/rss.html", "/sitemap.xml", "/index.json", "/surfeed"],
)
def test_other_paths_are_not_guessed(path: str) -> None:
    assert candidates_on(f'<a href="{path}">x</a>').guessed == ()


def test_declared_feed_is_not_also_guessed() -> None:
    found = candidates_on(
        f'<link {RSS} href="/feed"><a href="/feed#x">RSS</a><a href="/atom.xml">Atom</a>'
    )
    assert found == Candidates(("https://blog.example/feed",), ("https://blog.example/atom.xml",))


def test_number_of_candidates_is_limited() -> None:
    page = "".join(f'<link {RSS} href="/{i}"><a href="/{i}/feed">x</a>' for i in range(2000))
    found = candidates_on(page)
    assert (len(found.declared), len(found.guessed)) == (MAX_CANDIDATES, MAX_CANDIDATES)
