"""What the log says about list pages: how much they show, and when they stop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedules.allocation.signals import Coverage, one_source_each
from schedules.allocation.trust import (
    LOST_MISSES,
    MAX_RECALL,
    SAME_VISIT,
    Learned,
    Shown,
    Trust,
    flag_scale,
    learned,
)
from schedules.history import MINUTES, Floats, Histories, Ints, Times, offsets
from schedules.schedule import WEEK_HOURS

NOW = 490_000.0
BEGUN = NOW - 6 * WEEK_HOURS
ITEMS = 40
RATE = 2.0 / WEEK_HOURS
SITE = np.zeros(1, np.int64)


def times(rows: list[Floats]) -> Times:
    """Return the times of some rows."""
    return Times(offsets(np.array([len(row) for row in rows])), np.concatenate([*rows, []]))


class Crawl:
    """A list page that is looked at every 6 hours, and items that are polled every two days.

    recall:  share of the changes that the list shows at its next visit
    until:   time after which it shows none
    """

    def __init__(self, recall: float, until: float = NOW, seed: int = 0, every: float = 48) -> None:
        rng = np.random.default_rng(seed)
        looks = np.arange(BEGUN, NOW, 6.0)
        first, after, by, shown = [0], list[float](), list[float](), list[Floats]()
        for _ in range(ITEMS):
            at = np.sort(rng.uniform(BEGUN, NOW - 1, rng.poisson(RATE * (NOW - BEGUN))))
            is_shown = (rng.random(len(at)) < recall) & (at < until)
            place = np.searchsorted(looks, at[is_shown])
            flags = np.unique(looks[place[place < len(looks)]])
            polls = np.arange(BEGUN + rng.uniform(0, every), NOW, every)
            # A flag makes the item due at once: the poll comes a moment later.
            visits = np.unique(np.concatenate([[BEGUN], polls, flags + 0.5 / MINUTES]))
            place = np.searchsorted(visits, at)
            found = np.unique(place[place < len(visits)])
            after += visits[found - 1].tolist()
            by += visits[found].tolist()
            first.append(len(by))
            shown.append(flags)
        n = ITEMS + 1
        minutes = [np.floor(np.array(each) * MINUTES) / MINUTES for each in (after, by)]
        self.histories = Histories(
            np.full(n, BEGUN), np.full(n, NOW), np.append(first, first[-1]), *minutes
        )
        self.coverage = Coverage(
            np.array([ITEMS]), np.array([0, ITEMS]), np.arange(ITEMS), np.zeros(ITEMS)
        )
        self.shown = Shown(times(shown), np.full(ITEMS, BEGUN), times([looks]))

    def learned(self, now: float = NOW) -> Learned:
        return learned(self.coverage, self.histories, self.shown, SITE, now)

    def recall(self) -> float:
        return float(self.learned().judged().recall(SITE)[0])


@pytest.mark.parametrize("recall", [0.0, 0.25, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("every", [24.0, 96.0])
def test_recall_is_learned_from_what_visits_found(recall: float, every: float) -> None:
    found = np.mean([Crawl(recall, seed=seed, every=every).recall() for seed in range(4)])
    assert found == pytest.approx(recall, abs=0.1)


def test_a_list_that_stops_showing_changes_loses_its_trust() -> None:
    crawl = Crawl(0.9, until=NOW - WEEK_HOURS)
    result = crawl.learned()
    assert result.is_lost.all()
    assert result.judged().misses[0] == LOST_MISSES
    assert result.judged().hits[0] == 0
    assert crawl.recall() < 0.1
    assert not len(result.to_audit(crawl.coverage, crawl.histories, NOW)), "it is known"
    assert not Crawl(0.9).learned().is_suspect.any()


def test_items_of_a_silent_list_are_audited() -> None:
    crawl = Crawl(0.95, until=NOW - WEEK_HOURS)
    # The items were not polled since the list is silent, so nothing has been missed yet.
    past, silent = crawl.histories, NOW - WEEK_HOURS
    kept = past.by < silent
    row = np.repeat(np.arange(len(past)), np.diff(past.first))
    first = offsets(np.bincount(row[kept], minlength=len(past)))
    until = np.append(np.full(ITEMS, silent), NOW)
    crawl.histories = Histories(past.since, until, first, past.after[kept], past.by[kept])
    result = crawl.learned()
    assert result.is_suspect.all()
    assert not result.is_lost.any()
    audited = result.to_audit(crawl.coverage, crawl.histories, NOW)
    assert len(audited) == 6
    changes = np.diff(first)
    assert changes[audited].min() >= np.sort(changes[:ITEMS])[-6]


def test_a_list_is_not_blamed_for_changes_before_it_showed_the_item() -> None:
    crawl = Crawl(1.0)
    crawl.shown = Shown(times([np.empty(0)] * ITEMS), np.full(ITEMS, NOW), crawl.shown.looks)
    trust = crawl.learned().trust
    assert trust.hits.sum() == trust.misses.sum() == 0


def test_a_list_is_not_blamed_for_changes_after_its_last_visit() -> None:
    crawl = Crawl(0.0)
    assert crawl.learned().trust.misses.sum() > 100
    crawl.histories.until[ITEMS] = BEGUN
    assert crawl.learned().trust.misses.sum() == 0


def test_a_change_that_a_visit_found_before_the_list_showed_it_is_no_miss() -> None:
    by = NOW - 24
    histories = Histories(
        np.full(2, BEGUN), np.full(2, NOW), np.array([0, 2, 2]),
        np.array([by - 24, by]), np.array([by, by + 20]),
    )  # fmt: skip
    coverage = Coverage(np.array([1]), np.array([0, 1]), np.array([0]), np.zeros(1))
    looks = times([np.array([by - 6, by + 6, by + 23])])
    shows = times([np.array([by + 6])])
    trust = learned(coverage, histories, Shown(shows, np.array([BEGUN]), looks), SITE, NOW).trust
    assert round(trust.hits[0]) == 1
    assert trust.misses[0] == 0, "the second change may be what the list showed"
    shows = times([np.array([by + 6, by + 23])])
    trust = learned(coverage, histories, Shown(shows, np.array([BEGUN]), looks), SITE, NOW).trust
    assert round(trust.hits[0]) == 2


@pytest.mark.parametrize(("minutes", "hits"), [(0, 1), (SAME_VISIT * MINUTES, 1)])
def test_list_and_item_may_be_visited_in_any_order_in_a_minute(minutes: int, hits: int) -> None:
    by = NOW - 24
    histories = Histories(
        np.full(2, BEGUN), np.full(2, NOW), np.array([0, 1, 1]), np.array([by - 24]), np.array([by])
    )
    coverage = Coverage(np.array([1]), np.array([0, 1]), np.array([0]), np.zeros(1))
    look = times([np.array([by + minutes / MINUTES])])
    result = learned(coverage, histories, Shown(look, np.array([BEGUN]), look), SITE, NOW)
    assert round(result.trust.hits[0]) == hits


def test_without_sources_nothing_is_learned() -> None:
    none = np.empty(0, np.int64)
    histories = Crawl(0.5).histories
    no_times = Times(np.zeros(1, np.int64), np.empty(0))
    result = learned(Coverage.none(), histories, Shown(no_times, none, no_times), none, NOW)
    assert not len(result.judged().recall(none))
    assert not len(result.to_audit(Coverage.none(), histories, NOW))


EDGES = st.lists(
    st.tuples(st.integers(0, 6), st.integers(7, 10), st.sampled_from([0.0, 0.5, 0.9])),
    unique_by=lambda edge: edge[:2], max_size=28,
)  # fmt: skip


@given(edges=EDGES)
def test_each_item_gets_the_source_that_shows_most(edges: list[tuple[int, int, float]]) -> None:
    columns: tuple[Ints, Ints] = tuple(
        np.array([edge[k] for edge in edges], np.int64) for k in range(2)
    )  # type: ignore[assignment]
    item, source = columns
    recall = np.array([edge[2] for edge in edges], np.float64)
    chosen = one_source_each(item, source, recall)
    assert sorted(item[chosen].tolist()) == sorted({edge[0] for edge in edges})
    for row in chosen.tolist():
        same = item == item[row]
        assert recall[row] == recall[same].max()
    coverage = Coverage.of_edges(item[chosen], source[chosen], recall[chosen])
    assert coverage.source.tolist() == sorted(set(source[chosen].tolist()))
    assert (coverage.source[coverage.owner] == source[chosen]).all()


@given(seed=st.integers(0, 50), recall=st.floats(0, 1))
def test_evidence_is_at_most_what_was_found(seed: int, recall: float) -> None:
    crawl = Crawl(recall, seed=seed)
    trust = crawl.learned().trust
    assert 0 <= trust.hits.sum() <= len(crawl.histories.by)
    assert trust.misses.sum() >= 0
    assert 0 <= crawl.recall() <= MAX_RECALL


def test_trust_starts_low_and_follows_the_site() -> None:
    trust, site = Trust.of(3), np.array([0, 0, 1])
    assert trust.recall(site) == pytest.approx([0.25] * 3)
    trust.hits[0] = 40
    of_known, of_sibling, of_other = trust.recall(site)
    assert of_known > of_sibling > 0.8
    assert of_other == pytest.approx(0.25)
    trust.misses[0] = 40
    assert trust.recall(site)[0] == pytest.approx(0.5, abs=0.05)


def test_flags_are_expected_as_they_were_followed_so_far() -> None:
    assert flag_scale(0, 0) == 1
    assert flag_scale(100, 100) == 1
    assert flag_scale(150, 100) == pytest.approx(1.4, abs=0.05)
    assert flag_scale(5000, 100) == 1.5, "at most"
    assert flag_scale(0, 1000) == 0.5, "at least"
