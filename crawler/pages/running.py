"""The server of `scrapy pages serve`: shows pages, and builds them again as cells change."""

from __future__ import annotations

import asyncio
import signal
import time

from twisted.internet.defer import maybeDeferred

from crawler.config import Config
from crawler.pages.options import Listening, Places
from crawler.pages.site import listen
from crawler.pages.watching import COMMAND, Watching
from crawler.reactor import run_in_reactor, url_of
from crawler.storage.client import Document
from crawler.storage.store import Store
from crawler.utils.terminal import complain


def serve(config: Config, order: Places, address: Listening) -> Document:
    """Serve to the end; a summary. Raises FreshetError."""
    return run_in_reactor(_work(config, order, address))


async def _work(config: Config, order: Places, address: Listening) -> Document:
    from twisted.internet import reactor

    stop, began = _stop_at_signals(), time.monotonic()
    store = await Store.open(config)
    try:
        watching = Watching(store, order)
        port = listen(reactor, address, order.out)
        url = url_of(port)
        try:
            await watching.build()
            complain(COMMAND, f"{url} shows {order.out}")
            await _until(stop, address.seconds, watching)
        finally:
            await maybeDeferred(port.stopListening).asFuture(asyncio.get_running_loop())
    finally:
        await store.close()
    return {
        "url": url,
        "out": str(order.out),
        "seconds": round(time.monotonic() - began, 1),
        "written": watching.written,
        "pages": watching.pages,
    }


def _stop_at_signals() -> asyncio.Event:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return stop


async def _until(stop: asyncio.Event, seconds: float | None, watching: Watching) -> None:
    """Watch until a signal comes or the time is over."""
    ended = asyncio.create_task(stop.wait())
    work = asyncio.create_task(watching.work())
    done, _ = await asyncio.wait(
        {ended, work}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
    )
    ended.cancel()
    await watching.end(work)
    if work in done:
        work.result()
