"""The text, date, and bands by which posts are compared."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import pytest

from crawler.dedup.compared import is_record, text_of
from crawler.dedup.posts import Candidate, created_at
from crawler.dedup.sketch import Sketch
from crawler.errors import WrapperError
from crawler.extract.site_definition import Wrapper
from crawler.storage.dedup.signatures import (
    KNOWN_SECONDS,
    MAX_KNOWN_BANDS,
    MAX_KNOWN_OWNERS,
    KnownOwners,
)

SEEN = datetime(2026, 3, 2, tzinfo=UTC)
BOOK = {"title": "It", "price": {"amount": 9.5, "currency": "GBP"}, "image": "https://x.test/a.png"}


def test_compared_text_is_title_and_main_text() -> None:
    assert text_of("Tea", "Grown in rows.", {"title": "Tea", "author": "Ann"}, None) == (
        "Tea\nGrown in rows."
    )


def test_without_main_text_all_fields_except_links_are_compared() -> None:
    text = text_of("It", None, BOOK, None)
    assert text == 'It\n{"amount": 9.5, "currency": "GBP"}'
    assert is_record(None, None, text)


def test_site_definition_selects_compared_fields() -> None:
    fields = BOOK | {"blurb": "A clown.", "tags": ["horror", "town"], "stock": 3, "none": None}
    names = ("blurb", "tags", "stock", "none", "absent", "main_text")
    assert text_of("It", "Text.", fields, names) == "A clown.\nhorror town\n3\nText."
    assert not is_record(None, names, "A clown.")


def test_short_main_text_is_not_a_record() -> None:
    assert not is_record("Comments", None, "Title\nComments")


@pytest.mark.parametrize(
    ("published", "created"),
    [
        (None, SEEN),
        (SEEN - timedelta(days=9), SEEN - timedelta(days=9)),
        (SEEN + timedelta(minutes=59), SEEN),
        (SEEN + timedelta(days=1), SEEN),
        (datetime(1970, 1, 1, tzinfo=UTC), SEEN),
    ],
)
def test_implausible_date_is_ignored(published: datetime | None, created: datetime) -> None:
    assert created_at(published, SEEN) == created


def owned(post: str, bands: Iterable[int]) -> dict[int, Candidate]:
    """Return an owner of bands, by band."""
    return dict.fromkeys(bands, Candidate(post, SEEN, Sketch({})))


def test_latest_known_owners_are_kept() -> None:
    known, first = KnownOwners(lambda: 0.0), owned("a", [1, 2])
    known.add(first)
    assert known.of(frozenset({2, 3})) == {2: first[2].sketch}
    known.discard([2, 3])
    assert not known.of(frozenset({2, 3}))
    for start in (10, MAX_KNOWN_BANDS):
        assert known.of(frozenset({1}))
        known.add(owned("b", range(start, start + MAX_KNOWN_BANDS // 2)))
    assert not known.of(frozenset({1}))


def test_known_owners_are_few_even_if_each_has_one_band() -> None:
    known = KnownOwners(lambda: 0.0)
    for band in range(MAX_KNOWN_OWNERS):
        known.add(owned(str(band), [band]))
    kept = known.of(frozenset(range(MAX_KNOWN_OWNERS)))
    assert MAX_KNOWN_OWNERS // 2 <= len(kept) <= MAX_KNOWN_OWNERS


def test_known_owners_are_forgotten_after_a_minute() -> None:
    # Another process may have edited them.
    now = [0.0]
    known = KnownOwners(lambda: now[0])
    known.add(owned("a", [1]))
    now[0] = KNOWN_SECONDS / 2
    assert known.of(frozenset({1}))
    known.add(owned("b", [2]))
    now[0] = KNOWN_SECONDS
    assert not known.of(frozenset({1}))
    assert known.of(frozenset({2}))
    now[0] = 3 * KNOWN_SECONDS
    assert not known.of(frozenset({2}))


def site(**keys: object) -> Wrapper:
    given = {"name": "x", "start_urls": ["https://x.test/"], "item_pages": "/i/"}
    return Wrapper.of(given | keys, "x.toml")


def test_site_definition_configures_duplicate_comparison() -> None:
    assert (site().duplicates, site().compared) == (True, None)
    assert site(duplicates=False).duplicates is False
    assert site(duplicates="blurb").compared == ("blurb",)
    named = site(duplicates=["title", "blurb"], fields={"blurb": "p"})
    assert named.compared == ("title", "blurb")


@pytest.mark.parametrize(
    ("duplicates", "cause"),
    [
        (["blurp"], "duplicates: 'blurp' is not a field of this site definition"),
        ([], "the list is empty"),
    ],
)
def test_invalid_duplicates_setting_is_rejected(duplicates: list[str], cause: str) -> None:
    with pytest.raises(WrapperError, match=cause):
        site(duplicates=duplicates, fields={"blurb": "p"})
