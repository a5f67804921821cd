"""Read histories from exported visits: the Parquet files that `scrapy export visits` writes.

The change log may be kept only in such files. Each file is read once, one batch of rows at a time,
and a visit is reduced to 13 bytes. The log has no times that pages state, so a change lies between
two visits, even if the dates of a site are reliable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from crawler.errors import ConfigError
from crawler.items import SEEN, Outcome
from crawler.storage.columns import keys_of_texts
from crawler.storage.histories import Watched
from crawler.utils.terminal import without_secrets
from crawler.utils.time import EPOCH
from schedules.history import MAX_CHANGES, MINUTES, Histories, Ints, offsets
from schedules.population import shard_of

# A visit: key of its target, minutes since 1970, and one of UNCHANGED, CHANGED and NEW.
VISIT = np.dtype([("key", "<u8"), ("minute", "<u4"), ("kind", "u1")])
Visits = NDArray[np.void]
UNCHANGED, CHANGED, NEW = 0, 1, 2
KINDS = {str(Outcome.NEW): NEW, str(Outcome.CHANGED): CHANGED}
COLUMNS = ["target", "visited_at", "outcome"]
# A source of an engine has files of about this size; in memory they are a few times larger.
SOURCE_BYTES = 64_000_000
BATCH = 65_536
FOLDER, SUFFIX, SPIDER = "visits", ".parquet", "spider="


@dataclass(frozen=True, slots=True)
class VisitFile:
    """A file with visits of a spider."""

    path: str
    spider: str
    size: int


def files_of(address: str, spiders: Sequence[str]) -> list[list[VisitFile]]:
    """Return the files of these spiders in the order of their days, in groups to read.

    address: folder or URL of an export. Raises ConfigError if it has no visits of them.
    """
    name = without_secrets(address)
    system, root = _opened(address)
    try:
        stored = system.find(f"{root.rstrip('/')}/{FOLDER}", detail=True)
    except Exception as error:  # noqa: BLE001 - drivers raise errors of their own
        raise ConfigError(f"--history-from {name}: {error}. Check the address") from None
    files = []
    for path, details in sorted(stored.items()):
        folders = [part for part in path.split("/") if part.startswith(SPIDER)]
        hidden = path.rpartition("/")[2].startswith((".", "_"))
        if folders and path.endswith(SUFFIX) and not hidden:
            spider = unquote(folders[-1].removeprefix(SPIDER))
            if spider in spiders:
                files.append(VisitFile(path, spider, int(details.get("size") or 0)))
    if not files:
        raise ConfigError(
            f"--history-from {name}: no Parquet files with visits of "
            f"{', '.join(sorted(spiders))}. Export them with scrapy export visits {name}"
        )
    groups: list[list[VisitFile]] = [[]]
    for file in files:
        if groups[-1] and sum(each.size for each in groups[-1]) + file.size > SOURCE_BYTES:
            groups.append([])
        groups[-1].append(file)
    return groups


def read_visits(
    count: int, address: str, files: Sequence[VisitFile], now: datetime
) -> list[Visits]:
    """Read visits up to `now`, and divide them among `count` shards."""
    system, _ = _opened(address)
    parts: list[list[Visits]] = [[np.empty(0, VISIT)] for _ in range(count)]
    for file in files:
        for visits in _read(system, file, now):
            number = shard_of(visits["key"], count)
            order = np.argsort(number, kind="stable")
            bounds = np.searchsorted(number[order], np.arange(count + 1))
            for shard, part in enumerate(parts):
                part.append(visits[order[bounds[shard] : bounds[shard + 1]]])
    return [np.concatenate(part) for part in parts]


def _opened(address: str) -> tuple[Any, str]:
    """Return the file system of an address, and the path in it."""
    # Slow to import.
    from fsspec.core import url_to_fs

    try:
        system, root = url_to_fs(address)
    except Exception as error:  # noqa: BLE001 - drivers raise errors of their own
        raise ConfigError(
            f"--history-from {without_secrets(address)}: {error}. Check the address"
        ) from None
    return system, root


def _read(system: Any, file: VisitFile, now: datetime) -> Iterator[Visits]:
    """Yield batches of the visits in a file that saw their page."""
    # Slow to import.
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import parquet

    seen, latest = pa.array([str(outcome) for outcome in SEEN]), (now - EPOCH).total_seconds()
    try:
        with system.open(file.path, "rb") as opened:
            for batch in parquet.ParquetFile(opened).iter_batches(BATCH, columns=COLUMNS):
                outcome = batch["outcome"].cast(pa.string())
                at = batch["visited_at"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
                kept = pc.and_(pc.is_in(outcome, seen), pc.less_equal(at, int(latest * 1000)))
                target = batch["target"].filter(kept).dictionary_encode()
                prefix = f"{file.spider} "
                keys = keys_of_texts([f"{prefix}{url}" for url in target.dictionary.to_pylist()])
                visits = np.empty(len(target), VISIT)
                visits["key"] = keys[target.indices.to_numpy(zero_copy_only=False)]
                visits["minute"] = at.filter(kept).to_numpy(zero_copy_only=False) // 60_000
                outcome = outcome.filter(kept).dictionary_encode()
                kinds = [KINDS.get(text, UNCHANGED) for text in outcome.dictionary.to_pylist()]
                places = outcome.indices.to_numpy(zero_copy_only=False)
                visits["kind"] = np.array([*kinds, UNCHANGED], np.uint8)[places]
                yield visits
    except (pa.ArrowException, KeyError, OSError, TypeError) as error:
        text = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"{file.path}: cannot be read as visits: {text}. Export this day again, or delete the "
            "file"
        ) from None


def with_histories(watched: Watched, visits: Visits) -> Watched:
    """Return targets with the histories of a log of visits.

    visits: in the order of their files; those of other targets are ignored
    """
    keys = watched.key
    order = np.argsort(keys)
    place = np.minimum(np.searchsorted(keys, visits["key"], sorter=order), max(len(keys) - 1, 0))
    row = order[place] if len(keys) else place
    own = keys[row] == visits["key"] if len(keys) else np.zeros(len(visits), np.bool_)
    histories = histories_of(len(watched), row[own], visits[own])
    return replace(
        watched, histories=histories, stated=np.full(len(histories.by), np.nan),
        false_dates=np.zeros(len(watched), np.int64), ahead=0,
    )  # fmt: skip


def histories_of(n: int, row: Ints, visits: Visits) -> Histories:
    """Return the histories of n targets, as `History` would hold them after these visits.

    row: (v,) target of each visit. Visits of one minute are in their order.
    """
    order = np.lexsort((visits["minute"], row))
    row, minute, kind = row[order], visits["minute"][order].astype(np.int64), visits["kind"][order]
    # A target that is new again begins a new history.
    begin = np.full(n, -1)
    news = np.flatnonzero(kind == NEW)
    np.maximum.at(begin, row[news], news)
    kept = np.flatnonzero(np.arange(len(row)) >= begin[row])
    row, minute, changed = row[kept], minute[kept], kind[kept] == CHANGED
    is_first = np.diff(row, prepend=-1) != 0
    # The first visit of a target shows no change.
    changed &= ~is_first
    starts = np.flatnonzero(is_first | (np.diff(minute, prepend=-1) != 0))
    at, of, opens = minute[starts], row[starts], is_first[starts]
    any_changed = np.logical_or.reduceat(changed, starts) if len(starts) else changed
    # A change at a second visit of the same minute happened within it.
    before = np.where(changed[starts], np.concatenate([[0], at[:-1]])[: len(at)], at - 1)
    since, until = np.full(n, np.nan), np.full(n, np.nan)
    since[of[opens]] = np.where(any_changed[opens], at[opens] - 1, at[opens])
    # Assign in order, so that the last visit of each target counts.
    until[of] = at
    owner, after, by = of[any_changed], before[any_changed], at[any_changed]
    counts = np.bincount(owner, minlength=n)
    from_end = np.repeat(np.cumsum(counts), counts) - np.arange(len(owner))
    last_dropped = np.flatnonzero(from_end == MAX_CHANGES + 1)
    since[owner[last_dropped]] = by[last_dropped]
    recent = from_end <= MAX_CHANGES
    first = offsets(np.minimum(counts, MAX_CHANGES))
    return Histories(
        since / MINUTES, until / MINUTES, first, after[recent] / MINUTES, by[recent] / MINUTES
    )
