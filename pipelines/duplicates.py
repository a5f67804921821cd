"""Compute sketches of the posts of a visit, for the detection of near-duplicates.

The writer reserves the bands of the sketches directly before it stores a batch, so that posts that
are not stored have no reservations.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from scrapy.exceptions import NotConfigured

from crawler.dedup.model import Candidate, created_at, id_of
from crawler.dedup.post_text import compared, source_of
from crawler.dedup.scheme import Scheme, scheme_of
from crawler.extract.plain_text import as_texts
from crawler.frontier.session import Session
from crawler.items import Kind, Visit
from crawler.storage.fences import fence_of
from pipelines.outcomes import SessionPipeline

logger = logging.getLogger(__name__)


class DuplicatesPipeline(SessionPipeline):
    """Adds candidates for near-duplicates to a Visit."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        config = session.config
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
    number = id_of(source)
    for key, content, published, is_stored in _posts(visit):
        texts = as_texts(content, visit.fetched.markup)
        fields = {name: value for name, value in texts.items() if name != "main_text"}
        title, main_text = texts.get("title"), texts.get("main_text")
        sketch, text = compared(scheme, source, title, main_text, fields, names)
        if sketch is None:
            emptied.append(key)
        else:
            created = created_at(published, visit.fetched.at)
            candidate = Candidate(
                key, created, sketch, is_stored, text=text, fences=dict([fence_of(target)]),
                seen=visit.fetched.at, source=number,
            )  # fmt: skip
            candidates.append(candidate)
    return tuple(candidates), tuple(emptied)


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
