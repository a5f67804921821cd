"""Feeds: what a fetched document means for its feed, decided with what is known of its posts."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from crawler.errors import StorageError
from crawler.feeds.politeness import not_before, poll_hours
from crawler.items import SEEN, Fetched, Kind, KnownPost, Monitor, Visit
from crawler.storage import feedposts, feeds
from crawler.utils.text import count
from pipelines import changes, following
from pipelines.changes import OfSession, Rules
from pipelines.collecting import HOUR, collect, outcome_of, past

logger = logging.getLogger(__name__)


class FeedsPipeline(OfSession):
    """Turns a feed's Fetched into a Visit; all else passes untouched."""

    async def process_item(self, item: Any) -> Any:
        """Decide about a feed."""
        if not isinstance(item, Fetched) or item.target.kind is not Kind.FEED:
            return item
        try:
            return await self._decided(item)
        except StorageError as error:
            raise self.end_run(item.target, error) from None
        except Exception as error:
            logger.exception("Deciding about %s failed", item.target.url)
            return changes.as_error(item, changes.UNDECIDED, error, self.rules)

    async def _decided(self, item: Fetched) -> Visit:
        read, db, target = self.session.patience.read, self.session.db, item.target
        if item.outcome is not None and item.outcome not in SEEN:
            return changes.decide(item, self.rules)
        monitor = await read(lambda: feeds.monitor(db, target))
        known: Mapping[str, KnownPost] | None = None
        if item.push is not None or item.content_hash != target.content_hash:
            ids = [post.id for post in item.posts]
            known = await read(lambda: feedposts.known(db, target, ids))
            if not known and monitor.posts:
                known = await read(lambda: feedposts.known_by_link(db, target, item.posts))
        visit = decide(item, self.rules, monitor, known)
        if visit.collected is not None and (doubted := visit.collected.doubted):
            posts = count(doubted, "known post")
            logger.info("%s: its hub sent other contents of %s, fetching it", target.url, posts)
        if visit.has_new_content and item.posts and item.push is None:
            other = await read(lambda: feeds.twin(db, item))
            if other is not None:
                visit.become_alias(other, "the same posts as")
        return visit


def decide(
    fetched: Fetched, rules: Rules, monitor: Monitor, known: Mapping[str, KnownPost] | None
) -> Visit:
    """The outcome of a fetch that saw the feed, and what it brought; pure."""
    if fetched.document is None:
        visit = changes.decide(fetched, rules)
    else:
        visit = _read(fetched, rules, monitor, known)
    after = visit.collected.monitor if visit.collected else monitor
    visit.next_visit = _politely(visit, rules, after)
    # Else a feed that is pushed to us often would never be asked again.
    if fetched.push is not None and fetched.target.next_visit is not None:
        visit.next_visit = fetched.target.next_visit
    return visit


def _read(
    fetched: Fetched, rules: Rules, monitor: Monitor, known: Mapping[str, KnownPost] | None
) -> Visit:
    collected = collect(fetched, monitor, known)
    outcome = outcome_of(fetched, collected)
    intervals = rules.intervals(fetched.target)
    when, _ = following.next_visit(fetched, outcome, rules.zone, intervals)
    return Visit(
        fetched,
        outcome,
        when,
        update_size=changes.update_size(fetched, outcome),
        history=past(fetched, collected),
        collected=collected,
    )


def _politely(visit: Visit, rules: Rules, monitor: Monitor) -> datetime:
    """The next visit: as planned, rarely where posts are pushed to us, when the feed allows it."""
    fetched, longest = visit.fetched, timedelta(hours=rules.feeds.longest_hours)
    planned_hours = (visit.next_visit - fetched.at) / HOUR
    hours = poll_hours(planned_hours, monitor.push, fetched.at, rules.push_poll_hours)
    when = fetched.at + timedelta(hours=hours)
    asked = not_before(when, fetched.at, monitor.bounds, fetched.at_least_hours)
    return min(asked, max(fetched.at + longest, visit.next_visit))
