"""Invariants of parsing feed documents, including damaged ones."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from crawler.feeds.draft import EARLIEST, DateReader
from crawler.feeds.parser import read
from crawler.items import FeedDocument, NoFeed
from tests.unit.feeding import FEED_URL, NOW, atom, item, json_feed, rss

SEEDS = [
    rss(
        item(
            "<pubDate>Mon, 01 Apr 2024 10:00:00 +0200</pubDate><author>a@b.example (Ada)</author>"
            "<content:encoded><![CDATA[<p>Bücher &amp; <b>жизнь</b></p>]]></content:encoded>"
        ),
        item("<category>sea</category><enclosure url='/a.mp3'/>", n=2),
        channel="<ttl>60</ttl><skipHours><hour>3</hour></skipHours>",
        head="<?xml version='1.0' encoding='utf-8'?><!DOCTYPE rss [<!ENTITY me 'Ada'>]>",
    ),
    atom(
        "<entry><id>tag:1</id><title type='html'>&lt;i&gt;One&lt;/i&gt;</title><link href='/1'/>"
        "<updated>2024-04-01T10:00:00Z</updated><content type='xhtml'>"
        "<div xmlns='http://www.w3.org/1999/xhtml'><p>Said &#228;</p></div></content></entry>",
        feed="<link rel='hub' href='https://hub.example/'/>",
    ),
    json_feed({"id": 1, "url": "/1", "content_html": "<p>Said</p>", "tags": ["sea"]}),
    "<html><head><title>Just a moment...</title></head><body><p>Wait</p></body></html>",
]
BITS = st.sampled_from([
    "&", "&bomb;", "&nbsp;", "&#0;", "&#x110000;", "<", ">", "<![CDATA[", "]]>", "<!--", "-->",
    "<?", "<!DOCTYPE rss [<!ENTITY bomb 'ha'>]>", "\0", "\x08", "\ufeff", "\ud7ff", '"', "'",
    "{", "]", "\\u", "<item>", "</item>", "<guid>", "<link>", "</channel>", "<entry>", "<svg>",
    "<content type='xhtml'>", "<pubDate>soon</pubDate>", " xmlns:x='y'", "\n" * 100, "9" * 5000,
    "é" * 50,
]).map(str.encode)  # fmt: skip
ENCODINGS = st.sampled_from(
    ["utf-8", "utf-16", "utf-32", "latin-1", "cp1251", "shift_jis", "utf-8-sig"]
)
TYPES = st.sampled_from([None, "text/xml", "text/html; charset=iso-8859-1", "a/b; charset=utf-16"])
# A document takes 0.01 s; the first unusual date takes longer, because dateparser loads languages.
# The limit is CPU time of the process, because the machine may be busy.
MAX_SECONDS = 5


@st.composite
def broken(draw: st.DrawFn) -> bytes:
    """Draw a small document with random damage."""
    text = draw(st.sampled_from(SEEDS))
    body = text.encode(draw(ENCODINGS), "replace")
    for _ in range(draw(st.integers(0, 5))):
        at, end = sorted(draw(st.tuples(*[st.integers(0, len(body))] * 2)))
        body = draw(
            st.sampled_from([
                body[:end],
                body[:at] + body[end:],
                body[:end] + body[at:],
                body[:at] + bytes(255 - byte for byte in body[at : at + 2]) + body[at + 2 :],
                body[:at] + draw(BITS) + body[at:],
                body[:at] + draw(st.binary(max_size=5)) + body[at:],
            ])
        )  # fmt: skip
    return body


def outcome(body: bytes, content_type: str | None = None) -> FeedDocument | str:
    try:
        return read(body, FEED_URL, content_type, NOW)
    except NoFeed as why:
        return str(why)


def check(result: FeedDocument | str) -> None:
    """Check the invariants of every parsed document."""
    if isinstance(result, str):
        assert result
        assert "\n" not in result
        return
    assert result.format
    ids = [entry.id for entry in result.entries]
    assert len(set(ids)) == len(ids)
    assert all(ids)
    for entry in result.entries:
        assert entry.published is None or EARLIEST <= entry.published <= NOW
        assert entry.url is None or entry.url.startswith(("http://", "https://"))
        assert all(entry.content.values())
        f"{entry.id}{entry.url}{entry.content}".encode()
    assert all(problem and "\n" not in problem for problem in result.problems)


@pytest.fixture(scope="module")
def languages() -> None:
    """Load the names of months in all languages, which takes seconds."""
    assert DateReader().read("no date") is None


@pytest.mark.soak
@pytest.mark.usefixtures("languages")
@settings(max_examples=600)
@given(broken(), TYPES)
@example(b"\xff\xfe", None)
@example(b"<rss><item><guid>&#xd800;", None)
@example(b'{"version":"https://jsonfeed.org/version/1","items":[{"title":"\\ud800"}]}', None)
def test_damaged_documents_give_a_feed_or_an_error(body: bytes, content_type: str | None) -> None:
    start = time.process_time()
    result = outcome(body, content_type)
    assert time.process_time() - start < MAX_SECONDS
    check(result)
    assert outcome(body, content_type) == result


@settings(max_examples=100)
@given(st.binary(max_size=300))
def test_random_bytes_raise_no_unexpected_error(body: bytes) -> None:
    check(outcome(body))


WORDS = st.sampled_from(["a", "b", "c"])


@st.composite
def posts(draw: st.DrawFn) -> str:
    """Draw a post; there are few names, so that posts share some."""
    guid, link, title = (draw(st.none() | WORDS) for _ in range(3))
    parts = [
        f"<guid isPermaLink='false'>{guid}</guid>" if guid else "",
        f"<link>https://a.example/{link}</link>" if link else "",
        f"<title>{title}</title>" if title else "",
        f"<description>{draw(WORDS)}</description>",
        f"<pubDate>{datetime(2024, 1, draw(st.integers(1, 3)), tzinfo=UTC):%Y-%m-%d}</pubDate>",
    ]
    return f"<item>{''.join(parts)}</item>"


def ids_of(items: list[str]) -> list[str]:
    return [entry.id for entry in read(rss(*items).encode(), FEED_URL, None, NOW).entries]


# Two copies of a post with different dates, and another post with the same name.
DATED_TWICE = [
    f"<item><guid isPermaLink='false'>a</guid><link>https://a.example/b</link>"
    f"<description>{text}</description><pubDate>2024-01-0{day}</pubDate></item>"
    for text, day in (("a", 1), ("b", 1), ("a", 2))
]


@pytest.mark.soak
@given(
    st.lists(posts(), max_size=8).flatmap(
        lambda items: st.tuples(st.just(items), st.permutations(items))
    )
)
@example((DATED_TWICE, DATED_TWICE[::-1]))
def test_ids_do_not_depend_on_order_of_posts(orders: tuple[list[str], list[str]]) -> None:
    items, shuffled = orders
    parsed = ids_of(items)
    assert sorted(ids_of(shuffled)) == sorted(parsed)
    assert len(parsed) >= len({item.partition("<pubDate>")[0] for item in items})


NAMED = st.sampled_from([
    "<guid>{n}</guid>", "<link>/{n}</link>", "<link>/changes#{n}</link>", "",
    "<guid>same</guid>", "<guid>same</guid><link>/{n}</link>", "<link>/status</link>",
])  # fmt: skip


@given(st.lists(st.integers(0, 999), min_size=4, max_size=20, unique=True), st.data())
def test_ids_are_stable_while_feed_rolls(numbers: list[int], data: st.DataObject) -> None:
    """Check a feed that names its posts, and a feed that gives all posts one guid or one link."""
    named = data.draw(NAMED)
    start = datetime(2024, 1, 1, tzinfo=UTC)
    items = [
        f"<item><title>Post {n}</title>{named.format(n=n)}"
        f"<pubDate>{start + timedelta(hours=n):%Y-%m-%dT%H:%M:%SZ}</pubDate></item>"
        for n in numbers
    ]
    first, end = data.draw(st.integers(0, len(items) - 3)), data.draw(st.integers(3, len(items)))
    window = slice(first, max(end, first + 3))
    assert ids_of(items[window]) == ids_of(items)[window]
