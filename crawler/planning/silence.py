"""Find silent targets and fields from stored histories, and store their alarms."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Self

import numpy as np
from numpy.typing import NDArray

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.items import Kind
from crawler.planning.population import Gathered, are, gather
from crawler.storage import alarms, histories, sites
from crawler.storage.alarms import MAX_ALARMS, Silence
from crawler.storage.client import Database
from crawler.storage.columns import Texts
from crawler.utils.text import count, probability
from crawler.utils.time import EPOCH
from schedules.estimation.estimate import site_mixtures
from schedules.estimation.rates import Mixtures
from schedules.estimation.silence import (
    MIN_BURSTS,
    GapModel,
    Silences,
    allowed_per_target,
    shared_from,
)
from schedules.history import FieldHistories, FieldPasts, Histories, Ints, field_pasts
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
        await alarms.record_silences(db, spiders, [], now, {})
        raise ConfigError("no targets to check. Run scrapy crawl to discover them")
    hours = (now - EPOCH) / timedelta(hours=1)
    return await store_silences(db, config, await gather(db, watched, config, hours), now, spiders)


async def store_silences(
    db: Database,
    config: Config,
    gathered: Gathered,
    now: datetime,
    spiders: Sequence[str],
    mixtures: Mixtures | None = None,
) -> int:
    """Store the alarms of all targets of a plan's input; return the number of new ones.

    spiders:  all spiders of the plan; the alarms of those without watched targets end
    mixtures: weekly profiles of the sites, if a plan for the same targets has fitted them
    """
    if not config.silence_false_alarms_per_week:
        return 0
    # Run in a thread, because a replan stages its plans at the same time.
    allowed = config.silence_false_alarms_per_week
    silent = await asyncio.to_thread(silences_of, gathered, allowed, mixtures)
    wanted = await sites.wanted_events(db, config.notify_file, {each.spider for each in silent})
    return await alarms.record_silences(db, spiders, silent, now, wanted)


def silences_of(
    gathered: Gathered, false_alarms_per_week: float, fitted: Mixtures | None = None
) -> list[Silence]:
    """Return silent feeds, silent pages and fields, and sites with many of them.

    fitted: weekly profiles of the sites, if they are known and all targets are of one kind
    """
    every, is_feed = Watches.of(gathered), are(gathered.watched, Kind.FEED)
    silent: list[Silence] = []
    for rows, combined in ((np.flatnonzero(is_feed), False), (np.flatnonzero(~is_feed), True)):
        if not len(rows):
            continue
        some = every if len(rows) == len(is_feed) else every.some(rows)
        mixtures = fitted
        if mixtures is None or len(rows) < len(is_feed):
            mixtures = site_mixtures(some.population, some.histories)
        allowed = allowed_per_target(false_alarms_per_week, len(rows))
        model = GapModel.of(some.population, some.histories, mixtures, allowed, combined=combined)
        silent += alarms_of(silent_targets(some, model), combined=combined)
        if combined:
            step = step_of(len(some.fields))
            sample = some.sample_of_fields(step)
            allowed = allowed_per_target(false_alarms_per_week, len(sample[0]) * step)
            if len(sample[0]):
                model = GapModel.of(*sample, mixtures, allowed)
                silent += alarms_of(silent_fields(some, model), silent)
    return silent


def step_of(pages: int) -> int:
    """Return the distance between the pages from whose fields the model is estimated."""
    return 1 + pages // MAX_SAMPLED_PAGES


@dataclass(frozen=True, slots=True)
class Watches:
    """The n targets to check.

    ids:     (n,) `_id` of each target
    spiders: names; spider: (n,) their numbers
    population, histories: input of the plan
    fields:  changes of the fields of m of the targets
    found:   histories of these m targets, with the observations that found the changes
    """

    ids: Texts
    spiders: tuple[str, ...]
    spider: NDArray[np.int32]
    population: Population
    histories: Histories
    fields: FieldHistories
    found: Histories

    @classmethod
    def of(cls, gathered: Gathered) -> Self:
        """Return all targets of a plan's input."""
        watched = gathered.watched
        return cls(
            watched.ids, watched.spiders, watched.spider, gathered.population, gathered.histories,
            watched.fields, watched.histories.of(watched.fields.row),
        )  # fmt: skip

    def some(self, rows: Ints) -> Self:
        """Return some of the targets, whose rows are ascending."""
        return replace(
            self,
            ids=self.ids.of(rows),
            spider=self.spider[rows],
            population=self.population.of(rows),
            histories=self.histories.of(rows),
            fields=self.fields.of_targets(rows, len(self.ids)),
            found=self.found.of(np.flatnonzero(np.isin(self.fields.row, rows))),
        )

    def fields_of(self, rows: Ints) -> FieldPasts:
        """Return the fields of some of the m targets, each with its own history."""
        stored = self.fields.of(rows)
        past = self.histories.of(stored.row)
        return field_pasts(stored, self.found.of(rows), past, MIN_BURSTS)

    def sample_of_fields(self, step: int) -> tuple[Population, Histories]:
        """Return the fields of every `step`th of the m targets."""
        sample = self.fields_of(np.arange(0, len(self.fields), step))
        return self.population.of(sample.row), sample.histories


@dataclass(frozen=True, slots=True)
class Silent:
    """The silent targets of a site, or those with the same silent field.

    rated:  number of targets with known gaps
    number: number of silent ones
    since, expected_at, chance: the highest of all silent ones
    worst:  the least probable ones, at most MAX_ALARMS
    """

    rated: int = 0
    number: int = 0
    since: datetime = EPOCH
    expected_at: datetime = EPOCH
    chance: float = 0.0
    worst: tuple[Silence, ...] = ()

    def joined(self, other: Silent) -> Silent:
        """Return the silent targets of both."""
        worst = sorted((*self.worst, *other.worst), key=lambda each: each.chance)
        return Silent(
            self.rated + other.rated,
            self.number + other.number,
            max(self.since, other.since),
            max(self.expected_at, other.expected_at),
            max(self.chance, other.chance),
            tuple(worst[:MAX_ALARMS]),
        )


# By the name of a spider, and of a field; "" for whole targets.
SilentByKind = dict[tuple[str, str], Silent]


def joined(parts: Iterable[SilentByKind]) -> SilentByKind:
    """Return the silent targets of all parts."""
    result: SilentByKind = {}
    for part in parts:
        for kind, silent in part.items():
            result[kind] = result.get(kind, Silent()).joined(silent)
    return result


def silent_targets(watches: Watches, model: GapModel) -> SilentByKind:
    """Return the silent targets of each site."""
    result = model.rated(watches.population, watches.histories)
    kinds = [(spider, "") for spider in watches.spiders]
    rows = np.arange(len(watches.ids))
    return _by_kind(watches, result, rows, watches.spider.astype(np.int64), kinds)


def silent_fields(watches: Watches, model: GapModel) -> SilentByKind:
    """Return the targets with silent fields, by site and field.

    Each field of a page is rated like a page, by its own changes, in parts, so that memory is
    bounded.
    """
    parts: list[SilentByKind] = []
    for begin in range(0, len(watches.fields), PAGES_AT_ONCE):
        rows = np.arange(begin, min(begin + PAGES_AT_ONCE, len(watches.fields)))
        past = watches.fields_of(rows)
        if not len(past.row):
            continue
        columns = np.stack([watches.spider[past.row], past.name, past.bit])
        distinct, kind = np.unique(columns, axis=1, return_inverse=True)
        names = watches.fields.names
        kinds = [(watches.spiders[n], names[name][bit]) for n, name, bit in distinct.T.tolist()]
        result = model.rated(watches.population.of(past.row), past.histories)
        parts.append(_by_kind(watches, result, past.row, kind.reshape(-1), kinds))
    return joined(parts)


def _by_kind(
    watches: Watches, result: Silences, row: Ints, kind: Ints, kinds: Sequence[tuple[str, str]]
) -> SilentByKind:
    """Return the silent ones among k targets or fields, by their kinds, which may repeat.

    row: (k,) rows of their targets   kind: (k,) numbers of `kinds`
    """
    rated = np.bincount(kind[result.ratings.rated], minlength=len(kinds))
    silent = np.flatnonzero(result.silent)
    parts: list[SilentByKind] = []
    for number in np.flatnonzero(rated).tolist():
        own = silent[kind[silent] == number]
        part = Silent(int(rated[number]))
        if len(own):
            worst = own[np.argsort(result.chance[own])][:MAX_ALARMS].tolist()
            part = Silent(
                part.rated,
                len(own),
                _time(result.ratings.since[own].max()),
                _time(result.ratings.expected[own].max()),
                float(result.chance[own].max()),
                tuple(_of_target(watches, result, int(row[i]), i, kinds[number]) for i in worst),
            )
        parts.append({kinds[number]: part})
    return joined(parts)


def _of_target(
    watches: Watches, result: Silences, row: int, i: int, kind: tuple[str, str]
) -> Silence:
    spider, field = kind
    url = watches.ids[row].removeprefix(f"{spider} ")
    since, expected = _time(result.ratings.since[i]), _time(result.ratings.expected[i])
    chance = float(result.chance[i])
    text = (
        f"no change since {since:%Y-%m-%d %H:%M} UTC, expected by {expected:%Y-%m-%d %H:%M}; "
        f"chance {probability(chance)}"
    )
    text = f"{field}: {text}" if field else text
    return Silence(spider, url, since, expected, chance, text, field)


def alarms_of(
    silent: SilentByKind, others: Sequence[Silence] = (), *, combined: bool = True
) -> list[Silence]:
    """Return an alarm for each silent target or field, or one for all of a site with many of them.

    others:   alarms of whole pages and sites, which include those of their fields
    combined: as in `shared_from`
    """
    covered = {(each.spider, each.target) for each in others}
    raised: list[Silence] = []
    for (spider, field), every in silent.items():
        if not every.number or (spider, "") in covered:
            continue
        if every.number < shared_from(np.array([every.rated]), combined=combined)[0]:
            raised += [each for each in every.worst if (spider, each.target) not in covered]
            continue
        text = (
            f"{count(every.number, 'page')} of {every.rated:,} with known gaps stopped changing, "
            f"the last at {every.since:%Y-%m-%d %H:%M} UTC"
        )
        text = f"{field} of {text}" if field else text
        own = every.since, every.expected_at, every.chance
        raised.append(Silence(spider, "", *own, text, field))
    return raised


def _time(hours: float) -> datetime:
    """Return a time given in hours since 1970, to the minute."""
    return EPOCH + timedelta(minutes=round(float(hours) * 60))
