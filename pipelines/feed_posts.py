"""Determine the new, edited and missed posts of a fetched feed document, and its next poll."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import numpy as np

from crawler.errors import StorageError
from crawler.extract import content
from crawler.items import (
    SEEN,
    Bounds,
    Collected,
    Fetched,
    Kind,
    KnownFeed,
    KnownPost,
    Monitor,
    Outcome,
    Post,
    Visit,
)
from crawler.storage import feeds
from crawler.storage.websub import Push, is_proven
from crawler.utils.text import count
from crawler.utils.time import EPOCH
from pipelines import change_detection
from pipelines.change_detection import HOUR, MINUTE, Rules, SessionPipeline
from schedules.history import CHANGE, MAX_CHANGES, MINUTES, History
from schedules.intervals import FIRST_HISTORY_HOURS
from schedules.schedule import WEEK_HOURS

logger = logging.getLogger(__name__)
DIGEST_BYTES = 8
# Content hash of an empty document.
NO_POSTS = content.digest([])
# A feed that requests longer intervals is assumed to be misconfigured.
MAX_BOUND_HOURS = 7 * 24.0
# Posts of a shorter time say little about a feed's rate.
MIN_RATE_HOURS = 1.0
# A post may appear this long after its date, because the date has no time or the editors took time.
LATE = timedelta(hours=36)
# Maximum number of posts that a feed keeps in its document regardless of their age.
MAX_PINNED = 3
# A document that loses this many posts at once, and has no others, failed; the posts of a feed that
# shows, for example, current alerts expire one by one. The failure is assumed to end in a week.
MIN_EMPTIED, EMPTIED_MINUTES = 5, 7 * 24 * 60
# If documents filled between all fetches, any higher rate explains them. Posts are then assumed to
# be known, without any, for this share of the gap.
PRIOR_SHARE = 0.1
# Earlier fetches that found full documents count with the estimates made then.
MAX_FILLED = 16
ROUNDS = 30
ENOUGH = 1e-5
# Standard deviations within which terms of a Poisson distribution count.
WIDTH = 10.0


class FeedsPipeline(SessionPipeline):
    """Converts a feed's Fetched to a Visit."""

    async def process_item(self, item: Any) -> Any:
        """Convert a feed's Fetched to a Visit; return other items unchanged."""
        if not isinstance(item, Fetched) or item.target.kind is not Kind.FEED:
            return item
        try:
            return await self._decided(item)
        except StorageError as error:
            raise self.end_run(item.target, error) from None
        except Exception as error:
            logger.exception("Processing %s failed", item.target.url)
            return change_detection.as_error(item, change_detection.UNDECIDED, error, self.rules)

    async def _decided(self, item: Fetched) -> Visit:
        if item.outcome is not None and item.outcome not in SEEN:
            return change_detection.decide(item, self.rules)
        assert item.known is not None, "the spider reads what is stored of a feed"
        visit = decide(item, self.rules, item.known)
        if visit.collected is not None and (doubted := visit.collected.doubted):
            posts = count(doubted, "known post")
            url = item.target.url
            logger.info("%s: hub delivered different content for %s; fetching", url, posts)
        if visit.has_new_content and item.posts and item.push is None:
            run = self.run
            other = await run.patience.read(lambda: feeds.duplicate_of(run.db, item))
            if other is not None:
                visit.become_alias(other, "the same posts as")
        return visit


def decide(fetched: Fetched, rules: Rules, known: KnownFeed) -> Visit:
    """Return the visit of a feed: its outcome, posts and next visit. Pure."""
    monitor = known.monitor
    if fetched.document is None:
        visit = change_detection.decide(fetched, rules)
        if visit.history is not None and is_emptied(fetched, monitor):
            visit.history = fetched.target.history
    else:
        collected = collect(fetched, monitor, known.posts)
        outcome = outcome_of(fetched, collected)
        intervals = rules.intervals(fetched.target)
        when, _ = change_detection.next_visit(fetched, outcome, rules.zone, intervals)
        visit = Visit(
            fetched,
            outcome,
            when,
            update_size=change_detection.update_size(fetched, outcome),
            history=extended_history(fetched, collected),
            collected=collected,
        )
        monitor = collected.monitor
    # Visit as planned, less often if a hub pushes posts, and never sooner than the feed allows.
    planned_hours = (visit.next_visit - fetched.at) / HOUR
    hours = poll_hours(planned_hours, monitor.push, fetched.at, rules.push_poll_hours)
    when = fetched.at + timedelta(hours=hours)
    allowed = not_before(when, fetched.at, monitor.bounds, fetched.fresh_hours)
    longest = timedelta(hours=rules.feeds.longest_hours)
    visit.next_visit = min(allowed, max(fetched.at + longest, visit.next_visit))
    # Otherwise frequent deliveries would postpone the next fetch forever.
    if fetched.push is not None and fetched.target.next_visit is not None:
        visit.next_visit = fetched.target.next_visit
    return visit


def collect(
    fetched: Fetched, monitor: Monitor, stored_posts: Mapping[str, KnownPost] | None
) -> Collected:
    """Return the new, edited and missed posts of a document.

    stored_posts: its stored posts by id; None if the document has not changed

    Only new posts are taken from a hub's delivery. Its signature covers no timestamp, so a replayed
    delivery would restore old contents; the feed itself is fetched to find the current ones.
    """
    if stored_posts is None:
        after, problems = _after(fetched, monitor, 0, 0.0), _problems(fetched, monitor, 0)
        return Collected(monitor=after, problems=tuple(problems))
    before = fetched.target.history
    new, edited, doubted = [], [], 0
    for post in fetched.posts:
        stored = stored_posts.get(post.id)
        is_other = stored is not None and stored.content_hash != post.content_hash
        # A visit stored the post, but crashed before the visit itself was stored.
        is_unacknowledged = stored is not None and (
            before is None or _minutes(stored.first_seen) > before.until
        )
        if is_other and fetched.push is not None:
            doubted += 1
        elif stored is None or is_unacknowledged:
            new.append((stored.key if stored else key_of(fetched, post), post))
        elif is_other:
            edited.append((stored.key, post))
    # A stored post that the last document lacked has returned, or has a new id.
    in_last = set(_split(monitor.ids))
    has_others = any(digest(id_) not in in_last for id_ in stored_posts)
    missed = missed_posts(fetched, monitor, len(new)) if new and not has_others else 0.0
    after = _after(fetched, monitor, len(new), missed)
    offset = fetched.document.utc_offset_hours if fetched.document is not None else 0.0
    after = replace(
        after,
        false_dates=monitor.false_dates + false_dates(fetched, new),
        utc_offset_hours=max(monitor.utc_offset_hours, offset),
    )
    # Without the new ids, the next visit would find none of these posts by their ids. A hub may
    # replay old deliveries.
    known = {id_: post for id_, post in stored_posts.items() if fetched.push is None}
    renamed = [(post.key, id_) for id_, post in known.items() if post.id not in (None, id_)]
    return Collected(
        tuple(new), tuple(edited), missed, doubted, after, tuple(renamed),
        tuple(_problems(fetched, monitor, len(renamed))),
    )  # fmt: skip


def _problems(fetched: Fetched, monitor: Monitor, renamed: int) -> Iterator[str]:
    """Yield the problems of a document that only a comparison with earlier ones shows."""
    if not fetched.posts and monitor.feed_size:
        yield (
            f"the document is empty, but has had {count(monitor.feed_size, 'post')}. If this "
            "lasts, open it in a browser: the site may have moved its feed"
        )
    target, sent = fetched.target, fetched.validators
    is_other = fetched.content_hash != target.content_hash
    if sent and sent == target.validators and is_other and target.doubts_not_modified(fetched.at):
        yield (
            "the server reported that the feed had not changed, although it had: new posts can be "
            "found a week late. Tell its publisher that ETag or Last-Modified is wrong"
        )
    if renamed and renamed == len(fetched.posts):
        yield (
            f"the ids of all {count(renamed, 'post')} changed since the last visit: recognized by "
            "link, title or date"
        )


def false_dates(fetched: Fetched, new: Iterable[tuple[str, Post]]) -> int:
    """Return the number of new posts whose date precedes a visit that did not show them.

    new: posts, each with its key
    """
    before = fetched.target.history
    if before is None:
        return 0
    earliest = EPOCH + before.until * MINUTE - LATE
    return sum(post.published is not None and post.published < earliest for _, post in new)


def key_of(fetched: Fetched, post: Post) -> str:
    """Return the `_id` of a new post."""
    return f"{fetched.target.key} {post.id}"


def outcome_of(fetched: Fetched, collected: Collected) -> Outcome:
    """Return new on a first fetch, else changed if there are new or edited posts."""
    if fetched.target.content_hash is None:
        return Outcome.NEW
    return Outcome.CHANGED if collected.posts else Outcome.UNCHANGED


def missed_posts(fetched: Fetched, monitor: Monitor, new: int) -> float:
    """Estimate the number of posts that left the document between two fetches.

    Posts were missed if `is_gap`. With dates, the gap is the time between the last fetch and the
    oldest new post; the estimate is the gap's length times the mean post rate outside it. Without
    dates, the estimate is the expected number of posts since the last fetch, given that they filled
    the document, minus the number of new posts.
    """
    before = fetched.target.history
    if before is None or not is_gap(fetched, monitor):
        return 0.0
    last = EPOCH + before.until * MINUTE
    in_last = set(_split(monitor.ids))
    oldest = _oldest(post for post in fetched.posts if digest(post.id) not in in_last)
    if oldest is not None and oldest <= last:
        return 0.0
    seen = len(before.changes) // CHANGE.itemsize
    watched_hours = (before.until - before.since) * MINUTE / HOUR
    if oldest is None:
        return posts_beyond(before, monitor.feed_size, _minutes(fetched.at), new)
    gap, covered = (oldest - last) / HOUR, (fetched.at - oldest) / HOUR
    return (seen + new) / max(watched_hours + covered, MIN_RATE_HOURS) * gap


def is_gap(fetched: Fetched, monitor: Monitor) -> bool:
    """Return whether all posts of the last document left, except a few that the feed pins.

    The newest post of the last document is the last to leave it, so older posts that remain are
    pinned. False for a document with less than half as many posts as the last one: it is
    incomplete, or its posts leave by age.
    """
    last, posts = set(_split(monitor.ids)), fetched.posts
    if not last or fetched.push is not None or not posts or 2 * len(posts) < len(last):
        return False
    kept = [post.published for post in posts if digest(post.id) in last]
    if len(kept) > min(MAX_PINNED, len(posts) // 2):
        return False
    newest = monitor.newest
    return all(date is not None and newest is not None and date < newest for date in kept)


def _after(fetched: Fetched, monitor: Monitor, new: int, missed: float) -> Monitor:
    """Return the state of the feed after this document."""
    document, ids = fetched.document, [digest(post.id) for post in fetched.posts]
    if fetched.push is not None:
        ids = list(dict.fromkeys((*ids, *_split(monitor.ids))))[: max(1, monitor.feed_size)]
        return replace(monitor, ids=b"".join(ids), posts=monitor.posts + new)
    last = _split(monitor.ids)
    left = set(last) - set(ids)
    size, full = len(ids), monitor.full or bool(left and ids)
    kept_ids = monitor.ids if len(last) >= MIN_EMPTIED else b""
    has_gap = is_gap(fetched, monitor) and missed > 0
    dates = [p.published for p in fetched.posts if p.published]
    newest = max([*dates, *([monitor.newest] if monitor.newest else [])], default=None)
    return replace(
        monitor,
        # Of two documents, because a single one may be cut off.
        feed_size=max(size, len(last)) if left and ids else max(monitor.feed_size, size),
        full=full,
        ids=b"".join(ids) or kept_ids,
        posts=monitor.posts + new,
        missed_posts=monitor.missed_posts + missed,
        gaps=monitor.gaps + has_gap,
        last_gap_at=fetched.at if has_gap else monitor.last_gap_at,
        newest=newest,
        bounds=document.bounds if document else monitor.bounds,
    )


def extended_history(fetched: Fetched, collected: Collected) -> History:
    """Return the feed's history with a record for each new and each missed post."""
    at, before = _minutes(fetched.at), fetched.target.history
    new = [post for _, post in collected.new]
    if before is None:
        return first_past(new, at)
    if at < before.until or (at == before.until and not new):
        return before
    if is_emptied(fetched, collected.monitor):
        return before
    # A fetch within the minute of the last one, such as after a push, may find posts, too.
    after = min(before.until, at - 1)
    records = []
    for post in new:
        dated = _minutes(post.published) if post.published else 0
        # 0 for an implausible date.
        records.append((after, at, dated if after <= dated <= at else 0))
    oldest = _oldest(new)
    by = min(at, max(after, _minutes(oldest))) if oldest else at
    # A history keeps no more, and the estimate may be millions.
    gone = [(after, by, 0)] * min(round(collected.missed_posts), MAX_CHANGES + 1)
    records = gone + sorted(records, key=lambda record: record[2])
    return before.from_before(at).extended(at, records)


def is_emptied(fetched: Fetched, monitor: Monitor) -> bool:
    """Return whether a document probably failed, so that it does not show silence; see MIN_EMPTIED.

    monitor: with the ids of the last document that had posts; without ids if they left singly
    """
    target = fetched.target
    if target.history is None or not monitor.ids or fetched.push is not None:
        return False
    is_recent = _minutes(fetched.at) - target.history.until < EMPTIED_MINUTES
    return is_recent and (fetched.content_hash or target.content_hash) == NO_POSTS


def first_past(posts: Iterable[Post], at: int) -> History:
    """Return a new feed's history: a record for each dated post of its first document.

    at: time of the fetch in minutes since 1970

    The oldest post begins the history. The history is empty if fewer than two posts or most posts
    have no date.
    """
    posts = list(posts)
    stated = _without_pinned([_minutes(post.published) for post in posts if post.published])
    dates = sorted(stated)
    if len(dates) < max(2, len(posts) / 2):
        return History.begin(at)
    since = max(dates[0], at - int(FIRST_HISTORY_HOURS * MINUTES))
    records = [(since, at, moment) for moment in dates if since < moment <= at]
    return History.begin(since).extended(at, records) if since < at else History.begin(at)


def _without_pinned(dates: list[int]) -> list[int]:
    """Return the dates of a document without those of pinned posts.

    Posts are pinned if they are older than all others, but precede them although these are ordered
    from the newest to the oldest. The hours since a pinned post say nothing about the feed's rate.
    """
    for pinned in range(min(MAX_PINNED, max(0, len(dates) - 1) // 2) + 1):
        others = dates[pinned:]
        is_ordered = all(later >= earlier for later, earlier in pairwise(others))
        if is_ordered and all(date < others[-1] for date in dates[:pinned]):
            return others
    return dates


def _oldest(posts: Iterable[Post]) -> datetime | None:
    """Return the oldest date; None if most posts have no date."""
    dates = [post.published for post in posts]
    stated = [date for date in dates if date is not None]
    return min(stated) if stated and 2 * len(stated) >= len(dates) else None


def _minutes(moment: datetime) -> int:
    return (moment - EPOCH) // MINUTE


def digest(post_id: str) -> bytes:
    """Return a short digest of a post's id."""
    data = post_id.encode("utf-8", "replace")
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def _split(ids: bytes) -> list[bytes]:
    return [ids[i : i + DIGEST_BYTES] for i in range(0, len(ids), DIGEST_BYTES)]


def poll_hours(planned_hours: float, push: Push | None, now: datetime, rare_hours: float) -> float:
    """Return the hours until the next poll of a feed.

    planned_hours: interval in the plan
    rare_hours:    minimum interval if the hub delivers

    A confirmed subscription is not enough: the planned interval applies until the hub delivers.
    """
    return max(planned_hours, rare_hours) if is_proven(push, now) else planned_hours


def not_before(
    when: datetime, seen: datetime, bounds: Bounds, fresh_hours: float | None
) -> datetime:
    """Return the first time from `when` on at which a feed allows a poll.

    when:           planned time, in UTC
    seen:           time of the last fetch
    bounds:         intervals, hours and days that the document requests
    fresh_hours:    lifetime of the last response by Cache-Control; None: not specified
    """
    hours = min(MAX_BOUND_HOURS, max(bounds.every_hours or 0.0, fresh_hours or 0.0))
    when = max(when, seen + timedelta(hours=hours))
    if not bounds.skip_hours and not bounds.skip_days:
        return when
    # Try `when` itself, then the start of each following hour of the week.
    moment = when
    for _ in range(WEEK_HOURS + 1):
        if moment.hour not in bounds.skip_hours and moment.weekday() not in bounds.skip_days:
            return moment
        moment = moment.replace(minute=0, second=0, microsecond=0) + HOUR
    return when


def posts_beyond(history: History, feed_size: int, at: int, new: int) -> float:
    """Return the expected posts that left a document since the last observation; >= 0.

    history:   up to the last observation
    feed_size: posts that earlier documents held
    at:        time of the fetch in minutes since 1970, which found `new` posts, all others gone

    Posts are a Poisson process of constant rate. A fetch that found a full document of new posts
    shows only that there were at least as many. The rate is that of highest likelihood (by
    expectation maximization), so fetches that found fewer posts limit the estimate.
    """
    changes = np.frombuffer(history.changes, CHANGE)
    # A full history drops records, which may be a part of those of a fetch.
    changes = changes[changes["after"] >= history.since]
    begins = np.flatnonzero(np.diff(changes["after"].astype(np.int64), prepend=-1))
    filled: list[tuple[float, int]] = [((at - history.until) / MINUTES, new)]
    counted, hours = 0, (history.until - history.since) / MINUTES
    for rows in reversed(np.split(changes, begins[1:])):
        is_filled = feed_size and len(rows) >= feed_size and not rows["stated"].any()
        if is_filled and len(filled) < MAX_FILLED:
            length = float(rows["by"].max() - rows["after"].min()) / MINUTES
            filled.append((length, feed_size))
            hours -= length
        else:
            counted += len(rows)
    hours = max(hours, PRIOR_SHARE * filled[0][0])
    hours = max(hours, 1 / MINUTES)
    whole = hours + sum(length for length, _ in filled)
    # Begin near the result: expectation maximization is slow if few fetches found other documents.
    low = (counted + sum(size for _, size in filled)) / whole
    rate = max(low, counted / hours) if 2 * hours >= whole else low
    for _ in range(ROUNDS):
        posts = counted + sum(size + beyond(rate * length, size) for length, size in filled)
        before, rate = rate, posts / whole
        if abs(rate - before) <= ENOUGH * rate:
            break
    length, size = filled[0]
    return beyond(rate * length, size)


def beyond(mean: float, size: int) -> float:
    """Return the mean excess over `size` of a Poisson number that is at least `size`.

    mean: of the Poisson distribution, >= 0
    """
    deviations = WIDTH * max(mean, 1.0) ** 0.5
    if mean > size + deviations:
        return mean - size
    # Terms relative to the one at `size`.
    terms = int(max(mean - size, 0.0) + 2 * deviations) + 1
    ratio = mean / (size + np.arange(1, terms + 1))
    with np.errstate(divide="ignore"):
        log = np.cumsum(np.log(ratio))
    weights = np.exp(log - max(0.0, float(log.max())))
    own = np.exp(-max(0.0, float(log.max())))
    return float((weights * np.arange(1, terms + 1)).sum() / (weights.sum() + own))
