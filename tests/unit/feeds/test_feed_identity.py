"""Post ids: stable across fetches while other posts appear and disappear."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.unit.feeding import FEED_URL, atom, item, json_feed, reading, rss


def ids(*items: str) -> list[str]:
    return [entry.id for entry in reading(rss(*items)).entries]


def post(n: int, *, guid: str | None = None, link: str | None = None, more: str = "") -> str:
    named = "" if guid is None else f"<guid isPermaLink='false'>{guid}</guid>"
    linked = "" if link is None else f"<link>{link}</link>"
    return f"<item><title>Post {n}</title>{named}{linked}{more}</item>"


def test_a_guid_is_the_id() -> None:
    assert ids(item(n=1), item(n=2)) == ["tag:1", "tag:2"]
    assert ids(post(1, guid=" a\n b ")) == ["a b"]


def test_canonical_link_is_the_id_without_a_guid() -> None:
    assert ids(post(1, link="https://A.example/1?utm_source=rss#top")) == ["https://a.example/1"]


@pytest.mark.parametrize("edit", ["<description>Edited</description>", "<author>Ada</author>"])
def test_id_falls_back_to_a_digest_of_title_and_date(edit: str) -> None:
    date = "<pubDate>Mon, 01 Apr 2024 10:00:00 GMT</pubDate>"
    (before,), (after,) = ids(post(1, more=date)), ids(post(1, more=date + edit))
    assert before == after
    assert ids(post(2, more=date)) != [before]
    assert ids(post(1, more=date.replace("10:00", "11:00"))) != [before]


def test_id_without_a_date_is_a_digest_of_title_and_text() -> None:
    (one,), (other,) = (ids(post(1, more=f"<description>{n}</description>")) for n in (1, 2))
    assert one != other
    assert ids(post(1, more="<description>1</description><author>Ada</author>")) == [one]


def test_identical_entries_are_merged_and_reported() -> None:
    document = reading(rss(item(n=1), item(n=2), item(n=1)))
    assert [entry.id for entry in document.entries] == ["tag:1", "tag:2"]
    assert document.problems == ("2 entries share the id 'tag:1' and are identical",)


def test_copy_with_the_latest_date_is_kept() -> None:
    days = [f"<pubDate>2024-04-0{n}</pubDate>" for n in (1, 3, 2)]
    (kept,) = reading(rss(*(item(day) for day in days))).entries
    assert kept.published == datetime(2024, 4, 3, tzinfo=UTC)


def test_choice_between_copies_ignores_their_order() -> None:
    parts = [post(1, link=f"https://a.example/blog/#{n}") for n in (1, 2)]
    assert ids(*parts) == ids(*parts[::-1])


def test_shared_guid_is_extended_and_reported() -> None:
    document = reading(rss(*(post(n, guid="same", link=f"/{n}") for n in (1, 2, 3))))
    assert [entry.id for entry in document.entries] == [
        f"same https://a.example/{n}" for n in (1, 2, 3)
    ]
    assert document.problems == (
        "3 entries share the id 'same': distinguished by link, title and date",
    )


@pytest.mark.parametrize("link", [None, "https://a.example/status"])
def test_shared_guid_and_link_lose_no_posts(link: str | None) -> None:
    unordered = ids(*(post(n, guid="same", link=link) for n in (1, 2, 3)))
    assert len(set(unordered)) == 3
    # The ids stay the same in another order and next to other posts.
    assert set(ids(*(post(n, guid="same", link=link) for n in (4, 3, 2)))) & set(unordered) == set(
        unordered[1:]
    )


def test_posts_that_differ_only_in_text_get_distinct_ids() -> None:
    texts = (f"<description>{n}</description>" for n in (1, 2))
    parsed = ids(*(post(1, guid="same", more=text) for text in texts))
    assert len(set(parsed)) == 2


def test_unshared_guid_is_not_extended() -> None:
    parsed = ids(
        post(1, guid="a"), post(2, guid="same", link="/2"), post(3, guid="same", link="/3")
    )
    assert parsed == ["a", "same https://a.example/2", "same https://a.example/3"]


@pytest.mark.parametrize("guid", ["https://a.example/blog/", FEED_URL, "A blog", "None", "-"])
def test_guid_equal_to_the_feeds_own_is_ignored(guid: str) -> None:
    assert ids(post(1, guid=guid, link="/1")) == ["https://a.example/1"]


def test_link_to_the_feeds_site_is_ignored_without_a_fragment() -> None:
    (first,) = ids(post(1, link="https://a.example/blog/"))
    assert first in ids(
        post(2, link="https://a.example/blog/"), post(1, link="https://a.example/blog/")
    )
    assert ids(post(1, link="https://a.example/blog/#v1.2")) == ["https://a.example/blog/#v1.2"]


def test_posts_on_one_page_are_identified_by_fragments() -> None:
    parsed = ids(post(1, link="/changes#v1"), post(2, link="/changes#v2"))
    assert parsed == ["https://a.example/changes#v1", "https://a.example/changes#v2"]


def test_long_guid_is_shortened_and_stays_unique() -> None:
    one, other = ids(post(1, guid="a" * 1900 + "1"), post(2, guid="a" * 1900 + "2"))
    assert one != other
    assert len(one) < 500
    assert ids(post(1, guid="a" * 1900 + "1")) == [one]


def test_atom_and_json_ids_are_kept_unchanged() -> None:
    assert [e.id for e in reading(atom("<entry><id>urn:uuid:1</id></entry>")).entries] == [
        "urn:uuid:1"
    ]
    entries = reading(json_feed({"id": 5}, {"id": "https://a.example/ü"})).entries
    assert [entry.id for entry in entries] == ["5", "https://a.example/ü"]


def test_edit_changes_the_content_but_not_the_id() -> None:
    before, after = (
        reading(rss(item(f"<description>{text}</description>"))).entries[0] for text in ("a", "b")
    )
    assert before.id == after.id
    assert before.content != after.content


def test_dates_and_comment_links_are_not_content() -> None:
    entry = reading(
        rss(item("<pubDate>Mon, 01 Apr 2024 10:00:00 GMT</pubDate><comments>/c</comments>"))
    ).entries[0]
    assert entry.content == {"title": "Post 1"}
