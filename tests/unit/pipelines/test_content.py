"""Normal form and hash of content."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import bson
import pytest

from crawler.extract.content import content_hash, digest, normal, post_of
from crawler.items import Entry, FeedDocument, Fetched, Kind, Link, Outcome
from pipelines.content import ContentPipeline
from tests.unit.pages import SITE, fetched, target


def item(**content: Any) -> Fetched:
    """Return an item page with this content after the content pipeline."""
    page: Fetched = ContentPipeline().process_item(fetched(content=content))
    return page


def listing(*links: Link) -> str | None:
    """Return the hash of a list page with these links."""
    page = ContentPipeline().process_item(fetched(target(Kind.LIST), links=links))
    assert isinstance(page, Fetched)
    return page.content_hash


TEA = Link(f"{SITE}item/1", Kind.ITEM, "tea")
MUG = Link(f"{SITE}item/2", Kind.ITEM, "mugs")


def test_hash_ignores_key_order() -> None:
    assert item(a=1, b="x").content_hash == item(b="x", a=1).content_hash


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("caf\u00e9", "cafe\u0301"),
        ("\u1112\u1161\u11ab", "\ud55c"),
        ("a\0b", "ab"),
        (" a\n", "a"),
        ("Å", "\u212b"),
    ],
    ids=["composed", "Hangul", "NUL", "surrounding whitespace", "Ångström"],
)
def test_equivalent_texts_have_equal_hashes(one: str, other: str) -> None:
    assert item(title=one).content_hash == item(title=other).content_hash


def test_only_extracted_main_texts_may_have_other_times_and_counters() -> None:
    one, other = "Tea. 3 views, 2 minutes ago", "Tea. 4 views, 5 hours ago"
    assert item(main_text=one).content_hash == item(main_text=other).content_hash
    assert item(main_text=one).content_hash != item(main_text="Mug. 3 views").content_hash
    assert item(text=one).content_hash != item(text=other).content_hash


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": "x"}, {"a": "y"}),
        ({"a": "x"}, {"b": "x"}),
        ({"a": "x"}, {"a": "X"}),
        ({"a": "x", "b": "y"}, {"a": "y", "b": "x"}),
        ({"a": None}, {"a": ""}),
        ({"a": 1}, {"a": "1"}),
        ({"a": ["x", "y"]}, {"a": ["y", "x"]}),
        ({"a": ["x", "y"]}, {"a": ["x y"]}),
        ({"a": ["x"]}, {"a": "x"}),
    ],
)
def test_different_contents_hash_differently(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert item(**one).content_hash != item(**other).content_hash


def test_hash_of_list_page_ignores_link_order() -> None:
    assert listing(TEA, MUG) == listing(MUG, TEA)
    assert listing(TEA, MUG) != listing(TEA)
    assert listing() != listing(TEA)


def test_link_category_changes_hash() -> None:
    assert listing(TEA) != listing(Link(TEA.url, Kind.ITEM, "coffee"))


def test_links_do_not_change_hash_of_item() -> None:
    alone, with_links = fetched(content={"a": 1}), fetched(content={"a": 1}, links=(MUG,))
    assert content_hash(alone) == content_hash(with_links)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a\0b", "ab"),
        ("a\ud800b", "a\ufffdb"),
        ("e\u0301", "\u00e9"),
        ("  a ", "a"),
        (["a\0", ("b",)], ["a", ["b"]]),
        ({"k\0": {"e\u0301": 1}}, {"k": {"\u00e9": 1}}),
        ({1: 2}, {"1": 2}),
        (5, 5),
        (None, None),
        (True, True),
    ],
    ids=ascii,
)
def test_normal_form_of_value(value: Any, expected: Any) -> None:
    assert normal(value) == expected


def test_times_are_truncated_to_milliseconds() -> None:
    moment = datetime(2024, 5, 1, 12, 0, 0, 123_999, tzinfo=UTC)
    assert normal(moment) == datetime(2024, 5, 1, 12, 0, 0, 123_000, tzinfo=UTC)


@pytest.mark.parametrize(
    "value",
    [2**63, -(2**63) - 1, 10**30, 10**400],
    ids=["one more", "one less", "long", "beyond float"],
)
def test_number_beyond_64_bits_can_be_encoded(value: int) -> None:
    assert bson.encode({"value": normal(value)})


@pytest.mark.parametrize(
    "outcome", [Outcome.GONE, Outcome.ERROR, Outcome.BLOCKED, Outcome.NOT_MODIFIED]
)
def test_a_fetch_without_content_is_not_hashed(outcome: Outcome) -> None:
    page = ContentPipeline().process_item(fetched(outcome=outcome))
    assert page.content_hash is None


@pytest.mark.parametrize("other", [{"a": 1}, "text", None])
def test_other_items_pass_untouched(other: object) -> None:
    assert ContentPipeline().process_item(other) is other


def test_ids_of_posts_with_the_same_normal_form_are_one_post() -> None:
    entries = tuple(Entry(id_, None, None, {"title": id_}) for id_ in ("caf\u00e9", "cafe\u0301"))
    feed = fetched(target(Kind.FEED), document=FeedDocument("rss20", None, None, entries))
    ContentPipeline().process_item(feed)
    assert [post.id for post in feed.posts] == ["caf\u00e9"]


def test_a_digest_is_128_bits_in_hex() -> None:
    assert len(digest({})) == 32
    assert int(digest({}), 16) >= 0


@pytest.mark.parametrize(
    ("url", "file", "is_edited"),
    [
        ("item/1?utm_source=rss2", "a.mp3", False),
        ("item/1", "a.mp3?Expires=9&Signature=x", False),
        ("item/2", "a.mp3", True),
        ("item/1", "b.mp3", True),
        ("item/1", "a.mp3?id=2", True),
    ],
)
def test_campaigns_and_signatures_are_no_edits_of_a_post(
    url: str, file: str, is_edited: bool
) -> None:
    def hashed(url: str, file: str) -> str:
        content = {"title": "Tea", "enclosures": [SITE + file]}
        return post_of(Entry("1", SITE + url, None, content)).content_hash

    assert (hashed(url, file) != hashed("item/1?utm_source=rss", "a.mp3")) is is_edited
