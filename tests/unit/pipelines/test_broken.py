"""Detection of broken pages, as opposed to changed pages."""

from __future__ import annotations

import pytest

from crawler.items import Breakage, Broken, Fetched, Kind, Link, Outcome
from pipelines.broken import all_lost, changed_digest, login_text, lost_fields, shrunk, still_broken
from tests.unit.pages import NOON, SITE, fetched, target

ITEMS = [f"{SITE}item/{i}" for i in range(20)]
LISTS = [f"{SITE}category/{i}/" for i in range(20)]


def list_page(items: int, lists: int = 0) -> Fetched:
    links = [Link(url, Kind.ITEM) for url in ITEMS[:items]]
    links += [Link(url, Kind.LIST) for url in LISTS[:lists]]
    return fetched(target(Kind.LIST, content_hash="h"), links=tuple(links))


@pytest.mark.parametrize(
    ("before", "left", "is_broken"),
    [(20, 10, True), (20, 11, False), (20, 0, True), (10, 5, True), (9, 0, False), (10, 6, False)],
)
def test_list_page_that_lost_half_of_ten_item_links_is_broken(
    before: int, left: int, is_broken: bool
) -> None:
    old = {"links": [*ITEMS[:before], *LISTS]}
    found = shrunk(list_page(left, lists=20), old, lambda url: "/item/" in url)
    assert (found is not None) is is_broken
    if found is not None:
        assert found.text == f"the list page has {left} of {before} links to items"


def test_lost_links_to_list_pages_are_not_breakage() -> None:
    old = {"links": [*ITEMS[:4], *LISTS]}
    assert shrunk(list_page(4), old, lambda url: "/item/" in url) is None


def test_lost_fields_only_include_fields_that_had_a_value() -> None:
    old = {"title": "Tea", "price": 0, "tags": ["a"], "note": None, "stock": ""}
    assert lost_fields(old, {"title": "Tea", "price": None, "tags": []}) == ["price", "tags"]
    assert lost_fields(old, {"title": "Cup", "price": 1, "tags": ["b"]}) == []


def test_known_page_that_lost_all_fields_is_broken() -> None:
    names = [f"field{i}" for i in range(7)]
    nothing = fetched(target(content_hash="h"), outcome=Outcome.ERROR, content=dict.fromkeys(names))
    found = all_lost(nothing)
    assert found is not None
    assert found.text.startswith("nothing found for field0, field1, field2")
    assert still_broken(fetched(outcome=Outcome.NOT_MODIFIED, status=304), found) is None
    assert all_lost(fetched(outcome=Outcome.ERROR, content={"title": None})) is None
    assert all_lost(fetched(target(content_hash="h"), outcome=Outcome.ERROR)) is None


@pytest.mark.parametrize(
    ("path", "is_login"),
    [
        ("login", True), ("account/Sign-In", True), ("user/login.php", True), ("_consent/", True),
        ("captcha?next=/item/1", True), ("signin_oidc", True),
        ("item/1?login=1", False), ("item/blogins", False), ("item/2", False),
    ],
)  # fmt: skip
def test_redirect_to_login_page_is_detected(path: str, is_login: bool) -> None:
    page = fetched(target(content_hash="h"), final_url=SITE + path)
    assert (login_text(page) is not None) is is_login


def test_known_redirect_to_login_url_is_not_a_login_page() -> None:
    final = f"{SITE}login/item/1"
    assert login_text(fetched(target(final_url=final), final_url=final)) is None
    assert login_text(fetched()) is None
    asks = (Outcome.ERROR, "asks for a password")
    assert login_text(fetched(stand_in=asks, reason=asks[1])) == asks[1]


@pytest.mark.parametrize(
    ("before", "now", "digest"),
    [
        ({}, {"content": {"stock": 0}}, None),
        ({}, {"content": {"main_text": "Wait"}}, "new"),
        ({"content_hash": "new"}, {"content": {"main_text": "Wait"}}, None),
    ],
)
def test_only_main_texts_are_compared_between_pages(
    before: dict[str, str], now: dict[str, object], digest: str | None
) -> None:
    page = target(**({"content_hash": "old"} | before))
    assert changed_digest(fetched(page, content_hash="new", **now)) == digest


def test_page_stays_broken_until_all_lost_fields_return() -> None:
    before = Broken(Breakage.SELECTOR, NOON, "lost", fields=("price", "stock"))
    none = still_broken(fetched(content={"price": None}), before)
    assert none == before
    half = still_broken(fetched(content={"price": 3, "stock": None}), before)
    assert half is not None
    assert half.fields == ("stock",)
    assert still_broken(fetched(content={"price": 3, "stock": 0}), before) is None
    same = fetched(outcome=Outcome.NOT_MODIFIED, status=304)
    assert still_broken(same, before) == before


def test_list_page_recovers_with_more_than_half_of_its_links() -> None:
    before = Broken(Breakage.SHRUNK, NOON, "shrunk", links=20)
    assert still_broken(list_page(10), before) == before
    assert still_broken(list_page(11), before) is None
