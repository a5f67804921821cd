"""Tell edits of a page from random text."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace
from typing import Any, cast

from scrapy.exceptions import IgnoreRequest
from scrapy.utils.asyncgen import as_async_generator

from crawler.extract.noise import (
    RANDOM,
    after_visit,
    in_vain,
    is_chosen,
    is_long,
    learned,
    passage_of,
    places_in,
)
from crawler.fetch.downloader import UNCONDITIONAL
from crawler.frontier.session import Session
from crawler.items import CONFIRMS, SEEN, Fetched, Kind, Noise, Visit
from crawler.storage import targets
from crawler.storage.client import Document
from crawler.utils.text import count
from pipelines.content import comparable, content_hash, digest, fill

logger = logging.getLogger(__name__)
# The jar of second requests: some A/B tests keep the variant of a visitor in a cookie.
JAR = "second request"
# Numbers of changes in a row in one passage that a run reports.
REPORTED = frozenset({5, 10, 20, 40, 80, 160, 320})
MAX_CHARACTERS = 80


class NoiseDetector:
    """Finds changes that are no edits of the page, during one run of a process."""

    def __init__(self, session: Session) -> None:
        self._session = session
        # Pages of the site that were requested twice, and those of them that showed other text.
        self._twice: list[int] | None = None
        # By number of changes in a row: the pages, and an example.
        self._repeats: Counter[int] = Counter()
        self._repeated: dict[int, str] = {}

    async def confirm(self, visit: Visit) -> None:
        """Set `noise` of a visit; a page that changes often may be requested a second time.

        The content hash of the visit is that without the random text.
        """
        fetched, target = visit.fetched, visit.fetched.target
        if target.kind is not Kind.ITEM or not self._session.wrapper.wants_main_text:
            return
        scheme = fetched.selector_digest
        is_known = target.noise is not None and target.noise.scheme == scheme
        noise = target.noise if target.noise is not None and is_known else Noise(scheme)
        if not visit.changed:
            if visit.outcome in SEEN and noise.score:
                visit.noise = after_visit(noise, changed=False)
            return
        if target.selector_digest != scheme or is_long(fetched.content or {}):
            return
        visit.noise = after_visit(noise, changed=True)
        first = comparable(fetched.content or {})
        is_due = visit.noise.score >= noise.wait or len(places_in(first, noise)) < len(noise.places)
        if not is_due:
            return
        if self._twice is None:
            db, spider = self._session.db, self._session.spider
            stored = await targets.requested_twice(db, spider, scheme)
            # Another page may have set it meanwhile.
            self._twice = self._twice or [*stored]
        if not is_chosen(target.key, noise, *self._twice):
            visit.noise = in_vain(noise)
            return
        # Counted now, because other pages are processed until the response arrives.
        self._twice[0] += not noise.requests
        if (second := await self._second(fetched)) is None:
            return
        fixed = tuple(self._session.wrapper.fields)
        visit.noise, lines = learned(first, comparable(second.content or {}), noise, fixed)
        self._twice[1] += visit.noise.is_suspicious and not noise.is_suspicious
        if lines:
            logger.info(
                "%s: not compared, because it differs between two requests in a row: %r",
                target.url, lines[0][:MAX_CHARACTERS],
            )  # fmt: skip
        target.noise = visit.noise
        fetched.content_hash = content_hash(fetched)

    async def _second(self, fetched: Fetched) -> Fetched | None:
        """Request a page again, without cookies of the run; None if it fails or is another page."""
        crawler = self._session.crawler
        spider = cast("Any", crawler.spider)
        request = spider.request(fetched.target)
        meta = request.meta | {UNCONDITIONAL: True, CONFIRMS: True, "cookiejar": JAR}
        self._session.second_requests += 1
        try:
            assert crawler.engine is not None
            response = await crawler.engine.download_async(request.replace(meta=meta))
            (second,) = [each async for each in as_async_generator(spider.parse_target(response))]
            is_page = second.outcome is None and second.stand_in is None
            if not is_page or second.content is None or is_long(second.content):
                return None
            fill(second)
        except Exception as error:  # noqa: BLE001 - without it, the change counts
            # Not sent, for example because of `host_requests` or robots.txt.
            self._session.second_requests -= isinstance(error, IgnoreRequest)
            logger.debug("Second request for %s failed: %s", fetched.target.url, error)
            return None
        return second if second.final_url == fetched.final_url else None

    def reason(self, visit: Visit, old: Document | None) -> str | None:
        """Return why a visit with a content that differs is not a change of the page; else None.

        old: content before; None if it is not stored
        """
        fetched = visit.fetched
        if not visit.changed or old is None or visit.noise is None:
            return None
        before = comparable(old, visit.noise)
        after = comparable(fetched.content or {}, visit.noise)
        if digest(before) == digest(after):
            return RANDOM
        passage = passage_of(before, after)
        again = passage is not None and passage.name == visit.noise.passage
        repeats = visit.noise.repeats + 1 if again else 1
        name = passage.name if passage is not None else ""
        visit.noise = replace(visit.noise, passage=name, repeats=repeats)
        if passage is not None and repeats in REPORTED:
            self._repeats[repeats] += 1
            text = passage.text[:MAX_CHARACTERS]
            self._repeated.setdefault(repeats, f"{fetched.target.url}: {text!r}")
        return None

    def report(self) -> list[str]:
        """Return what to report at the end of the run, one line each."""
        lines = []
        for repeats, pages in sorted(self._repeats.items()):
            lines.append(
                f"{count(pages, 'page')} changed {repeats} times in a row in the same passage, for "
                f"example {self._repeated[repeats]}; if it is not content, exclude it with "
                "ignore = ['SELECTOR'] in the site definition"
            )
        return lines
