"""Scrapy's way of asking for a page, with bounds on what an answer may cost.

What is not bounded here: bodies that unpack to more (unpacking.py), cookies, robots.txt.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from scrapy import Request
from scrapy.core.downloader.handlers.http11 import (
    HTTP11DownloadHandler,
    _BindAddressAgent,
    _ResponseReader,
    _ResultT,
    _ScrapyAgent,
)
from scrapy.crawler import Crawler
from scrapy.exceptions import (
    CannotResolveHostError,
    DownloadCancelledError,
    DownloadTimeoutError,
    ResponseDataLossError,
)
from scrapy.http import Response
from scrapy.utils._download_handlers import normalize_bind_address, wrap_twisted_exceptions
from scrapy.utils.defer import maybe_deferred_to_future
from scrapy.utils.misc import build_from_crawler
from twisted.internet.defer import Deferred
from twisted.web._newclient import ParseError
from twisted.web.client import Agent
from twisted.web.http import _MalformedChunkedDataError

from crawler.config import Config
from crawler.errors import Misbehaves, OffLimits
from crawler.middlewares.certificates import VerifyingContextFactory
from crawler.middlewares.gate import Gate, Passage, refusal
from crawler.middlewares.heads import BoundedFactory
from crawler.middlewares.largebodies import LargeBodies, SpooledBody
from crawler.middlewares.resolving import GuardedReactor

# In a request's meta: seconds under way so far, those of redirects and retries before included.
SPENT = "seconds_under_way"
NO_HTTP = (ParseError, _MalformedChunkedDataError, ValueError, KeyError)


class HttpHandler(HTTP11DownloadHandler):
    """Asks for http and https; raises Misbehaves and OffLimits besides what Scrapy's raises."""

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._pool._factory = BoundedFactory
        if crawler.settings.getbool("DOWNLOAD_VERIFY_CERTIFICATES"):
            verifying: Any = build_from_crawler(VerifyingContextFactory, crawler)
            self._contextFactory = verifying
        self._gate = Gate.of(crawler)
        self._large = LargeBodies.of(crawler)
        self._longest = Config.of(crawler.settings).url_characters

    async def download_request(self, request: Request) -> Response:
        """The answer to a request."""
        if request.meta.get("redirect_times") and len(request.url) > self._longest:
            raise Misbehaves(
                f"redirects to a URL of {len(request.url)} characters (FRESHET_URL_CHARACTERS)"
            )
        try:
            return await self._guarded(request)
        except OffLimits as error:
            self._gate.log(error)
            raise

    async def _guarded(self, request: Request) -> Response:
        passage = self._gate.passage(request)
        agent = BoundedAgent(
            passage=passage,
            contextFactory=self._contextFactory,
            bindAddress=self._bind_address,
            pool=self._pool,
            maxsize=self._default_maxsize,
            fail_on_dataloss=self._fail_on_dataloss,
            crawler=self._crawler,
        )
        words = _in_words(request, passage, self._default_maxsize)
        with words, _in_time(request), wrap_twisted_exceptions():
            answer: Any = await maybe_deferred_to_future(agent.download_request(request))
        # Not in the request's time: it is not the server that lets it wait.
        return await agent.loaded(answer, self._large)


class BoundedAgent(_ScrapyAgent):
    """One request: through its passage, unless a proxy connects for us."""

    def __init__(self, *, passage: Passage, **given: Any) -> None:
        super().__init__(**given)
        self._passage = passage

    def _cb_bodyready(self, txresponse: Any, request: Request) -> Any:
        result = super()._cb_bodyready(txresponse, request)
        reader = txresponse._bodyProtocol
        if isinstance(reader, _ResponseReader):
            # It has been handed what came with the headers, which may have been all.
            reader._bodybuf = SpooledBody(reader._bodybuf.getvalue())  # type: ignore[assignment]
        return result

    def _cb_bodydone(self, result: _ResultT, url: str) -> Any:
        """Scrapy's makes the response here, within the request's time."""
        return result, url

    async def loaded(self, answer: tuple[_ResultT, str], large: LargeBodies) -> Response:
        """The response with its body in memory; waits for room where the body is large."""
        result, url = answer
        body: SpooledBody | bytes = result.get("body", b"")
        flags: list[str] = []
        if isinstance(body, SpooledBody):
            flags = await large.admit(body.size_bytes)
            body = body.load()
        flags = [*(result.get("flags") or []), *flags]
        whole: _ResultT = {**result, "body": body, "flags": flags or None}
        return super()._cb_bodydone(whole, url)

    def _get_agent(self, request: Request, timeout: float) -> Agent:
        if request.meta.get("proxy"):
            return super()._get_agent(request, timeout)
        from twisted.internet import reactor

        return GuardedAgent(
            passage=self._passage,
            reactor=GuardedReactor(reactor, self._passage),
            contextFactory=self._contextFactory,
            connectTimeout=timeout,
            bindAddress=normalize_bind_address(
                request.meta.get("bindaddress") or self._bindAddress
            ),
            pool=self._pool,
        )


class GuardedAgent(_BindAddressAgent):
    """Takes no open connection that another request was let through to, but not this one."""

    def __init__(self, *, passage: Passage, **given: Any) -> None:
        super().__init__(**given)
        self._rights = (passage.private, passage.anywhere)

    def _requestWithEndpoint(self, key: Any, *request: Any) -> Deferred[Any]:  # noqa: N802
        return super()._requestWithEndpoint((*key, *self._rights), *request)


@contextmanager
def _in_time(request: Request) -> Iterator[None]:
    """Give a request what is left of its time, its redirects and retries included."""
    meta, began = request.meta, monotonic()
    whole, spent = meta.get("download_timeout"), meta.get(SPENT, 0.0)
    late = f"Timeout: no whole answer in {whole or 0:g} s (FRESHET_RESPONSE_SECONDS)"
    if whole and spent >= whole:
        raise Misbehaves(late)
    try:
        meta["download_timeout"] = whole and whole - spent
        yield
    except DownloadTimeoutError:
        raise Misbehaves(late) from None
    finally:
        meta["download_timeout"] = whole
        meta[SPENT] = spent + monotonic() - began


@contextmanager
def _in_words(request: Request, passage: Passage, limit_bytes: int) -> Iterator[None]:
    """Say what was wrong with an answer, where Scrapy and Twisted only say that something was."""
    try:
        yield
    except CannotResolveHostError:
        if passage.refused:
            why = refusal(request.url, passage.refused, is_named=passage.private)
            raise OffLimits(request.url, why) from None
        raise
    except DownloadCancelledError:
        raise Misbehaves(f"a body of more than {limit_bytes} bytes (FRESHET_RESPONSE_MB)") from None
    except Exception as error:
        for cause in _causes(error):
            if isinstance(cause, Misbehaves):
                raise cause from None
            if cause is not error and isinstance(cause, NO_HTTP):
                said = ": ".join(map(str, cause.args))
                raise Misbehaves(f"no valid HTTP: {said}") from None
        if isinstance(error, ResponseDataLossError):
            raise ResponseDataLossError("the connection ended before the body") from None
        raise


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what led to it, as Twisted and Python keep it."""
    if error is not None:
        yield error
        yield from _causes(error.__cause__)
        for reason in getattr(error, "reasons", None) or ():
            yield from _causes(reason.value)
