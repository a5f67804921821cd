"""Invariants of decisions: a target's next state is consistent after any fetch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from crawler.items import SEEN, Fetched, Kind, Outcome, Target, Validators
from crawler.utils.time import EPOCH
from pipelines.change_detection import MINUTE, Rules, decide, stated_minute
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
RESPONSE_OUTCOMES = [None, Outcome.NOT_MODIFIED, Outcome.GONE, Outcome.ERROR, Outcome.BLOCKED]
FETCHES = st.builds(
    Fetched,
    TARGETS,
    st.just(NOON),
    HASHES,
    outcome=st.sampled_from(RESPONSE_OUTCOMES),
    size=COUNTS,
    raw_hash=HASHES,
    content_hash=HASHES,
)


@given(FETCHES, RULES)
def test_every_visit_schedules_another(page: Fetched, rules: Rules) -> None:
    assert decide(page, rules).next_visit > NOON


@given(FETCHES, RULES)
def test_outcome_of_response_is_kept(page: Fetched, rules: Rules) -> None:
    is_premature = page.outcome is Outcome.NOT_MODIFIED and page.target.content_hash is None
    if page.outcome is not None:
        expected = Outcome.ERROR if is_premature else page.outcome
        assert decide(page, rules).outcome is expected


@given(FETCHES, RULES)
def test_seen_page_resets_counters(page: Fetched, rules: Rules) -> None:
    visit = decide(page, rules)
    if visit.outcome in SEEN:
        assert (visit.consecutive_errors, visit.consecutive_gone, visit.gone) == (0, 0, False)


@given(FETCHES, RULES)
def test_only_known_page_can_change(page: Fetched, rules: Rules) -> None:
    visit = decide(page, rules)
    first = page.target.content_hash is None
    assert not (visit.changed and first)
    assert not (visit.outcome is Outcome.NEW and not first)


@given(FETCHES, RULES)
def test_page_is_gone_only_after_confirmations(page: Fetched, rules: Rules) -> None:
    visit = decide(page, rules)
    assert visit.gone == (
        visit.outcome is Outcome.GONE and visit.consecutive_gone >= rules.gone_confirmations
    )


@given(FETCHES, RULES)
def test_decision_is_deterministic(page: Fetched, rules: Rules) -> None:
    one, other = decide(page, rules), decide(page, rules)
    other.id = one.id
    assert one == other


@given(FETCHES, st.text())
def test_any_last_modified_text_raises_no_error(page: Fetched, written: str) -> None:
    page.validators = Validators(last_modified=written)
    assert 0 <= stated_minute(page) <= (NOON - EPOCH) // MINUTE
