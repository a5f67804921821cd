"""Download handlers: HTTP with limits on the size and time of a response, and SQL for cells.

Responses for targets go to the archive of the site, if it has one. Limits on decompressed bodies,
cookies and robots.txt are in their own modules.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from ipaddress import ip_address
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

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
    _LenientHTTPClientParser,
    _ResponseReader,
    _ResultT,
    _ScrapyAgent,
)
from scrapy.core.downloader.tls import _openssl_methods
from scrapy.crawler import Crawler
from scrapy.exceptions import (
    CannotResolveHostError,
    DownloadCancelledError,
    DownloadFailedError,
    DownloadTimeoutError,
    NotSupported,
    ResponseDataLossError,
)
from scrapy.http import Headers, Response, TextResponse
from scrapy.utils._download_handlers import normalize_bind_address, wrap_twisted_exceptions
from scrapy.utils.defer import maybe_deferred_to_future
from scrapy.utils.misc import build_from_crawler
from scrapy.utils.url import add_http_if_no_scheme
from service_identity import VerificationError
from service_identity.exceptions import CertificateError
from service_identity.hazmat import DNS_ID, IPAddress_ID, verify_service_identity
from service_identity.pyopenssl import extract_patterns
from twisted.internet._sslverify import ClientTLSOptions
from twisted.internet.base import ReactorBase
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.ssl import Certificate, platformTrust
from twisted.python.failure import Failure
from twisted.web._newclient import HTTP11ClientProtocol, HTTPClientParser, ParseError
from twisted.web.client import URI, Agent, HTTPConnectionPool
from twisted.web.http import RESPONSES, _ChunkedTransferDecoder, _MalformedChunkedDataError
from zope.interface import implementer  # type: ignore[import-untyped]

from crawler.archive.records import Exchange
from crawler.config import Config
from crawler.errors import ArchiveError, BadResponse, NoConnection, OffLimits, QueryFailed
from crawler.fetch.downloader import NotRequested, RunEnded
from crawler.fetch.guard import ConnectionPolicy, Guard, GuardedReactor, refusal
from crawler.fetch.large_bodies import LargeBodies, SpooledBody
from crawler.frontier.run import Run
from crawler.frontier.session import Session
from crawler.items import ARCHIVED, CONFIRMS, Target
from crawler.utils.urls import proxy_problem

if TYPE_CHECKING:
    from crawler.fetch.sql import Queries

# Twisted times its calls by the wall clock. A clock that jumps ahead would end all requests in
# flight. This module is loaded before a crawl schedules its first call.
ReactorBase.seconds = staticmethod(monotonic)
# The limit of Chrome; curl allows 300 kB.
HEAD_BYTES = 262_144
LINE_BYTES = 16_384
# Bytes by which the framing of chunks may exceed the data in them.
FRAMES_BYTES = 65_536
MAX_INTERIM = 100
# A quarter of the files that a process may open by default.
MAX_IDLE_CONNECTIONS = 256
# Key in request.meta: seconds spent so far, including redirects and retries.
SPENT = "seconds_under_way"
HTTP_ERRORS = (ParseError, _MalformedChunkedDataError, ValueError, KeyError)
# OpenSSL's reason if the server closes a connection without the message of TLS for that.
CLOSED = "unexpected eof while reading"
ACCEPT_HINT = "to accept it: verify_tls = false in the site definition"
# Messages for the common X509_V_ERR_… numbers of OpenSSL.
FAULTS = {
    9: "is not valid yet",
    10: "has expired",
    18: "is self-signed",
    19: "has a root certificate that this machine does not trust",
    20: "is signed by an authority that this machine does not trust",
    21: "lacks the intermediate certificates of its authority",
    23: "was revoked",
}
MEGABYTE = 1024 * 1024
# Scrapy's value of DOWNLOADER_CLIENTCONTEXTFACTORY for its own factory.
DEFAULT_FACTORY = "SENTINEL"
# Only these headers of requests are stored: any other may carry a secret.
STORED = (
    b"Accept", b"Accept-Encoding", b"Accept-Language", b"If-Modified-Since", b"If-None-Match",
    b"User-Agent",
)  # fmt: skip


class BoundedChunks(_ChunkedTransferDecoder):
    """Chunked decoder that passes on all chunks of a read together.

    Twisted passes on each chunk, which takes too long for a page in chunks of one byte.
    """

    def __init__(self, pass_on: Callable[[bytes], None], end: Callable[[bytes], None]) -> None:
        self._pieces: list[bytes] = []
        self._rest: list[bytes] = []
        super().__init__(self._pieces.append, self._rest.append)
        self._pass_on, self._end = pass_on, end
        self._surplus = 0

    def dataReceived(self, data: bytes) -> None:  # noqa: N802 - Twisted's name
        """Decode received data; raises BadResponse if it is mostly framing."""
        super().dataReceived(data)
        read = b"".join(self._pieces)
        self._pieces.clear()
        self._surplus += len(data) - 2 * len(read)
        if self._surplus > FRAMES_BYTES + len(self._buffer):
            raise BadResponse("chunk framing larger than the chunks")
        if read:
            self._pass_on(read)
        if self._rest:
            self._end(self._rest.pop())


class BoundedParser(_LenientHTTPClientParser):
    """Parses the headers of a response, including interim (1xx) responses, within limits."""

    MAX_LENGTH = LINE_BYTES
    _transferDecoders: dict[bytes, Any] = {b"chunked": BoundedChunks}  # noqa: N815, RUF012
    head_bytes = 0
    interim = 0

    def __init__(self, request: Any, finisher: Callable[[bytes], None]) -> None:
        super().__init__(request, finisher)  # type: ignore[no-untyped-call]
        # Status line and headers of the current response, without line ends.
        self.head: list[bytes] = []

    def allHeadersReceived(self) -> None:  # noqa: N802
        """Continue with the body or the next response; raises BadResponse for too many interims."""
        self.response.head = b"\r\n".join(filter(None, self.head))
        self.head.clear()
        self.interim += self.response.code < 200
        if self.interim > MAX_INTERIM:
            raise BadResponse(f"more than {MAX_INTERIM} interim (1xx) responses")
        super().allHeadersReceived()  # type: ignore[no-untyped-call]

    def lineReceived(self, line: bytes) -> None:  # noqa: N802
        """Parse a header line; raises BadResponse if the headers are too large."""
        self.head_bytes += len(line) + 1
        self.head.append(line.rstrip(b"\r"))
        if self.head_bytes > HEAD_BYTES:
            raise BadResponse(f"headers larger than {HEAD_BYTES // 1024} kB")
        super().lineReceived(line)

    def lineLengthExceeded(self, line: bytes) -> None:  # noqa: N802
        """Raise BadResponse for a line longer than LINE_BYTES."""
        raise BadResponse(f"header line longer than {LINE_BYTES // 1024} kB")


class BoundedProtocol(HTTP11ClientProtocol):
    """HTTP/1.1 connection that is aborted if a response is invalid or exceeds a limit."""

    _own_parser: BoundedParser | None = None

    @property
    def _parser(self) -> BoundedParser | None:
        """Parser of the response in progress. Twisted has no other hook for its class."""
        return self._own_parser

    @_parser.setter
    def _parser(self, parser: HTTPClientParser | None) -> None:
        self._own_parser = None if parser is None else BoundedParser(parser.request, self._ended)

    def request(self, request: Any) -> Deferred[Any]:
        """Send a request; note address and certificate of the server for a response without a body.

        Scrapy's protocol does the same, but with a parser of its own.
        """
        answer: Deferred[Any] = super().request(request)
        return answer.addCallback(self._with_peer)

    def _with_peer(self, response: Any) -> Any:
        transport: Any = self.transport
        with suppress(AttributeError):  # a peer without an IP address
            response._scrapy_ip_address = ip_address(transport.getPeer().host)
        with suppress(AttributeError):  # a connection without TLS
            certificate = Certificate(transport.getPeerCertificate())  # type: ignore[no-untyped-call]
            response._scrapy_certificate = certificate
        return response

    def _ended(self, rest: bytes) -> None:
        """Close the connection if data follows a response: it is not part of the next one."""
        if rest and self._parser is not None:
            self._parser.connHeaders.setRawHeaders(b"Connection", [b"close"])
        self._finishResponse(rest)

    def dataReceived(self, data: bytes) -> None:  # noqa: N802
        """Parse received data; on error, abort the connection.

        Twisted calls loseConnection(), which waits for the peer: forever if the response never
        ends.
        """
        try:
            if self._parser is None:
                raise BadResponse("response without a request")
            self._parser.dataReceived(data)  # type: ignore[no-untyped-call]
        except Exception:  # noqa: BLE001 - any error ends the response
            failure = Failure()  # type: ignore[no-untyped-call]
            transport: Any = self.transport
            transport.abortConnection()
            self._disconnectParser(failure)  # type: ignore[no-untyped-call]


class BoundedFactory(_LenientHTTP11ClientFactory):
    """Creates bounded connections."""

    def buildProtocol(self, addr: Any) -> BoundedProtocol:  # noqa: N802
        """Create a connection."""
        return BoundedProtocol(self._quiescentCallback)  # type: ignore[no-untyped-call]


class BoundedPool(HTTPConnectionPool):
    """Keeps at most MAX_IDLE_CONNECTIONS idle connections, and closes the oldest ones beyond that.

    Twisted limits the idle connections of a host, and keeps them for four minutes. A list of many
    sites would exceed the number of files that a process may open (1,024 by default).
    """

    _factory = BoundedFactory

    def _putConnection(self, key: Any, connection: Any) -> None:  # noqa: N802
        super()._putConnection(key, connection)  # type: ignore[no-untyped-call]
        while len(self._timeouts) > MAX_IDLE_CONNECTIONS:
            closing = next(iter(self._timeouts.values()))
            close, given = closing.func, closing.args
            closing.cancel()
            close(*given)

    def _removeConnection(self, key: Any, connection: Any) -> None:  # noqa: N802
        super()._removeConnection(key, connection)  # type: ignore[no-untyped-call]
        if not self._connections[key]:
            del self._connections[key]


class VerifyingContextFactory(_ScrapyClientContextFactory):
    """TLS context factory that reports why a certificate is invalid; Scrapy 2.19 does not.

    It shares one context among all connections: loading the trusted root certificates takes longer
    than fetching a page.
    """

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        trusted = platformTrust()  # type: ignore[no-untyped-call]
        options = self._get_cert_options_kwargs()
        self._options = _ScrapyCertificateOptions(trustRoot=trusted, **options)

    def creatorForNetloc(self, hostname: bytes, port: int) -> Any:  # noqa: N802 - Twisted's name
        """Return the creator of TLS connections to a host."""
        return Verifying(self._options._makeTLSConnection, hostname.decode("ascii"))


class Verifying(ClientTLSOptions):
    """Creates TLS connections that fail with a reason if the certificate is invalid."""

    def clientConnectionForTLS(self, tlsProtocol: Any) -> SSL.Connection:  # noqa: N802, N803
        """Create a connection with a callback that checks certificate and host name."""
        connection = super().clientConnectionForTLS(tlsProtocol)
        name = self._hostnameASCII
        expected = DNS_ID(name) if self._hostnameIsDnsName else IPAddress_ID(name)

        def check(_: Any, certificate: Any, error: int, depth: int, ok: int) -> bool:
            fault = None if ok else FAULTS.get(error, f"is invalid (OpenSSL error {error})")
            if fault is None and depth == 0:
                try:
                    verify_service_identity(extract_patterns(certificate), [expected], [])
                except (VerificationError, CertificateError):
                    fault = f"is not valid for {name}"
            if fault is not None:
                problem = NoConnection(f"the certificate {fault} ({ACCEPT_HINT})")
                tlsProtocol.failVerification(Failure(problem))  # type: ignore[no-untyped-call]
            return fault is None

        connection.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, check)
        return connection


class HttpHandler(HTTP11DownloadHandler):
    """Downloads http and https URLs; raises BadResponse, OffLimits and Scrapy's errors."""

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        pool: Any = BoundedPool(self._pool._reactor)  # type: ignore[no-untyped-call]
        pool.maxPersistentPerHost = self._pool.maxPersistentPerHost
        self._pool = pool
        settings = crawler.settings
        is_own = settings["DOWNLOADER_CLIENTCONTEXTFACTORY"] == DEFAULT_FACTORY
        if settings.getbool("DOWNLOAD_VERIFY_CERTIFICATES") and is_own:
            method = _openssl_methods[settings["DOWNLOADER_CLIENT_TLS_METHOD"]]
            verifying: Any = build_from_crawler(VerifyingContextFactory, crawler, method=method)
            self._contextFactory = verifying
        self._guard = Guard.of(crawler)
        self._large = LargeBodies.of(crawler)
        self._longest = Config.of(crawler.settings).url_characters

    async def download_request(self, request: Request) -> Response:
        """Return the response to a request."""
        if request.meta.get("redirect_times") and len(request.url) > self._longest:
            raise BadResponse(
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
            warnsize=self._default_warnsize,
            fail_on_dataloss=self._fail_on_dataloss,
            crawler=self._crawler,
            tls_verbose_logging=self._tls_verbose_logging,
        )
        errors = _explain_errors(request, policy, self._default_maxsize)
        with errors, _limit_time(request, policy), wrap_twisted_exceptions():
            answer: Any = await maybe_deferred_to_future(agent.download_request(request))
        # Outside the time limit: these waits are not the server's fault.
        response = await agent.loaded(answer, self._large)
        session = getattr(self._crawler.spider, "session", None)
        if isinstance(session, Session) and session.archive is not None:
            head = getattr(answer[0]["txresponse"], "head", b"")
            await archive(session, request, response, head)
        return response


class BoundedAgent(_ScrapyAgent):
    """Sends one request under its connection policy; with a proxy, the policy does not apply."""

    def __init__(self, *, policy: ConnectionPolicy, **given: Any) -> None:
        super().__init__(**given)
        self._policy = policy

    def _cb_bodyready(self, txresponse: Any, request: Request) -> Any:
        result = super()._cb_bodyready(txresponse, request)
        reader = txresponse._bodyProtocol
        if isinstance(reader, _ResponseReader):
            # The reader may already have the data that arrived with the headers.
            reader._bodybuf = SpooledBody(reader._bodybuf.getvalue())  # type: ignore[assignment]
        return result

    @staticmethod
    def _headers_from_twisted_response(response: Any) -> Headers:
        """Return the headers; Scrapy converts them twice, first for the signal headers_received."""
        headers: Headers | None = getattr(response, "scrapy_headers", None)
        if headers is None:
            headers = _ScrapyAgent._headers_from_twisted_response(response)
            response.scrapy_headers = headers
        return headers

    def _cb_bodydone(self, result: _ResultT, url: str) -> Any:
        """Return the raw result; Scrapy would create the response here, within the time limit."""
        return result, url

    async def loaded(self, answer: tuple[_ResultT, str], large: LargeBodies) -> Response:
        """Return the response with its body in memory; wait for room if the body is large."""
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
        if proxy := request.meta.get("proxy"):
            # Of a spider's own requests; other places refuse such a proxy when it is set.
            if (problem := proxy_problem(add_http_if_no_scheme(proxy))) is not None:
                raise BadResponse(f"proxy: {problem}")
            return super()._get_agent(request, timeout)
        from twisted.internet import reactor

        return GuardedAgent(
            policy=self._policy,
            reactor=reactor,
            contextFactory=self._contextFactory,
            connectTimeout=timeout,
            bindAddress=normalize_bind_address(
                request.meta.get("bindaddress") or self._bindAddress
            ),
            pool=self._pool,
        )


class GuardedAgent(_BindAddressAgent):
    """Connects under a policy, and reuses a connection only for requests with the same policy."""

    def __init__(self, *, policy: ConnectionPolicy, reactor: Any, **given: Any) -> None:
        guarded: Any = GuardedReactor(reactor, policy)
        super().__init__(reactor=guarded, **given)
        self._policy = policy
        self._rights = (policy.private, policy.anywhere)

    def _getEndpoint(self, uri: URI) -> Any:  # noqa: N802
        return LazyEndpoint(partial(super()._getEndpoint, uri), self._policy)

    def _requestWithEndpoint(self, key: Any, *request: Any) -> Deferred[Any]:  # noqa: N802
        return super()._requestWithEndpoint((*key, *self._rights), *request)


@implementer(IStreamClientEndpoint)
class LazyEndpoint:
    """Endpoint that is created only for a new connection, because creating it is slow."""

    def __init__(self, create: Callable[[], Any], policy: ConnectionPolicy) -> None:
        self._create, self._policy = create, policy

    def connect(self, factory: Any) -> Any:
        """Create the endpoint and connect; an invalid host name fails the connection."""
        self._policy.is_connecting = True
        connection = maybeDeferred(lambda: self._create().connect(factory))
        return connection.addCallback(self._connected)

    def _connected(self, protocol: Any) -> Any:
        self._policy.is_connecting = False
        return protocol


@contextmanager
def _limit_time(request: Request, policy: ConnectionPolicy) -> Iterator[None]:
    """Limit the time of a request, including its redirects and retries.

    Raises NoConnection if the server accepted no connection in this time, else BadResponse.
    """
    meta, began = request.meta, monotonic()
    timeout, spent = meta.get("download_timeout"), meta.get(SPENT, 0.0)
    within = f"in {timeout or 0:g} s (FRESHET_RESPONSE_SECONDS)"
    if timeout and spent >= timeout:
        raise BadResponse(f"Timeout: no complete response {within}")
    try:
        meta["download_timeout"] = timeout and timeout - spent
        yield
    except DownloadTimeoutError:
        if policy.is_connecting:
            raise NoConnection(f"Timeout: no connection {within}") from None
        raise BadResponse(f"Timeout: no complete response {within}") from None
    finally:
        meta["download_timeout"] = timeout
        meta[SPENT] = spent + monotonic() - began


@contextmanager
def _explain_errors(request: Request, policy: ConnectionPolicy, limit_bytes: int) -> Iterator[None]:
    """Replace generic errors of Scrapy and Twisted with errors that contain the cause."""
    try:
        yield
    except CannotResolveHostError:
        if policy.refused:
            why = refusal(request.url, policy.refused, is_named=policy.private)
            raise OffLimits(request.url, why) from None
        raise
    except DownloadCancelledError:
        raise BadResponse(f"body larger than {limit_bytes} bytes (FRESHET_RESPONSE_MB)") from None
    except Exception as error:
        if (explained := _explained(error)) is not error:
            raise explained from None
        raise


def _explained(error: Exception) -> Exception:
    """Return an error that contains the cause of an error, or the error itself."""
    for cause in _causes(error):
        if isinstance(cause, BadResponse):
            return cause
        if cause is not error and isinstance(cause, HTTP_ERRORS):
            return BadResponse(f"invalid HTTP response: {': '.join(map(str, cause.args))}")
    if isinstance(error, ResponseDataLossError):
        return ResponseDataLossError("connection closed before the end of the body")
    if isinstance(error, DownloadFailedError):
        reasons = (_tls_problem(cause) for cause in _causes(error) if isinstance(cause, SSL.Error))
        if (reason := next(reasons, CLOSED)) != CLOSED:
            return NoConnection(f"no TLS connection: {reason}")
        return DownloadFailedError("connection closed before the response")
    return error


def _tls_problem(error: SSL.Error) -> str:
    """Return the reason in the last of OpenSSL's rows of library, function and reason."""
    rows = error.args[0] if error.args and isinstance(error.args[0], list) else []
    return str(rows[-1][-1]) if rows else CLOSED


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes, both Python's `__cause__` and Twisted's `reasons`."""
    if error is not None:
        yield error
        yield from _causes(error.__cause__)
        for reason in getattr(error, "reasons", None) or ():
            yield from _causes(reason.value)


class SqlHandler(BaseDownloadHandler):
    """Runs the SQL query of a cell."""

    lazy = True

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._queries: dict[str, Queries] = {}

    async def download_request(self, request: Request) -> Response:
        """Return the result as a JSON response.

        Raises QueryFailed, and NotRequested if the database did not answer an earlier query of
        the run.
        """
        run, target = Session.of(self.crawler).run, request.meta.get("target")
        if not isinstance(target, Target) or target.cell is None:
            raise NotSupported(f"{request.url}: not a cell of this spider")
        cell = run.wrapper.cells[target.cell]
        if target.host in run.limits.given_up:
            raise NotRequested(f"database {cell.database} does not answer")
        try:
            queries = self._of(run, cell.database or "")
            began = time.monotonic()
            body = await queries.result(cell)
        except QueryFailed as error:
            if error.hangs:
                run.limits.given_up.add(target.host)
            raise
        request.meta["download_latency"] = time.monotonic() - began
        return TextResponse(request.url, body=body, encoding="utf-8", request=request)

    async def close(self) -> None:
        """Close all database connections."""
        from crawler.fetch.sql import all_closed

        await all_closed(list(self._queries.values()))

    def _of(self, run: Run, database: str) -> Queries:
        from crawler.fetch.sql import Queries

        if database not in self._queries:
            source, max_mb = run.wrapper.databases[database], run.config.response_mb
            self._queries[database] = Queries(database, source, int(max_mb * MEGABYTE))
        return self._queries[database]


async def archive(session: Session, request: Request, response: Response, head: bytes) -> None:
    """Add a response for a target to the archive, if the site has one.

    head: status line and headers as received; empty if unknown

    Raises RunEnded if the archive cannot be written: the run ends, and the target stays due.
    """
    target = request.meta.get("target")
    if session.archive is None or not isinstance(target, Target) or CONFIRMS in request.meta:
        return
    parts = urlsplit(request.url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    host = parts.netloc.rpartition("@")[2]
    sent = [f"{request.method} {path} HTTP/1.1".encode(), f"Host: {host}".encode()]
    for name in STORED:
        sent += [name + b": " + value for value in request.headers.getlist(name)]
    if not head:
        # Reconstruct the status line and headers from Scrapy's response.
        headers: Headers = response.headers
        phrase = RESPONSES.get(response.status, b"")
        status = f"{response.protocol or 'HTTP/1.1'} {response.status} ".encode() + phrase
        lines = filter(None, (headers.to_string() or b"").split(b"\r\n"))
        head = b"\r\n".join([status, *lines])
    exchange = Exchange(
        response.url, session.run.clock.now(), response.status, b"\r\n".join(sent), head,
        response.body, str(response.ip_address) if response.ip_address else None,
    )  # fmt: skip
    try:
        request.meta[ARCHIVED] = await session.archive.add(exchange, target.archived)
    except ArchiveError as error:
        session.run.fail(error)
        raise RunEnded("the archive cannot be written") from None
