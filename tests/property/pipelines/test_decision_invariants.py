"""Invariants of decisions: a target's next state is consistent after any fetch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from crawler.items import SEEN, Fetched, Kind, Outcome, Target, Validators
from pipelines.outcomes import EPOCH, MINUTE, Rules, decide, said
from schedules.intervals import Intervals
from tests.unit.pages import NOON

HASHES = st.sampled_from(["h1", "h2"])
COUNTS = st.integers(0, 50)
HOURS = st.floats(0.01, 1000)
INTERVALS = st.builds(Intervals, HOURS, HOURS, HOURS)
RULES = st.builds(Rules, INTERVALS, INTERVALS, st.integers(1, 5))
TARGETS = st.builds(
    Target,
    st.just("shop"),
    st.just("https://shop.example/item/1"),
    st.sampled_from(Kind),
    content_hash=st.none() | HASHES,
    raw_hash=HASHES,
    size=COUNTS,
    selector_digest=HASHES,
    consecutive_errors=COUNTS,
    consecutive_gone=COUNTS,
)
BY_THE_RESPONSE = [None, Outcome.NOT_MODIFIED, Outcome.GONE, Outcome.ERROR, Outcome.BLOCKED]
FETCHES = st.builds(
    Fetched,
    TARGETS,
    st.just(NOON),
    HASHES,
    outcome=st.sampled_from(BY_THE_RESPONSE),
    size=COUNTS,
    raw_hash=HASHES,
    content_hash=HASHES,
)


@given(FETCHES, RULES)
def test_every_visit_is_followed_by_another(page: Fetched, rules: Rules) -> None:
    assert decide(page, rules).next_visit > NOON


@given(FETCHES, RULES)
def test_what_the_response_decided_stands(page: Fetched, rules: Rules) -> None:
    if page.outcome is not None:
        assert decide(page, rules).outcome is page.outcome


@given(FETCHES, RULES)
def test_a_page_that_was_seen_has_no_errors_and_is_not_gone(page: Fetched, rules: Rules) -> None:
    visit = decide(page, rules)
    if visit.outcome in SEEN:
        assert (visit.consecutive_errors, visit.consecutive_gone, visit.gone) == (0, 0, False)


@given(FETCHES, RULES)
def test_only_a_page_that_was_seen_before_can_change(page: Fetched, rules: Rules) -> None:
    visit = decide(page, rules)
    first = page.target.content_hash is None
    assert not (visit.changed and first)
    assert not (visit.outcome is Outcome.NEW and not first)


@given(FETCHES, RULES)
def test_gone_is_only_what_was_confirmed(page: Fetched, rules: Rules) -> None:
    visit = decide(page, rules)
    assert visit.gone == (
        visit.outcome is Outcome.GONE and visit.consecutive_gone >= rules.gone_confirmations
    )


@given(FETCHES, RULES)
def test_a_decision_depends_on_nothing_else(page: Fetched, rules: Rules) -> None:
    one, other = decide(page, rules), decide(page, rules)
    other.id = one.id
    assert one == other


@given(FETCHES, st.text())
def test_whatever_a_server_writes_for_a_date_is_no_error(page: Fetched, written: str) -> None:
    page.validators = Validators(last_modified=written)
    assert 0 <= said(page) <= (NOON - EPOCH) // MINUTE
