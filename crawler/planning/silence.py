"""Find silent targets and fields from stored histories, and store their alarms."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Sequence
from datetime import datetime, timedelta

import numpy as np

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.items import Kind
from crawler.planning.population import Gathered, are, gather
from crawler.storage import alarms, histories
from crawler.storage.alarms import MAX_ALARMS, Silence
from crawler.storage.client import Database
from crawler.storage.targets import EPOCH
from crawler.utils.text import amount, count
from schedules.estimation.estimate import site_mixtures
from schedules.estimation.rates import Mixtures
from schedules.estimation.silence import (
    MIN_BURSTS,
    Silences,
    allowed_per_target,
    calibrated,
    decided,
    fit_gaps,
    rate_silences,
    shared_from,
    silences,
)
from schedules.history import FieldPasts, Ints, field_pasts
from schedules.population import Population

# Pages whose fields are rated together, and pages from whose fields the model is estimated.
PAGES_AT_ONCE, MAX_SAMPLED_PAGES = 50_000, 20_000
OFF = "silence alarms are off. Set FRESHET_SILENCE_FALSE_ALARMS_PER_WEEK to a number greater than 0"


async def check_silences(
    db: Database, config: Config, now: datetime, spiders: Sequence[str]
) -> int:
    """Check all targets of these spiders; store alarms, and return the number of new ones.

    Raises ConfigError if the alarms are off or there are no targets.
    """
    if not config.silence_false_alarms_per_week:
        raise ConfigError(OFF)
    watched = await histories.read(db, now, spiders)
    if not len(watched):
        raise ConfigError("no targets to check. Run scrapy crawl to discover them.")
    hours = (now - EPOCH) / timedelta(hours=1)
    return await store_silences(db, config, await gather(db, watched, config, hours), now)


async def store_silences(
    db: Database,
    config: Config,
    gathered: Gathered,
    now: datetime,
    mixtures: Mixtures | None = None,
) -> int:
    """Store the alarms of all targets of a plan's input; return the number of new ones.

    mixtures: weekly profiles of the sites, if a plan for the same targets has fitted them
    """
    if not config.silence_false_alarms_per_week:
        return 0
    # Run in a thread, because a replan stages its plans at the same time.
    allowed = config.silence_false_alarms_per_week
    silent = await asyncio.to_thread(silences_of, gathered, allowed, mixtures)
    return await alarms.record_silences(db, gathered.watched.spiders, silent, now)


def silences_of(
    gathered: Gathered, false_alarms_per_week: float, fitted: Mixtures | None = None
) -> list[Silence]:
    """Return silent feeds, silent pages and fields, and sites with many of them.

    fitted: weekly profiles of the sites, if they are known and all targets are of one kind
    """
    feeds = are(gathered.watched, Kind.FEED)
    silent: list[Silence] = []
    for rows, combined in ((np.flatnonzero(feeds), False), (np.flatnonzero(~feeds), True)):
        if not len(rows):
            continue
        population, past = gathered.population, gathered.histories
        if len(rows) < len(population):
            population, past = population.of(rows), past.of(rows)
        is_fitted = fitted is not None and len(rows) == len(gathered.watched)
        mixtures = fitted if fitted and is_fitted else site_mixtures(population, past)
        result = silences(population, past, mixtures, false_alarms_per_week, combined=combined)
        silent += silent_targets(gathered, rows, population, result)
        if combined:
            silent += silent_fields(gathered, mixtures, false_alarms_per_week, silent)
    return silent


def silent_targets(
    gathered: Gathered, rows: Ints, population: Population, result: Silences
) -> Iterator[Silence]:
    """Yield the silences of some targets, and of sites with many silent targets.

    rows: rows of the population's targets in `gathered`
    """
    for number in np.flatnonzero(result.shared).tolist():
        own = np.flatnonzero(result.silent & (population.site == number))
        rated = int(np.count_nonzero(result.ratings.rated & (population.site == number)))
        since = _time(result.ratings.since[own].max())
        expected = _time(result.ratings.expected[own].max())
        text = (
            f"{count(len(own), 'page')} of {rated:,} with known gaps stopped changing, the last at "
            f"{since:%Y-%m-%d %H:%M} UTC"
        )
        spider, chance = gathered.watched.spiders[number], float(result.chance[own].max())
        yield Silence(spider, "", since, expected, chance, text)
    single = np.flatnonzero(result.silent & ~result.shared[population.site])
    for i in single[np.argsort(result.chance[single])][:MAX_ALARMS].tolist():
        yield _of_target(gathered, result, int(rows[i]), i)


def silent_fields(
    gathered: Gathered,
    mixtures: Mixtures,
    false_alarms_per_week: float,
    others: Sequence[Silence],
) -> list[Silence]:
    """Return the silent fields of pages that are not silent, and those of whole sites.

    Each field of a page is rated like a page, by its own changes. The prior and the threshold are
    estimated from a sample, and the fields are rated in parts, so that memory is bounded.

    mixtures: weekly profiles of the sites
    others:   silences of pages and sites, which include those of their fields
    """
    stored = gathered.watched.fields
    step = 1 + len(stored) // MAX_SAMPLED_PAGES
    sample = _fields_of(gathered, np.arange(0, len(stored), step))
    if not len(sample.row):
        return []
    population = gathered.population.of(sample.row)
    prior = fit_gaps(population, sample.histories, mixtures)
    allowed = allowed_per_target(false_alarms_per_week, len(sample.row) * step)
    tail = calibrated(population, sample.histories, mixtures, prior, allowed)
    silent: defaultdict[tuple[str, str], list[Silence]] = defaultdict(list)
    rated: Counter[tuple[str, str]] = Counter()
    for begin in range(0, len(stored), PAGES_AT_ONCE):
        rows = np.arange(begin, min(begin + PAGES_AT_ONCE, len(stored)))
        some = _fields_of(gathered, rows)
        population = gathered.population.of(some.row)
        ratings = rate_silences(population, some.histories, mixtures, prior)
        result = decided(population, ratings, tail, allowed)
        kinds, counts = _kinds_of(gathered, some, np.flatnonzero(ratings.rated))
        for kind, n in zip(kinds, counts, strict=True):
            rated[kind] += n
        for i in np.flatnonzero(result.silent).tolist():
            ((kind,), _) = _kinds_of(gathered, some, np.array([i]))
            silent[kind].append(_of_target(gathered, result, int(some.row[i]), i, kind[1]))
    covered = {(each.spider, each.target) for each in others}
    return [
        each
        for of_site, alarms_of_field in silent.items()
        for each in _combined(alarms_of_field, rated[of_site], covered)
    ]


def _fields_of(gathered: Gathered, rows: Ints) -> FieldPasts:
    stored = gathered.watched.fields.of(rows)
    own = gathered.watched.histories.of(stored.row)
    return field_pasts(stored, own, gathered.histories.of(stored.row), MIN_BURSTS)


def _kinds_of(
    gathered: Gathered, past: FieldPasts, rows: Ints
) -> tuple[list[tuple[str, str]], list[int]]:
    """Return the sites and names of some fields, and the number of each; a pair may repeat."""
    names, spiders = gathered.watched.fields.names, gathered.watched.spiders
    columns = (gathered.watched.spider[past.row], past.name, past.bit)
    distinct, counts = np.unique(np.stack([c[rows] for c in columns]), axis=1, return_counts=True)
    kinds = [(spiders[spider], names[name][bit]) for spider, name, bit in distinct.T.tolist()]
    return kinds, counts.tolist()


def _combined(
    silent: list[Silence], rated: int, covered: Container[tuple[str, str]]
) -> list[Silence]:
    """Return the alarms of one field of a site: one for all pages if there are many.

    rated: number of pages on which the field has known gaps   covered: see `silent_fields`
    """
    first = silent[0]
    if (first.spider, "") in covered:
        return []
    if len(silent) >= int(shared_from(np.array([rated]))[0]):
        since = max(each.since for each in silent)
        text = (
            f"{first.field} of {count(len(silent), 'page')} of {rated:,} with known gaps stopped "
            f"changing, the last at {since:%Y-%m-%d %H:%M} UTC"
        )
        expected = max(each.expected_at for each in silent)
        chance = max(each.chance for each in silent)
        return [Silence(first.spider, "", since, expected, chance, text, first.field)]
    own = [each for each in silent if (each.spider, each.target) not in covered]
    return sorted(own, key=lambda each: each.chance)[:MAX_ALARMS]


def _of_target(gathered: Gathered, result: Silences, row: int, i: int, field: str = "") -> Silence:
    spider, _, url = gathered.watched.ids[row].partition(" ")
    since, expected = _time(result.ratings.since[i]), _time(result.ratings.expected[i])
    chance = float(result.chance[i])
    text = (
        f"no change since {since:%Y-%m-%d %H:%M} UTC, expected by {expected:%Y-%m-%d %H:%M}; "
        f"chance {amount(chance)}"
    )
    text = f"{field}: {text}" if field else text
    return Silence(spider, url, since, expected, chance, text, field)


def _time(hours: float) -> datetime:
    """Return a time given in hours since 1970, to the minute."""
    return EPOCH + timedelta(minutes=round(float(hours) * 60))
