"""What list pages and sitemaps show of the changes of items, as input of a plan.

An entry with other text, or a date in a sitemap, makes its item due. When entries were others, and
which changes the visits of the items found, tells how much each page shows (`trust.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import NamedTuple

import numpy as np

from crawler.items import Kind
from crawler.storage import signals as storage
from crawler.storage.client import Database
from crawler.storage.histories import Watched
from crawler.storage.listings import LASTMOD, LIST
from crawler.storage.signals import HINTS, Edges
from crawler.utils.text import count
from crawler.utils.time import EPOCH
from schedules.allocation.signals import Coverage, believed, one_source_each
from schedules.allocation.trust import EVIDENCE_HOURS, Learned, Shown, learned
from schedules.history import Flags, Floats, Histories, Ints
from schedules.schedule import WEEK_HOURS

SHOWN_BY = {LIST: "list page", LASTMOD: "sitemap"}


@dataclass(frozen=True, slots=True)
class Signals:
    """Hold what list pages and sitemaps show.

    coverage:  which targets show changes of which others, and how many of them
    histories: of all targets, longer for those of which their sources have shown nothing
    audited:   rows of items to visit now, because their sources are silent
    followed:  number of visits that change hints have caused in the last week
    lost:      warnings about sources that no longer show what they did
    """

    coverage: Coverage
    histories: Histories
    audited: Ints
    followed: int = 0
    lost: tuple[str, ...] = ()


class _OfKind(NamedTuple):
    """Hold the sources of a kind of hint, and what is known about them."""

    coverage: Coverage
    recall: Floats
    found: Learned


async def signals_of(
    db: Database, watched: Watched, histories: Histories, now_hours: float
) -> Signals:
    """Return what the stored list pages and sitemaps show of the changes of targets.

    histories: (n,) of the targets, with exact times where sites state them
    """
    nothing = Signals(Coverage.none(), histories, np.empty(0, np.int64))
    if Kind.LIST not in watched.kinds:
        return nothing
    edges = await storage.read_edges(db, watched.key, watched.spiders)
    if not len(edges.item):
        return nothing
    is_trusted = await storage.trusted_hints(db, watched.spiders)
    kinds = [
        await _of_kind(db, watched, _trusted(number, edges, watched, is_trusted), now_hours)
        for number in range(len(HINTS))
    ]
    item = np.concatenate([each.coverage.item for each in kinds])
    source = np.concatenate([each.coverage.source[each.coverage.owner] for each in kinds])
    recall = np.concatenate([each.recall[each.coverage.owner] for each in kinds])
    chosen = one_source_each(item, source, recall)
    coverage = Coverage.of_edges(item[chosen], source[chosen], recall[chosen])
    until = histories.until.copy()
    item = coverage.item
    until[item] = believed(
        until[item], histories.until[coverage.source][coverage.owner], coverage.recall
    )
    return Signals(
        coverage,
        replace(histories, until=until),
        np.unique(
            np.concatenate(
                [each.found.to_audit(each.coverage, watched.histories, now_hours) for each in kinds]
            )
        ),
        await storage.count_followed(
            db, watched.spiders, EPOCH + timedelta(hours=now_hours - WEEK_HOURS)
        ),
        tuple(
            text
            for name, each in zip(HINTS, kinds, strict=True)
            for text in _losses(SHOWN_BY[name], each, watched)
        ),
    )


def _trusted(number: int, edges: Edges, watched: Watched, is_trusted: Flags) -> Edges:
    """Return the edges with which a hint works, of sites whose crawls follow it.

    number: of the hint in HINTS
    """
    has_hint = edges.has_digest
    if HINTS[number] == LASTMOD:
        has_hint = ~edges.has_digest & watched.has_lastmod[edges.item]
    kept = has_hint & is_trusted[watched.spider[edges.item], number]
    return edges.of(np.flatnonzero(kept))


async def _of_kind(db: Database, watched: Watched, edges: Edges, now: float) -> _OfKind:
    """Return the sources of a kind of hint. edges: those with which it works."""
    unknown = np.zeros(len(edges.item))
    own = edges.of(one_source_each(edges.item, edges.source, unknown))
    coverage = Coverage.of_edges(own.item, own.source, unknown[: len(own.item)])
    since = EPOCH + timedelta(hours=now - EVIDENCE_HOURS)
    looks = await storage.read_looks(db, watched.ids.of(coverage.source), since)
    site = watched.spider[coverage.source].astype(np.int64)
    found = learned(coverage, watched.histories, Shown(own.shown, own.since, looks), site, now)
    return _OfKind(coverage, found.judged().recall(site), found)


def _losses(name: str, kind: _OfKind, watched: Watched) -> Sequence[str]:
    """Return a warning for each site with sources that no longer show what they did."""
    sites = watched.spider[kind.coverage.source[kind.found.is_lost]]
    numbers = np.bincount(sites, minlength=len(watched.spiders)).tolist()
    return [
        f"{spider}: what changes no longer appears on {count(n, name)}, whose pages are polled "
        "again"
        for spider, n in zip(watched.spiders, numbers, strict=True)
        if n
    ]
