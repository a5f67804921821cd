"""Find silent targets from stored histories, and store their alarms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from crawler.utils.text import count
from schedules.estimation.estimate import site_mixtures
from schedules.estimation.rates import Mixtures
from schedules.estimation.silence import Silences, silences
from schedules.history import Ints

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
    found = list(silent_targets(gathered, config.silence_false_alarms_per_week, mixtures))
    return await alarms.record_silences(db, gathered.watched.spiders, found, now)


def silent_targets(
    gathered: Gathered, false_alarms_per_week: float, fitted: Mixtures | None = None
) -> Iterator[Silence]:
    """Yield silent feeds, silent pages, and sites with many silent pages.

    fitted: weekly profiles of the sites, if they are known and all targets are of one kind
    """
    feeds = are(gathered.watched, Kind.FEED)
    for rows, combined in ((np.flatnonzero(feeds), False), (np.flatnonzero(~feeds), True)):
        if not len(rows):
            continue
        population, past = gathered.population, gathered.histories
        if len(rows) < len(population):
            population, past = population.of(rows), past.of(rows)
        is_fitted = fitted is not None and len(rows) == len(gathered.watched)
        mixtures = fitted if fitted and is_fitted else site_mixtures(population, past)
        result = silences(population, past, mixtures, false_alarms_per_week, combined=combined)
        for number in np.flatnonzero(result.shared).tolist():
            own = np.flatnonzero(result.silent & (population.site == number))
            rated = int(np.count_nonzero(result.ratings.rated & (population.site == number)))
            yield _of_site(gathered.watched.spiders[number], result, own, rated)
        single = np.flatnonzero(result.silent & ~result.shared[population.site])
        for i in single[np.argsort(result.chance[single])][:MAX_ALARMS].tolist():
            yield _of_target(gathered, result, int(rows[i]), i)


def _of_target(gathered: Gathered, result: Silences, row: int, i: int) -> Silence:
    spider, _, url = gathered.watched.ids[row].partition(" ")
    since, expected = _time(result.ratings.since[i]), _time(result.ratings.expected[i])
    chance = float(result.chance[i])
    text = (
        f"no change since {since:%Y-%m-%d %H:%M} UTC, expected by {expected:%Y-%m-%d %H:%M}; "
        f"chance {chance:.2g}"
    )
    return Silence(spider, url, since, expected, chance, text)


def _of_site(spider: str, result: Silences, own: Ints, rated: int) -> Silence:
    since = _time(result.ratings.since[own].max())
    expected = _time(result.ratings.expected[own].max())
    text = (
        f"{count(len(own), 'page')} of {rated:,} with known gaps stopped changing, the last at "
        f"{since:%Y-%m-%d %H:%M} UTC"
    )
    return Silence(spider, "", since, expected, float(result.chance[own].max()), text)


def _time(hours: float) -> datetime:
    """Return a time given in hours since 1970, to the minute."""
    return EPOCH + timedelta(minutes=round(float(hours) * 60))
