"""Scrapy's download handlers, with bounds on what an answer may cost; and the one for SQL cells.

What is not bounded here: bodies that unpack to more (bodies.py), cookies, robots.txt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

from OpenSSL import SSL
from scrapy import Request
from scrapy.core.downloader.contextfactory import (
    _ScrapyCertificateOptions,
    _ScrapyClientContextFactory,
)
from scrapy.core.downloader.handlers.base import BaseDownloadHandler
from scrapy.core.downloader.handlers.http11 import (
    HTTP11DownloadHandler,
    _BindAddressAgent,
    _LenientHTTP11ClientFactory,
    _LenientHTTP11ClientProtocol,
    _LenientHTTPClientParser,
    _ResponseReader,
    _ResultT,
    _ScrapyAgent,
)
from scrapy.crawler import Crawler
from scrapy.exceptions import (
    CannotResolveHostError,
    DownloadCancelledError,
    DownloadTimeoutError,
    NotSupported,
    ResponseDataLossError,
)
from scrapy.http import Response, TextResponse
from scrapy.utils._download_handlers import normalize_bind_address, wrap_twisted_exceptions
from scrapy.utils.defer import maybe_deferred_to_future
from scrapy.utils.misc import build_from_crawler
from service_identity import VerificationError
from service_identity.exceptions import CertificateError
from service_identity.hazmat import DNS_ID, IPAddress_ID, verify_service_identity
from service_identity.pyopenssl import extract_patterns
from twisted.internet._sslverify import ClientTLSOptions
from twisted.internet.defer import Deferred
from twisted.internet.ssl import platformTrust
from twisted.python.failure import Failure
from twisted.web._newclient import ParseError
from twisted.web.client import Agent
from twisted.web.http import _ChunkedTransferDecoder, _MalformedChunkedDataError

from crawler.config import Config
from crawler.errors import Misbehaves, OffLimits, QueryFailed
from crawler.fetch.bodies import LargeBodies, SpooledBody
from crawler.fetch.guard import ConnectionPolicy, Guard, GuardedReactor, refusal
from crawler.fetch.middlewares import NotAsked
from crawler.frontier.session import Session
from crawler.items import Target

if TYPE_CHECKING:
    from crawler.fetch.sql import Queries

# As much as Chrome takes; curl takes 300 kB.
HEAD_BYTES = 262_144
LINE_BYTES = 16_384
# Sizes of chunks may take so much more than the chunks themselves.
FRAMES_BYTES = 65_536
MOST_INTERIM = 100
# In a request's meta: seconds under way so far, those of redirects and retries before included.
SPENT = "seconds_under_way"
NO_HTTP = (ParseError, _MalformedChunkedDataError, ValueError, KeyError)
WAY_OUT = "verify_tls = false in the wrapper takes it"
# OpenSSL's numbers (X509_V_ERR_…) in words; the others are said as numbers.
FAULTS = {
    9: "is not valid yet",
    10: "has expired",
    18: "is signed by itself",
    19: "is signed by an authority that this machine does not trust",
    20: "is signed by an authority that this machine does not know",
    21: "comes without those of its authority",
    23: "was revoked",
}
MEGABYTE = 1024 * 1024


class BoundedChunks(_ChunkedTransferDecoder):
    """Chunks, handed on by the read and not one by one: crumbs would cost more time than pages."""

    def __init__(self, hand_on: Callable[[bytes], None], end: Callable[[bytes], None]) -> None:
        self._pieces: list[bytes] = []
        self._rest: list[bytes] = []
        super().__init__(self._pieces.append, self._rest.append)
        self._hand_on, self._end = hand_on, end
        self._surplus = 0

    def dataReceived(self, data: bytes) -> None:  # noqa: N802 - Twisted's name
        """Read what came; raises Misbehaves where it is frames rather than body."""
        super().dataReceived(data)
        read = b"".join(self._pieces)
        self._pieces.clear()
        self._surplus += len(data) - 2 * len(read)
        if self._surplus > FRAMES_BYTES + len(self._buffer):
            raise Misbehaves("chunks that are smaller than what frames them")
        if read:
            self._hand_on(read)
        if self._rest:
            self._end(self._rest.pop())


class BoundedParser(_LenientHTTPClientParser):
    """Reads the head of an answer, and of those before it (1xx), up to a limit."""

    MAX_LENGTH = LINE_BYTES
    _transferDecoders: dict[bytes, Any] = {b"chunked": BoundedChunks}  # noqa: N815, RUF012
    head_bytes = 0
    interim = 0

    def allHeadersReceived(self) -> None:  # noqa: N802
        """Go on to the body, or to the next head; raises Misbehaves where there were too many."""
        self.interim += self.response.code < 200
        if self.interim > MOST_INTERIM:
            raise Misbehaves(f"more than {MOST_INTERIM} interim answers")
        super().allHeadersReceived()  # type: ignore[no-untyped-call]

    def lineReceived(self, line: bytes) -> None:  # noqa: N802
        """Read a line; raises Misbehaves where there were too many."""
        self.head_bytes += len(line) + 1
        if self.head_bytes > HEAD_BYTES:
            raise Misbehaves(f"headers of more than {HEAD_BYTES // 1024} kB")
        super().lineReceived(line)

    def lineLengthExceeded(self, line: bytes) -> None:  # noqa: N802
        """Raise Misbehaves."""
        raise Misbehaves(f"a line of more than {LINE_BYTES // 1024} kB before the body")


class BoundedProtocol(_LenientHTTP11ClientProtocol):
    """A connection that is cut at once where its bytes make no sense, or too much of it."""

    def request(self, request: Any) -> Deferred[Any]:
        """Send a request, and read its answer within bounds."""
        answer = super().request(request)
        # As Scrapy gives the parser its class: Twisted names no way.
        if self._parser is not None:
            self._parser.__class__ = BoundedParser
            self._parser.finisher = self._ended
        return answer

    def _ended(self, rest: bytes) -> None:
        """What comes behind an answer must not be taken for the next page's."""
        if rest and self._parser is not None:
            self._parser.connHeaders.setRawHeaders(b"Connection", [b"close"])
        self._finishResponse(rest)

    def dataReceived(self, data: bytes) -> None:  # noqa: N802
        """Read what came. Twisted would say goodbye and wait, as long as an endless answer goes."""
        try:
            if self._parser is None:
                raise Misbehaves("an answer that nobody asked for")
            self._parser.dataReceived(data)  # type: ignore[no-untyped-call]
        except Exception:  # noqa: BLE001 - whatever it is, it ends this answer
            failure = Failure()  # type: ignore[no-untyped-call]
            transport: Any = self.transport
            transport.abortConnection()
            self._disconnectParser(failure)  # type: ignore[no-untyped-call]


class BoundedFactory(_LenientHTTP11ClientFactory):
    """Makes such connections."""

    def buildProtocol(self, addr: Any) -> BoundedProtocol:  # noqa: N802
        """One of them."""
        return BoundedProtocol(self._quiescentCallback)  # type: ignore[no-untyped-call]


class VerifyingContextFactory(_ScrapyClientContextFactory):
    """Scrapy's context factory; Scrapy 2.19 can verify, but would not tell what was wrong.

    One context for all connections: to read what the machine trusts takes longer than a page.
    """

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        trusted = platformTrust()  # type: ignore[no-untyped-call]
        options = self._get_cert_options_kwargs()
        self._options = _ScrapyCertificateOptions(trustRoot=trusted, **options)

    def creatorForNetloc(self, hostname: bytes, port: int) -> Any:  # noqa: N802 - Twisted's name
        """What makes connections to a host."""
        return Verifying(self._options._makeTLSConnection, hostname.decode("ascii"))


class Verifying(ClientTLSOptions):
    """Makes connections that end with a reason where the certificate is no good."""

    def clientConnectionForTLS(self, tlsProtocol: Any) -> SSL.Connection:  # noqa: N802, N803
        """As Twisted has it, with a check of its own."""
        connection = super().clientConnectionForTLS(tlsProtocol)
        name = self._hostnameASCII
        wanted = DNS_ID(name) if self._hostnameIsDnsName else IPAddress_ID(name)

        def check(_: Any, certificate: Any, error: int, depth: int, ok: int) -> bool:
            fault = None if ok else FAULTS.get(error, f"is no good (OpenSSL error {error})")
            if fault is None and depth == 0:
                try:
                    verify_service_identity(extract_patterns(certificate), [wanted], [])
                except (VerificationError, CertificateError):
                    fault = f"is not one of {name}"
            if fault is not None:
                problem = Misbehaves(f"the certificate {fault} ({WAY_OUT})")
                tlsProtocol.failVerification(Failure(problem))  # type: ignore[no-untyped-call]
            return fault is None

        connection.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, check)
        return connection


class HttpHandler(HTTP11DownloadHandler):
    """Asks for http and https; raises Misbehaves and OffLimits besides what Scrapy's raises."""

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._pool._factory = BoundedFactory
        if crawler.settings.getbool("DOWNLOAD_VERIFY_CERTIFICATES"):
            verifying: Any = build_from_crawler(VerifyingContextFactory, crawler)
            self._contextFactory = verifying
        self._guard = Guard.of(crawler)
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
            self._guard.log(error)
            raise

    async def _guarded(self, request: Request) -> Response:
        policy = self._guard.policy(request)
        agent = BoundedAgent(
            policy=policy,
            contextFactory=self._contextFactory,
            bindAddress=self._bind_address,
            pool=self._pool,
            maxsize=self._default_maxsize,
            fail_on_dataloss=self._fail_on_dataloss,
            crawler=self._crawler,
        )
        words = _in_words(request, policy, self._default_maxsize)
        with words, _in_time(request), wrap_twisted_exceptions():
            answer: Any = await maybe_deferred_to_future(agent.download_request(request))
        # Not in the request's time: it is not the server that lets it wait.
        return await agent.loaded(answer, self._large)


class BoundedAgent(_ScrapyAgent):
    """One request: by its connection policy, unless a proxy connects for us."""

    def __init__(self, *, policy: ConnectionPolicy, **given: Any) -> None:
        super().__init__(**given)
        self._policy = policy

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
            policy=self._policy,
            reactor=GuardedReactor(reactor, self._policy),
            contextFactory=self._contextFactory,
            connectTimeout=timeout,
            bindAddress=normalize_bind_address(
                request.meta.get("bindaddress") or self._bindAddress
            ),
            pool=self._pool,
        )


class GuardedAgent(_BindAddressAgent):
    """Takes no open connection that another request was let through to, but not this one."""

    def __init__(self, *, policy: ConnectionPolicy, **given: Any) -> None:
        super().__init__(**given)
        self._rights = (policy.private, policy.anywhere)

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
def _in_words(request: Request, policy: ConnectionPolicy, limit_bytes: int) -> Iterator[None]:
    """Say what was wrong with an answer, where Scrapy and Twisted only say that something was."""
    try:
        yield
    except CannotResolveHostError:
        if policy.refused:
            why = refusal(request.url, policy.refused, is_named=policy.private)
            raise OffLimits(request.url, why) from None
        raise
    except DownloadCancelledError:
        raise Misbehaves(f"a body of more than {limit_bytes} bytes (FRESHET_RESPONSE_MB)") from None
    except Exception as error:
        for cause in _causes(error):
            if isinstance(cause, Misbehaves):
                raise cause from None
            if cause is not error and isinstance(cause, NO_HTTP):
                reason = ": ".join(map(str, cause.args))
                raise Misbehaves(f"no valid HTTP: {reason}") from None
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


class SqlHandler(BaseDownloadHandler):
    """Runs the query of the cell that a request is for."""

    lazy = True

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._queries: dict[str, Queries] = {}

    async def download_request(self, request: Request) -> Response:
        """The result as a JSON response; raises QueryFailed, and NotAsked after one that hung."""
        session, target = Session.of(self.crawler), request.meta.get("target")
        if not isinstance(target, Target) or target.cell is None:
            raise NotSupported(f"{request.url}: no cell of this spider")
        cell = session.wrapper.cells[target.cell]
        if target.host in session.limits.given_up:
            raise NotAsked(f"{cell.database} does not answer")
        try:
            queries = self._of(session, cell.database or "")
            began = time.monotonic()
            body = await queries.result(cell)
        except QueryFailed as error:
            if error.hangs:
                session.limits.given_up.add(target.host)
            raise
        request.meta["download_latency"] = time.monotonic() - began
        return TextResponse(request.url, body=body, encoding="utf-8", request=request)

    async def close(self) -> None:
        """Let all connections go."""
        from crawler.fetch.sql import all_closed

        await all_closed(list(self._queries.values()))

    def _of(self, session: Session, database: str) -> Queries:
        from crawler.fetch.sql import Queries

        if database not in self._queries:
            source, most = session.wrapper.databases[database], session.config.response_mb
            self._queries[database] = Queries(database, source, int(most * MEGABYTE))
        return self._queries[database]
