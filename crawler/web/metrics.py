"""The web server of metrics: `/metrics` for Prometheus, `/-/healthy` and `/-/ready`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from crawler.fetch.guard import is_in_network, is_local, is_loopback
from crawler.web import server
from crawler.web.address import Address
from crawler.web.server import Answer, Handler, host_of_request, site_of, url_of

INDEX = b"Freshet: /metrics /-/healthy /-/ready\n"


@dataclass(frozen=True, slots=True)
class MetricsSource:
    """Where the answers come from.

    metrics: in the text format; None: nothing yet
    problem: why the process cannot do its work, in a line; None if it can
    """

    metrics: Callable[[], Awaitable[bytes | None]]
    problem: Callable[[], Awaitable[str | None]]


async def answer(source: MetricsSource, method: str, path: str) -> Answer:
    """Return the answer to a request; may raise what `source` raises."""
    if method not in ("GET", "HEAD"):
        return Answer(405, b"use GET\n", server.PLAIN_TEXT | {"Allow": "GET, HEAD"})
    if path == "/metrics":
        text = await source.metrics()
        if text is None:
            return Answer(503, b"the first read of the database has not finished\n")
        return Answer(200, text, {"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})
    if path == "/-/ready":
        problem = await source.problem()
        return Answer(503, f"{problem}\n".encode()) if problem else Answer(200, b"ready\n")
    if path == "/-/healthy":
        return Answer(200, b"healthy\n")
    return Answer(200, INDEX) if path == "/" else Answer(404, INDEX)


class MetricsHandler(Handler):
    """Answers only requests for names of this machine, or for those that are listed.

    Requests for other names come from web pages whose name was pointed here.
    """

    failure = "metrics cannot be exported"

    def __init__(self, source: MetricsSource, address: Address, hosts: Collection[str]) -> None:
        super().__init__()
        self._source = source
        self._is_private = is_loopback(address.host)
        self._hosts = hosts

    async def answer(self, request: Any) -> Answer:
        """Return the answer to a request."""
        host = host_of_request(request)
        if self._is_private and not is_local(host):
            return Answer(403, b"available only on this machine; use localhost\n")
        if not self._is_private and not is_in_network(host, self._hosts):
            return Answer(403, b"unknown host name; add it to FRESHET_METRICS_HOSTS\n")
        method, path = request.method.decode("latin-1"), request.path.decode("latin-1")
        return await answer(self._source, method, path)


@asynccontextmanager
async def served(
    source: MetricsSource, address: Address, option: str, hosts: Collection[str]
) -> AsyncIterator[str]:
    """Serve while inside, at the URL; raises ConfigError, which names the option.

    hosts: further names by which it may be asked for
    """
    site = site_of(MetricsHandler(source, address, hosts))
    where = f"{option} {address.host}:{address.port}"
    async with server.served(site, address.port, address.host, where) as listening:
        yield url_of(listening)
