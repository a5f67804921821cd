"""Sketches of the posts of a visit.

The storage pipeline claims the sketches right before it stores the batch, so that no claim is made
for a post that is not stored.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from scrapy.exceptions import NotConfigured

from crawler.dedup.model import Candidate, created_at, id_of
from crawler.dedup.post_text import sketch_of, source_of, sourced_text
from crawler.dedup.scheme import Scheme, scheme_of
from crawler.extract.plain_text import as_texts
from crawler.frontier.session import Session
from crawler.items import Kind, Visit
from crawler.storage.fences import fence_of
from pipelines.changes import SessionPipeline

logger = logging.getLogger(__name__)


class DuplicatesPipeline(SessionPipeline):
    """Add candidates to a Visit; return other items unchanged."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        config = session.config
        if config.duplicates == "off":
            raise NotConfigured
        self.scheme = scheme_of(config.duplicates, config.duplicate_threshold)

    def process_item(self, item: Any) -> Any:
        """Sketch the posts of a Visit that will be stored."""
        if isinstance(item, Visit):
            try:
                item.candidates, item.emptied = sketched(item, self.scheme)
            except Exception:
                # A post that cannot be sketched is stored as an original.
                logger.exception("%s cannot be compared", item.fetched.target.url)
        return item


def sketched(visit: Visit, scheme: Scheme) -> tuple[tuple[Candidate, ...], tuple[str, ...]]:
    """Return the candidates of a visit, and the keys of posts without a text to compare."""
    names = visit.fetched.compared
    candidates, emptied = [], []
    target = visit.fetched.target
    source = source_of(target.spider, target.url, is_feed=target.kind is Kind.FEED)
    for key, content, published, edited in _posts(visit):
        texts = as_texts(content, visit.fetched.markup)
        fields = {name: value for name, value in texts.items() if name != "main_text"}
        title, text = texts.get("title"), texts.get("main_text")
        sketch = sketch_of(scheme, title, text, fields, names)
        if sketch is None:
            emptied.append(key)
        else:
            created = created_at(published, visit.fetched.at)
            weighed = sourced_text(source, title, text, fields, names) if scheme.weighs else None
            candidate = Candidate(
                key, created, sketch, edited, text=weighed, fences=dict([fence_of(target)]),
                seen=visit.fetched.at, source=id_of(source),
            )  # fmt: skip
            candidates.append(candidate)
    return tuple(candidates), tuple(emptied)


def _posts(visit: Visit) -> Iterator[tuple[str, Mapping[str, Any], datetime | None, bool]]:
    """Yield key, content, date, and whether it may be stored already, of each post."""
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
