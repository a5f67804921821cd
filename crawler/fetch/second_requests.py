"""Second requests for pages whose content differs, to find out which of their text is random.

See `crawler.extract.noise`. A spider sends them before it yields what it has read, so that
pipelines only decide.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from scrapy import Request
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response

from crawler.extract.content import comparable, content_hash, fill, fill_safely
from crawler.extract.noise import after_visit, in_vain, is_chosen, is_long, learned, places_in
from crawler.fetch.downloader import UNCONDITIONAL
from crawler.frontier.run import Run
from crawler.items import CONFIRMS, Fetched, Kind, Target
from crawler.storage import targets

logger = logging.getLogger(__name__)
Read = Callable[[Response], Awaitable[Fetched]]
# The jar of second requests: some A/B tests keep the variant of a visitor in a cookie.
JAR = "second request"
MAX_CHARACTERS = 80


class SecondRequests:
    """Requests pages and feeds of a run a second time.

    request: creates the first request for a target
    """

    def __init__(self, run: Run, request: Callable[[Target], Request]) -> None:
        self._run, self._request = run, request
        # Pages of the site that were requested twice, and those of them that showed other text.
        self._twice: list[int] | None = None

    async def send(self, fetched: Fetched, read: Read) -> Fetched | None:
        """Request a target again, without cookies of the run; None if it fails or is another page.

        read: reads a response as the first one was read
        """
        state, crawler = self._run.state, self._run.crawler
        request = self._request(fetched.target)
        meta = request.meta | {UNCONDITIONAL: True, CONFIRMS: True, "cookiejar": JAR}
        state.second_requests += 1
        try:
            assert crawler.engine is not None
            response = await crawler.engine.download_async(request.replace(meta=meta))
            second = await read(response)
            if second.outcome is not None or second.stand_in is not None:
                return None
            fill(second)
        except Exception as error:  # noqa: BLE001 - without it, the change counts
            # Not sent, for example because of `host_requests` or robots.txt.
            state.second_requests -= isinstance(error, IgnoreRequest)
            logger.debug("Second request for %s failed: %s", fetched.target.url, error)
            return None
        return second if second.final_url == fetched.final_url else None

    async def confirm(self, fetched: Fetched, read: Read) -> None:
        """Set `noise` of an item that changes often, and its hash without the random text.

        Raises StorageError.
        """
        if not self._may_concern(fetched):
            return
        fill_safely(fetched)
        target, noise, content = fetched.target, fetched.random_text, fetched.content or {}
        if fetched.outcome is not None or fetched.content_hash == target.content_hash:
            return
        first = comparable(content, unordered=fetched.unordered)
        after = after_visit(noise, changed=True)
        if after.score < noise.wait and len(places_in(first, noise)) == len(noise.places):
            return
        twice = await self._counts(fetched.selector_digest)
        if not is_chosen(target.key, noise, *twice):
            fetched.noise = in_vain(noise)
            return
        # Counted now, because other pages are processed until the response arrives.
        twice[0] += not noise.requests
        second = await self.send(fetched, read)
        if second is None or second.content is None or is_long(second.content):
            return
        again = comparable(second.content, unordered=fetched.unordered)
        fixed = tuple(self._run.wrapper.fields)
        fetched.noise, lines = learned(first, again, noise, fixed)
        twice[1] += fetched.noise.is_suspicious and not noise.is_suspicious
        if lines:
            logger.info(
                "%s: not compared, because it differs between two requests in a row: %r",
                target.url, lines[0][:MAX_CHARACTERS],
            )  # fmt: skip
        fetched.content_hash = content_hash(fetched)

    def _may_concern(self, fetched: Fetched) -> bool:
        """Return whether a page is one whose changes may have to be confirmed."""
        target, noise = fetched.target, fetched.random_text
        return (
            target.kind is Kind.ITEM
            and self._run.wrapper.wants_main_text
            and fetched.outcome is None
            and fetched.stand_in is None
            and target.content_hash is not None
            and target.selector_digest == fetched.selector_digest
            # A redirect to another page, such as one for signing in, is not random.
            and fetched.final_url == target.final_url
            and (after_visit(noise, changed=True).score >= noise.wait or bool(noise.places))
            and not is_long(fetched.content or {})
        )

    async def _counts(self, scheme: str) -> list[int]:
        if self._twice is None:
            run = self._run
            stored = await run.patience.read(
                lambda: targets.requested_twice(run.db, run.spider, scheme)
            )
            # Another page may have set it meanwhile.
            self._twice = self._twice or [*stored]
        return self._twice
