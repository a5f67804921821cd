"""Effects of a fetch on its target: outcome, sizes, state, and next visit."""

from __future__ import annotations

from datetime import datetime, timedelta

import numpy as np
import pytest

from crawler.items import Fetched, Kind, Outcome, Target, Visit
from crawler.storage.targets import MINUTE
from crawler.utils.time import EPOCH
from pipelines.change_detection import Rules, decide, field_history
from pipelines.storage import exported
from schedules.history import FIELD_CHANGE, History
from schedules.intervals import Intervals
from tests.unit.pages import NOON, fetched, target

RULES = Rules(
    list_pages=Intervals(usual_hours=6, error_hours=1, longest_hours=100),
    items=Intervals(usual_hours=24, error_hours=1, longest_hours=100),
    gone_confirmations=3,
)


def known_item(**state: object) -> Target:
    """Return an item that was fetched before."""
    return target(
        **({"content_hash": "h1", "raw_hash": "r1", "selector_digest": "s1", "size": 100} | state)
    )


def visit(page: Fetched) -> Visit:
    """Return the visit that is decided for a fetch."""
    return decide(page, RULES)


def hours(moment: datetime) -> float:
    """Return the hours since the fetch."""
    return (moment - NOON) / timedelta(hours=1)


@pytest.mark.parametrize(
    ("page", "outcome", "due"),
    [
        (fetched(content_hash="h1"), Outcome.NEW, 24),
        (fetched(known_item(), content_hash="h1"), Outcome.UNCHANGED, 24),
        (fetched(known_item(), content_hash="h2"), Outcome.CHANGED, 24),
        (fetched(known_item(), outcome=Outcome.NOT_MODIFIED, status=304), Outcome.NOT_MODIFIED, 24),
        (fetched(known_item(), outcome=Outcome.GONE, status=404), Outcome.GONE, 24),
        (fetched(known_item(consecutive_errors=2), outcome=Outcome.ERROR), Outcome.ERROR, 1),
        (fetched(known_item(), outcome=Outcome.BLOCKED, status=403), Outcome.BLOCKED, 1),
        (fetched(target(Kind.LIST), content_hash="h1"), Outcome.NEW, 6),
    ],
    ids=["new", "unchanged", "changed", "304", "gone", "error", "blocked", "new list page"],
)
def test_outcome_determines_next_visit(page: Fetched, outcome: Outcome, due: float) -> None:
    decided = visit(page)
    assert decided.outcome is outcome
    assert hours(decided.next_visit) == due


def test_status_304_is_an_error_if_the_page_was_never_read() -> None:
    decided = visit(fetched(outcome=Outcome.NOT_MODIFIED, status=304))
    assert decided.outcome is Outcome.ERROR
    assert decided.reason == "status 304, but the page was never read"
    assert decided.history is None
    assert decided.consecutive_errors == 1


@pytest.mark.parametrize(
    ("digest", "raw", "outcome", "reason"),
    [
        ("s2", "r1", Outcome.UNCHANGED, "the site definition was edited"),
        ("s2", "r2", Outcome.CHANGED, None),
        ("s1", "r1", Outcome.CHANGED, None),
    ],
    ids=["edited, same page", "edited, other page", "not edited"],
)
def test_edited_site_definition_is_not_a_page_change(
    digest: str, raw: str, outcome: Outcome, reason: str | None
) -> None:
    decided = visit(fetched(known_item(), content_hash="h2", selector_digest=digest, raw_hash=raw))
    assert (decided.outcome, decided.reason) == (outcome, reason)


@pytest.mark.parametrize(
    ("before", "gone", "due", "reason"),
    [
        (0, False, 24, "1 of 3 confirmations"),
        (1, False, 24, "2 of 3 confirmations"),
        (2, True, 100, None),
        (9, True, 100, None),
    ],
)
def test_page_is_gone_after_all_confirmations(
    before: int, gone: bool, due: float, reason: str | None
) -> None:
    decided = visit(fetched(known_item(consecutive_gone=before), outcome=Outcome.GONE))
    assert (decided.gone, hours(decided.next_visit), decided.reason) == (gone, due, reason)
    assert decided.consecutive_gone == before + 1


def test_one_gone_confirmation_can_be_enough() -> None:
    rules = Rules(RULES.list_pages, RULES.items, gone_confirmations=1)
    assert decide(fetched(outcome=Outcome.GONE), rules).gone


def test_returning_page_resets_counters() -> None:
    before = known_item(consecutive_gone=2, consecutive_errors=4)
    decided = visit(fetched(before, content_hash="h1"))
    assert (decided.consecutive_gone, decided.consecutive_errors, decided.gone) == (0, 0, False)


@pytest.mark.parametrize(
    ("outcome", "before", "due"),
    [
        *[(Outcome.ERROR, *row) for row in [(2, 1), (3, 2), (4, 4), (8, 64), (9, 100), (999, 100)]],
        *[(Outcome.BLOCKED, *row) for row in [(0, 1), (1, 2), (2, 4), (6, 64), (7, 100)]],
    ],
)
def test_consecutive_errors_back_off_exponentially(
    outcome: Outcome, before: int, due: float
) -> None:
    page = fetched(known_item(consecutive_errors=before), outcome=outcome, reason="status 500")
    decided = visit(page)
    assert (hours(decided.next_visit), decided.consecutive_errors) == (due, before + 1)
    assert decided.reason == "status 500"


def test_error_does_not_change_gone_count() -> None:
    decided = visit(fetched(known_item(consecutive_gone=2), outcome=Outcome.ERROR))
    assert decided.consecutive_gone == 2


@pytest.mark.parametrize(
    ("get_size", "update_size"),
    [(3500, 10), (4600, 100), (15000, 200), (13000, 20), (5000, 35), (8900, 20), (17800, 10)],
)
@pytest.mark.parametrize("sign", [1, -1], ids=["longer than before", "shorter than before"])
def test_sizes_match_table_of_paper(get_size: int, update_size: int, sign: int) -> None:
    before = known_item(size=get_size - sign * update_size)
    decided = visit(fetched(before, content_hash="h2", size=get_size))
    assert (decided.fetched.size, decided.update_size, int(decided.changed)) == (
        get_size, update_size, 1,
    )  # fmt: skip


def test_change_of_equal_size_has_update_size_0() -> None:
    decided = visit(fetched(known_item(size=100), content_hash="h2", size=100))
    assert (decided.update_size, decided.changed) == (0, True)


@pytest.mark.parametrize(
    "page",
    [
        fetched(content_hash="h1", size=500),
        fetched(known_item(), outcome=Outcome.NOT_MODIFIED, size=0),
        fetched(known_item(), outcome=Outcome.GONE, size=500),
        fetched(known_item(), outcome=Outcome.ERROR, size=500),
    ],
    ids=["first visit", "304", "gone", "error"],
)
def test_update_size_is_0_without_two_contents(page: Fetched) -> None:
    assert visit(page).update_size == 0


@pytest.mark.parametrize(
    ("outcome", "changed", "new_content"),
    [
        (Outcome.NEW, False, True),
        (Outcome.CHANGED, True, True),
        (Outcome.UNCHANGED, False, False),
        (Outcome.NOT_MODIFIED, False, False),
        (Outcome.GONE, False, False),
    ],
)
def test_first_visit_has_new_content_but_is_not_a_change(
    outcome: Outcome, changed: bool, new_content: bool
) -> None:
    decided = Visit(fetched(), outcome, NOON)
    assert (decided.changed, decided.has_new_content) == (changed, new_content)


@pytest.mark.parametrize(
    ("kind", "outcome", "links", "alias", "compared"),
    [
        (Kind.LIST, Outcome.NEW, (), None, True),
        (Kind.LIST, Outcome.UNCHANGED, (), None, False),
        (Kind.ITEM, Outcome.UNCHANGED, (), None, True),
        (Kind.ITEM, Outcome.NEW, None, None, False),
        (Kind.LIST, Outcome.NEW, (), "https://shop.example/other", False),
    ],
    ids=["new list", "same list", "followed item", "item not followed", "alias"],
)
def test_links_are_compared_only_if_they_may_be_new(
    kind: Kind,
    outcome: Outcome,
    links: tuple[()] | None,
    alias: str | None,
    compared: bool,
) -> None:
    page = fetched(target(kind), links=links)
    assert Visit(page, outcome, NOON, alias_of=alias).has_new_links is compared


def test_exported_item_has_url_outcome_time_and_fields() -> None:
    page = fetched(target(categories=("tea", "new")), content={"title": "Green tea", "price": 3})
    assert exported(Visit(page, Outcome.NEW, NOON)) == {
        "url": "https://shop.example/item/1",
        "categories": ["tea", "new"],
        "outcome": "new",
        "at": "2024-05-01T12:00:00+00:00",
        "title": "Green tea",
        "price": 3,
    }


def test_exported_outcome_is_a_plain_string() -> None:
    assert type(exported(Visit(fetched(), Outcome.CHANGED, NOON))["outcome"]) is str


NOON_MINUTES = (NOON - EPOCH) // MINUTE
PAST = History(NOON_MINUTES - 600, NOON_MINUTES - 60)


def changed_fields(old: dict[str, object], new: dict[str, object], **state: object) -> Visit:
    """Return the visit to an item whose fields changed."""
    page = fetched(known_item(**{"history": PAST} | state), content_hash="h2", content=new)
    decided = visit(page)
    decided.field_history = field_history(decided, old)
    return decided


def test_a_visit_stores_which_fields_changed() -> None:
    old, new = {"title": "a", "price": 1}, {"title": "a", "price": 2, "stock": 3}
    first = changed_fields(old, new).field_history
    assert first is not None
    assert (first.names, first.since) == (("price", "stock"), PAST.until)
    assert np.frombuffer(first.changes, FIELD_CHANGE).tolist() == [(NOON_MINUTES, 0b11)]
    again = changed_fields(new, new | {"stock": 4}, field_history=first).field_history
    assert again is not None
    assert np.frombuffer(again.changes, FIELD_CHANGE)["fields"].tolist() == [0b11, 0b10]


@pytest.mark.parametrize(
    ("new", "state"),
    [
        ({"price": 2}, {}),
        ({"title": "b", "price": 2}, {"history": None}),
        ({"title": "b", "price": 2}, {"selector_digest": "edited"}),
        ({"title": "b", "price": 2}, {"kind": Kind.LIST}),
    ],
    ids=["one field", "first visit", "edited definition", "list"],
)
def test_some_changes_store_no_field_history(
    new: dict[str, object], state: dict[str, object]
) -> None:
    assert changed_fields({"title": "a", "price": 1}, new, **state).field_history is None
