"""Metrics for Prometheus: a route of the web app, and a small server for other processes.

The web app serves the metrics of the database. The service of `scrapy refresh run` serves those of
its process, with `/-/healthy` and `/-/ready`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.responses import PlainTextResponse, Response

from crawler.errors import StorageError
from crawler.fetch.guard import is_loopback
from crawler.reports.metrics import read, text_of, up
from crawler.utils.process import end_tasks
from crawler.web.auth import for_programs
from crawler.web.dependencies import WebDatabase
from crawler.web.options import Address, WebOptions
from crawler.web.server import create_minimal_app, listen, url_of
from crawler.web.server import served as app_served

CACHE_SECONDS = 60.0
# Limit on the time of a scrape: Prometheus's default timeout is 10 seconds.
WAIT_SECONDS = 5.0
# Time that a scrape waits for a read if it can return the previous one.
PATIENCE_SECONDS = 0.2
# Pause after a read, as a multiple of its duration: reads use at most 10 % of the time.
PAUSE_FACTOR = 9.0
RETRY_SECONDS = 5.0


class _WithoutDatabase(APIRoute):
    """A route that reports an outage of the database, also if it prevents checking the user.

    Like `/health`, it shows clients without a user only that the database is unavailable.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the function that handles requests."""
        handle = super().get_route_handler()

        async def handle_outages(request: Request) -> Response:
            try:
                return await handle(request)
            except StorageError:
                return _exposition(text_of([up(0)]))

        return handle_outages


router, probes = APIRouter(route_class=_WithoutDatabase), APIRouter()


@dataclass(frozen=True, slots=True)
class MetricsSource:
    """Functions that the routes call.

    metrics: returns the metrics in Prometheus's text format; None before the first read has
             finished
    problem: returns why the process is not ready, in one line; None if it is ready
    """

    metrics: Callable[[], Awaitable[bytes | None]]
    problem: Callable[[], Awaitable[str | None]]


@router.get("/metrics", name="metrics")
@for_programs
async def metrics(request: Request) -> Response:
    """Return the metrics in Prometheus's text format."""
    source: MetricsSource = request.app.state.metrics
    text = await source.metrics()
    if text is None:
        return PlainTextResponse("the first read of the database has not finished\n", 503)
    return _exposition(text)


def _exposition(text: bytes) -> Response:
    return Response(text, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


@probes.get("/")
async def index() -> Response:
    """List the paths of this server."""
    return PlainTextResponse("Freshet: /metrics /-/healthy /-/ready\n")


@probes.get("/-/healthy")
async def healthy() -> Response:
    """Return 200: the process responds."""
    return PlainTextResponse("healthy\n")


@probes.get("/-/ready")
async def ready(request: Request) -> Response:
    """Return 200 if the process is ready, else 503 with the reason."""
    source: MetricsSource = request.app.state.metrics
    problem = await source.problem()
    return PlainTextResponse(f"{problem or 'ready'}\n", 503 if problem else 200)


class DatabaseMetrics:
    """Metrics of the database, read again by a scrape if the last ones are too old.

    cache_seconds: age up to which metrics are served again without a read
    """

    def __init__(self, database: WebDatabase, cache_seconds: float = CACHE_SECONDS) -> None:
        self._database = database
        self._cache_seconds = cache_seconds
        self._text: bytes | None = None
        self._next = 0.0
        self._reading: asyncio.Task[None] | None = None
        self._seconds = 0.0

    @property
    def source(self) -> MetricsSource:
        """Return the functions of the routes."""
        return MetricsSource(self.exposition, self._database.problem)

    async def exposition(self) -> bytes | None:
        """Return the metrics as text; None before the first read has finished.

        If a read takes longer than WAIT_SECONDS, returns the result of the previous read; if the
        previous read took longer than PATIENCE_SECONDS, returns its result without waiting.
        """
        if await self._database.problem() is not None:
            return text_of([up(0)])
        if self._reading is None and time.monotonic() >= self._next:
            self._reading = asyncio.create_task(self._read())
        is_slow = self._text is not None and self._seconds > PATIENCE_SECONDS
        if self._reading is not None and not is_slow:
            done, _ = await asyncio.wait({self._reading}, timeout=WAIT_SECONDS)
            for reading in done:
                reading.result()  # raises unexpected errors
        return self._text

    async def close(self) -> None:
        """Cancel a read in progress."""
        if self._reading is not None:
            await end_tasks(self._reading)

    async def _read(self) -> None:
        began = time.monotonic()
        try:
            async with self._database.opened() as store:
                self._text = text_of(await read(store))
        except StorageError:
            self._text = text_of([up(0)])
            self._next = time.monotonic() + RETRY_SECONDS
        else:
            self._seconds = time.monotonic() - began
            pause = max(self._cache_seconds, PAUSE_FACTOR * self._seconds)
            self._next = time.monotonic() + pause
        finally:
            self._reading = None


@asynccontextmanager
async def served(
    source: MetricsSource, address: Address, option: str, hosts: Collection[str]
) -> AsyncIterator[str]:
    """Serve metrics inside the context; yield the URL. Raises ConfigError, which names the option.

    hosts: host names to accept, in addition to those of the network, unless the address is loopback
    """
    options = WebOptions(
        host=address.host,
        port=address.port,
        hosts=() if is_loopback(address.host) else tuple(hosts),
        hosts_setting="FRESHET_METRICS_HOSTS",
    )
    app = create_minimal_app(options, [router, probes])
    app.state.metrics = source
    listener = listen(options, f"{option} {address.host}:{address.port}")
    try:
        async with app_served(app, options, listener):
            yield url_of(listener)
    finally:
        listener.close()
