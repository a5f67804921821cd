"""Invariants of the score, compared with a minute-by-minute walk through the period."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import astuple, dataclass, replace
from itertools import zip_longest
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedules.evaluation.score import Figures, Score, score
from schedules.history import Times

# The walk counts minutes and starts before midnight; most minutes are not exact in hours.
LENGTH = 40
MIDNIGHT = 17
START = 24 * (7 * 2822 + 4) - MIDNIGHT / 60
MOMENTS = st.lists(st.integers(-5, LENGTH + 5), max_size=12).map(sorted)


@dataclass(frozen=True)
class Page:
    """A page of the walk, in minutes from the start of the period."""

    changes: list[int]
    visits: list[int]
    end: int | None
    source: int


@dataclass
class Walked:
    """Results of the walk for one page, in minutes."""

    minutes: int
    visits: list[int]
    changes: list[int]
    delays: list[int]
    all_delays: list[int]
    lost: int = 0
    stale: int = 0
    age: float = 0


ENDS = st.none() | st.integers(-5, LENGTH + 5)
PAGES = st.lists(st.builds(Page, MOMENTS, MOMENTS, ENDS, st.integers(0, 3)), max_size=8)


def walk(page: Page) -> Walked:
    """Check each minute of the period, and follow each change to its visit."""
    end = max(0, LENGTH if page.end is None else min(page.end, LENGTH))
    changes = [at for at in page.changes if 0 < at <= end]
    visits = [at for at in page.visits if 0 <= at <= end] if end else []
    walked = Walked(end, visits, changes, [], [])
    for minute in range(end):
        unseen = [c for c in changes if c <= minute and not any(c <= v <= minute for v in visits)]
        walked.stale += bool(unseen)
        walked.age += minute + 0.5 - unseen[0] if unseen else 0
    for at, following in zip_longest(changes, changes[1:]):
        visit = next((v for v in visits if v >= at), None)
        walked.all_delays.append((end if visit is None else visit) - at)
        if following is not None and not any(at <= v < following for v in visits):
            walked.lost += 1
        elif visit is not None:
            walked.delays.append(visit - at)
    return walked


def figures(walked: list[Walked]) -> Figures:
    """Return the figures that the walk gives for these pages."""
    changes = sum(len(page.changes) for page in walked)
    return Figures(
        freshness=mean([1 - page.stale / page.minutes for page in walked]),
        age_days=mean([page.age / page.minutes / 60 / 24 for page in walked]),
        delay_h=mean([delay / 60 for page in walked for delay in page.delays]),
        delay_all_h=mean([delay / 60 for page in walked for delay in page.all_delays]),
        lost_share=sum(page.lost for page in walked) / changes if changes else math.nan,
    )


def mean(values: list[float]) -> float:
    """Return the mean of the values that are not NaN, or NaN if there are none."""
    numbers = [value for value in values if not math.isnan(value)]
    return fmean(numbers) if numbers else math.nan


def times(minutes: list[list[int]]) -> Times:
    """Convert minutes from the start of the period to hours since 1970."""
    flat = np.array([at for some in minutes for at in some], np.float64)
    return Times(np.cumsum([0, *map(len, minutes)]), START + flat / 60)


def scored(pages: list[Page]) -> Score:
    """Return the score of these pages."""
    return score(
        times([page.changes for page in pages]),
        times([page.visits for page in pages]),
        np.array([page.source for page in pages], np.int64),
        np.array([math.inf if page.end is None else START + page.end / 60 for page in pages]),
        START,
        START + LENGTH / 60,
    )


def assert_equal(one: Figures, other: Figures) -> None:
    assert astuple(one) == pytest.approx(astuple(other), abs=1e-9, nan_ok=True)


@given(PAGES)
def test_page_results_match_the_walk(pages: list[Page]) -> None:
    result, walked = scored(pages), [walk(page) for page in pages]
    assert result.visits.tolist() == [len(page.visits) for page in walked]
    assert result.changes.tolist() == [len(page.changes) for page in walked]
    assert result.captured.tolist() == [len(page.delays) for page in walked]
    assert result.lost.tolist() == [page.lost for page in walked]
    for hours, expected in (
        (result.watched_h, [page.minutes / 60 for page in walked]),
        (result.stale_h, [page.stale / 60 for page in walked]),
        (result.age_h2, [page.age / 60 / 60 for page in walked]),
        (result.delay_h, [sum(page.delays) / 60 for page in walked]),
        (result.delay_all_h, [sum(page.all_delays) / 60 for page in walked]),
    ):
        assert hours == pytest.approx(expected, abs=1e-9)


@given(PAGES)
def test_totals_match_the_walk(pages: list[Page]) -> None:
    result = scored(pages).totals()
    walked = [(page.source, walk(page)) for page in pages]
    watched = [(source, page) for source, page in walked if page.minutes]
    sources = {source for source, _ in watched}
    assert result.pages == len(watched)
    assert result.sources == len(sources)
    assert result.changes == sum(len(page.changes) for _, page in watched)
    assert result.visits == sum(len(page.visits) for _, page in watched)
    assert result.never_visited == sum(not page.visits for _, page in watched)
    assert_equal(result.by_page, figures([page for _, page in watched]))
    parts = [astuple(figures([page for of, page in watched if of == source])) for source in sources]
    columns = list(zip(*parts, strict=True)) or [(math.nan,)] * 5
    assert_equal(result.by_source, Figures(*(mean(list(column)) for column in columns)))


@given(PAGES)
def test_load_counts_visits_per_hour_and_day(pages: list[Page]) -> None:
    load = scored(pages).load
    visits = [at - MIDNIGHT for page in pages for at in walk(page).visits]
    hours, days = (Counter(at // length for at in visits) for length in (60, 60 * 24))
    assert load.per_day == pytest.approx(len(visits) / (LENGTH / 60 / 24))
    assert load.busiest_hour == max(hours.values(), default=0)
    assert load.busiest_day == max(days.values(), default=0)
    if visits:
        assert load.hour_peak == pytest.approx(load.busiest_hour / (len(visits) / (LENGTH / 60)))
    else:
        assert math.isnan(load.hour_peak)


@given(PAGES)
def test_score_does_not_depend_on_order(pages: list[Page]) -> None:
    turned = [
        replace(page, changes=page.changes[::-1], visits=page.visits[::-1]) for page in pages[::-1]
    ]
    one, other = scored(pages).totals(), scored(turned).totals()
    assert_equal(one.by_page, other.by_page)
    assert_equal(one.by_source, other.by_source)


@given(PAGES, st.integers(0, LENGTH))
def test_additional_visit_never_worsens_the_score(pages: list[Page], at: int) -> None:
    before = scored(pages)
    after = scored([replace(page, visits=sorted([*page.visits, at])) for page in pages])
    assert (after.stale_h <= before.stale_h + 1e-9).all()
    assert (after.age_h2 <= before.age_h2 + 1e-9).all()
    assert (after.lost <= before.lost).all()


@given(PAGES)
def test_visits_at_changes_have_no_delay(pages: list[Page]) -> None:
    # The last bits of the two times may differ, for example if one time is a sum.
    changes = times([page.changes for page in pages])
    visits = Times(changes.first, np.nextafter(changes.at, 0))
    ends = np.full(len(pages), np.inf)
    result = score(changes, visits, np.zeros(len(pages), np.int64), ends, START, START + 1)
    assert not result.stale_h.any()
    assert not result.delay_all_h.any()
