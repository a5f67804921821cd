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
    """Functions that the server calls.

    metrics: returns the metrics in Prometheus's text format; None before the first read has
             finished
    problem: returns why the process is not ready, in one line; None if it is ready
    """

    metrics: Callable[[], Awaitable[bytes | None]]
    problem: Callable[[], Awaitable[str | None]]


async def answer(source: MetricsSource, method: str, path: str) -> Answer:
    """Return the response to a request; propagates the errors of `source`."""
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
    """Serves metrics if the Host header is this machine, its network, or a listed host.

    Requests with other hosts may come from a web page in a user's browser whose DNS name was
    rebound to this address.
    """

    failure = "Metrics request failed"

    def __init__(self, source: MetricsSource, address: Address, hosts: Collection[str]) -> None:
        super().__init__()
        self._source = source
        self._is_private = is_loopback(address.host)
        self._hosts = hosts

    async def answer(self, request: Any) -> Answer:
        """Return the response to a request."""
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
    """Serve metrics inside the context; yield the URL. Raises ConfigError, which names the option.

    hosts: host names to accept, in addition to those of the network
    """
    site = site_of(MetricsHandler(source, address, hosts))
    where = f"{option} {address.host}:{address.port}"
    async with server.served(site, address.port, address.host, where) as listening:
        yield url_of(listening)
