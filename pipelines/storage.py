"""Sketch and commit visits, and export new and changed items to Scrapy's feeds.

Sketches of posts are computed before the commit. The writer reserves their bands directly before it
stores a batch, so that posts that are not stored have no reservations.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from scrapy import signals
from scrapy.exceptions import DropItem, NotConfigured

from crawler.dedup.compared import compared, source_of
from crawler.dedup.posts import Candidate, claimed_at, created_at, id_of
from crawler.dedup.schemes import Scheme, scheme_of
from crawler.errors import StorageError
from crawler.extract.plain_text import as_texts
from crawler.frontier.frontiers import Settled
from crawler.frontier.session import Session
from crawler.items import Kind, Outcome, Skipped, Visit
from crawler.storage.leases import fence_of
from crawler.storage.writer import TakenOver
from crawler.utils.time import EPOCH
from pipelines.change_detection import SessionPipeline, as_error

logger = logging.getLogger(__name__)
# Maximum share of a feed's posts with a false date; their editors may have entered dates late.
MAX_FALSE_DATES = 0.05


class DuplicatesPipeline(SessionPipeline):
    """Adds candidates for near-duplicates to a Visit."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        config = session.run.config
        if config.duplicates == "off":
            raise NotConfigured
        self.scheme = scheme_of(config.duplicates, config.duplicate_threshold)

    def process_item(self, item: Any) -> Any:
        """Sketch the posts that a Visit will store; return other items unchanged."""
        if isinstance(item, Visit):
            try:
                item.candidates, item.emptied = sketched(item, self.scheme)
            except Exception:
                # A post without a sketch is stored as an original.
                logger.exception("Sketching %s failed", item.fetched.target.url)
        return item


def sketched(visit: Visit, scheme: Scheme) -> tuple[tuple[Candidate, ...], tuple[str, ...]]:
    """Return the candidates of a visit, and the keys of posts that have no text to compare."""
    names = visit.fetched.compared
    candidates, emptied = [], []
    target = visit.fetched.target
    source = source_of(target.spider, target.url, is_feed=target.kind is Kind.FEED)
    number, at, absent = id_of(source), visit.fetched.at, last_seen_without(visit)
    for key, content, published, is_stored in _posts(visit):
        texts = as_texts(content, visit.fetched.markup)
        fields = {name: value for name, value in texts.items() if name != "main_text"}
        title, main_text = texts.get("title"), texts.get("main_text")
        sketch, text = compared(scheme, source, title, main_text, fields, names)
        if sketch is None:
            emptied.append(key)
        else:
            created = created_at(published, at)
            claimed = claimed_at(created, at, absent) if has_say(visit) else at
            candidate = Candidate(
                key, created, sketch, is_stored, text=text, fences=dict([fence_of(target)]),
                seen=at, source=number, absent=absent, claimed=claimed,
            )  # fmt: skip
            candidates.append(candidate)
    return tuple(candidates), tuple(emptied)


def last_seen_without(visit: Visit) -> datetime | None:
    """Return the last visit that did not show the posts of a visit; None before the first."""
    history = visit.fetched.target.history
    return None if history is None else EPOCH + history.until * timedelta(minutes=1)


def has_say(visit: Visit) -> bool:
    """Return whether stated dates of a source count; false if it stated too many false ones."""
    if visit.collected is None:
        return True
    monitor = visit.collected.monitor
    return monitor.false_dates <= MAX_FALSE_DATES * monitor.posts


def _posts(visit: Visit) -> Iterator[tuple[str, Mapping[str, Any], datetime | None, bool]]:
    """Yield key, content and date of each post, and whether it may already be stored."""
    if visit.collected is not None:
        edited = {key for key, _ in visit.collected.edited}
        for key, post in visit.collected.posts:
            yield key, post.content, post.published, key in edited
    target, content = visit.fetched.target, visit.fetched.content
    if visit.stores_content and target.kind is Kind.ITEM and content is not None:
        date = content.get("published")
        published = date if isinstance(date, datetime) else None
        is_stored = target.post is not None or target.content_hash is not None
        yield target.post or target.key, content, published, is_stored


class Stored(DropItem):
    """Raised for a stored visit that has nothing to export."""

    def __init__(self, outcome: str) -> None:
        super().__init__(outcome, log_level="DEBUG")


class StoragePipeline(SessionPipeline):
    """Commits and counts each Visit, and passes new and changed items to Scrapy's exports."""

    async def process_item(self, item: Any) -> Any:
        """Store a Visit and return the item to export; return other items unchanged.

        Raises Stored if there is nothing to export, NotStored if the run ended.
        """
        if isinstance(item, Skipped):
            self.session.frontier.settle(item.target, _fate(item))
            raise Stored(item.reason)
        if not isinstance(item, Visit):
            return item
        target = item.fetched.target
        try:
            visit = await self._store(item)
        except TakenOver:
            self.session.frontier.settle(target, Settled.TAKEN_OVER)
            raise Stored("taken over by another worker") from None
        except BaseException:
            self.session.frontier.settle(target, Settled.LEFT)
            raise
        self.session.stored(target, visit)
        for post in exported_posts(visit):
            await self._export(post)
        if visit.has_new_content and visit.fetched.target.kind is Kind.ITEM:
            return exported(visit)
        raise Stored(visit.outcome)

    async def _export(self, post: dict[str, Any]) -> None:
        """Send a feed's post to Scrapy's exports; a visit of a feed can have many posts."""
        crawler = self.run.crawler
        assert crawler.spider is not None
        await crawler.signals.send_catch_log_async(
            signals.item_scraped, item=post, response=None, spider=crawler.spider
        )

    async def _store(self, visit: Visit) -> Visit:
        try:
            await self.session.writer.commit(visit)
        except TakenOver:
            raise
        except StorageError as error:
            raise self.end_run(visit.fetched.target, error) from None
        except Exception as error:  # noqa: BLE001 - bad content must fail only its page
            bare = as_error(visit.fetched, "cannot be stored", error, self.rules)
            return await self._store_error(bare, error)
        return visit

    async def _store_error(self, visit: Visit, cause: Exception) -> Visit:
        """Store an error visit for a page that cannot be stored; if that fails, end the run.

        cause: error that prevented the page from being stored
        """
        try:
            await self.session.writer.commit(visit)
        except Exception as error:
            # TakenOver: the visit of the page was acknowledged before `cause` was raised.
            error = cause if isinstance(error, TakenOver) else error
            reason = f"{visit.fetched.target.url}: {type(error).__name__}: {error}"
            self.run.fail(StorageError(reason))
            raise
        return visit


def _fate(skipped: Skipped) -> Settled:
    """Return what becomes of a target that was not fetched.

    It remains due, so without this the run would hand it out forever.
    """
    if skipped.ended:
        return Settled.LEFT
    # If it redirects to another host, that is the cause: give up only the target. Until the other
    # host's pause ends, it stays due in every run, before other targets.
    return Settled.POSTPONED if skipped.elsewhere else Settled.GIVEN_UP


def exported_posts(visit: Visit) -> list[dict[str, Any]]:
    """Return the new and edited posts of a feed for Scrapy's exports."""
    if visit.collected is None:
        return []
    outcomes = ((Outcome.NEW, visit.collected.new), (Outcome.CHANGED, visit.collected.edited))
    return [
        {
            "url": post.url,
            "feed": visit.fetched.target.url,
            "guid": post.id,
            "categories": list(visit.fetched.target.categories),
            "outcome": str(outcome),
            "at": visit.fetched.at.isoformat(),
            "published": post.published.isoformat() if post.published else None,
            **post.content,
            **_flag(visit, key),
        }
        for outcome, posts in outcomes
        for key, post in posts
    ]


def _flag(visit: Visit, key: str) -> dict[str, Any]:
    """Return the additional export fields of a duplicate."""
    verdict = visit.verdicts.get(key)
    if verdict is None or verdict.is_original:
        return {}
    return {"duplicate_of": verdict.duplicate_of, "similarity": verdict.similarity}


def exported(visit: Visit) -> dict[str, Any]:
    """Return the item for Scrapy's feeds: URL, categories, outcome and fields."""
    fetched = visit.fetched
    return {
        "url": fetched.target.url,
        "categories": list(fetched.target.categories),
        "outcome": str(visit.outcome),
        "at": fetched.at.isoformat(),
        **(fetched.content or {}),
        **_flag(visit, fetched.target.post or fetched.target.key),
    }
