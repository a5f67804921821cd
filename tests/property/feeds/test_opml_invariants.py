"""Invariants of OPML: written lists are read back, and any input is read safely."""

from __future__ import annotations

import io
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.feeds.subscriptions import (
    CATEGORY_CHARACTERS,
    TITLE_CHARACTERS,
    FeedList,
    Subscription,
    category_of,
    feed_url,
    opml_lines,
    read_list,
    tidy,
)

CONFIG = Config.load()
AT = datetime(2026, 1, 5, tzinfo=UTC)
paths = st.text(max_size=20)
urls = st.builds(
    lambda scheme, host, path: feed_url(f"{scheme}://{host}.example/{path}", CONFIG),
    st.sampled_from(["http", "https"]),
    st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True),
    st.text(st.characters(exclude_characters="#", codec="utf-8"), max_size=20),
)
titles = st.none() | st.text(max_size=30).map(lambda text: tidy(text, TITLE_CHARACTERS) or None)
categories = st.lists(paths.map(category_of).filter(bool), max_size=4, unique=True)
lists_of_feeds = st.dictionaries(urls, st.tuples(titles, categories), min_size=1, max_size=8)


def read(body: bytes) -> FeedList:
    return read_list(io.BytesIO(body), "list", CONFIG)


@given(lists_of_feeds)
def test_exported_feeds_are_imported_unchanged(
    kept: dict[str, tuple[str | None, list[str]]],
) -> None:
    feeds = [
        Subscription(url, title, None, tuple(categories))
        for url, (title, categories) in kept.items()
    ]
    feed_list = read("".join(opml_lines(feeds, "Mine", AT)).encode())
    assert (feed_list.refused, feed_list.problems) == ((), ())
    assert {feed.url: (feed.title, sorted(feed.categories)) for feed in feed_list.feeds} == {
        url: (None if title == url else title, sorted(named))
        for url, (title, named) in kept.items()
    }


@given(st.binary(max_size=300) | st.binary(max_size=200).map(lambda body: b"<opml>" + body))
def test_any_bytes_give_a_list_or_a_one_line_error(body: bytes) -> None:
    error_text, feed_list = "", FeedList(())
    try:
        feed_list = read(body)
    except ConfigError as error:
        error_text = str(error)
    assert bool(error_text) != bool(feed_list.feeds or feed_list.refused)
    assert len(error_text.splitlines()) <= 1


@given(
    st.lists(
        st.sampled_from([
            '<outline text="N">', '<outline xmlUrl="http://a.b/"/>', "</outline>", "<body>", "<!--",
            "-->", "&", "<![CDATA[", "]]>", '"', "<outline", ">", "</opml>", "<html>", "é", "<?x",
        ]),
        max_size=15,
    )
)  # fmt: skip
def test_broken_opml_gives_only_listed_feeds(parts: list[str]) -> None:
    try:
        feed_list = read(f"<opml>{''.join(parts)}".encode())
    except ConfigError:
        return
    assert {feed.url for feed in feed_list.feeds} <= {"http://a.b/"}
    assert {name for feed in feed_list.feeds for name in feed.categories} <= {
        "/".join("N" * depth) for depth in range(1, 16)
    }


@given(st.text(max_size=400))
def test_normal_form_of_category_is_idempotent(path: str) -> None:
    kept = category_of(path)
    assert category_of(kept) == kept
    assert len(kept) <= CATEGORY_CHARACTERS


@given(urls)
def test_feed_url_is_idempotent(url: str) -> None:
    assert feed_url(url, CONFIG) == url
