"""The process of the service: its reactor, its log, its signals."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import time
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from scrapy.crawler import AsyncCrawlerProcess
from scrapy.settings import SETTINGS_PRIORITIES, Settings

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.ops.jobs import Job
from crawler.ops.options import Order
from crawler.ops.service import Service
from crawler.storage.store import Store

ENDS = (signal.SIGINT, signal.SIGTERM)
SERVICE = "crawler.ops"


def serve(config: Config, settings: Settings, jobs: list[Job], order: Order) -> dict[str, Any]:
    """Keep the jobs fresh to the end; a summary. Raises FreshetError."""
    # As in a crawl: reactor, DNS and its threads; the passes are not this object's.
    own = settings.copy()
    own.set("LOG_INSTALL_ROOT_HANDLER", False, priority="cmdline")
    process = AsyncCrawlerProcess(own)
    _log(settings)
    task = asyncio.get_event_loop().create_task(_work(config, settings, jobs, order))
    task.add_done_callback(_stop_reactor)
    process.start(stop_after_crawl=False, install_signal_handlers=False)
    # A pass that did not end in time is left as it is; the next one makes its log whole.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    return task.result()


def _stop_reactor(_: object) -> None:
    from twisted.internet import reactor as installed

    reactor: Any = installed
    reactor.stop()


def _log(settings: Settings) -> None:
    """The service speaks from `LOG_LEVEL` on, all others when something is wrong."""
    level = logging.getLevelNamesMapping().get(str(settings["LOG_LEVEL"]).upper())
    if level is None:
        raise ConfigError(
            f"LOG_LEVEL: {settings['LOG_LEVEL']!r} is none of DEBUG, INFO, WARNING, …"
        )
    handler = _handler(settings)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    logging.root.addHandler(handler)
    is_debugged = level <= logging.DEBUG
    logging.root.setLevel(level if is_debugged else max(level, logging.WARNING))
    logging.getLogger("scrapy").setLevel(logging.NOTSET)
    logging.getLogger(SERVICE).setLevel(level)
    # The service says why a pass failed, and that it is tried again.
    logging.getLogger("crawler.frontier.session").addFilter(_is_no_error)


def _handler(settings: Settings) -> logging.Handler:
    """Where the log goes; `LOG_ENABLED` is off in all commands, so only `--nolog` counts."""
    is_asked = settings.getpriority("LOG_ENABLED") == SETTINGS_PRIORITIES["cmdline"]
    if is_asked and not settings.getbool("LOG_ENABLED"):
        return logging.NullHandler()
    path = settings["LOG_FILE"]
    try:
        return logging.FileHandler(path, encoding="utf-8") if path else logging.StreamHandler()
    except OSError as error:
        raise ConfigError(f"LOG_FILE {path}: {error.strerror or error}") from None


def _is_no_error(record: logging.LogRecord) -> bool:
    return record.levelno < logging.ERROR


async def _work(
    config: Config, settings: Settings, jobs: list[Job], order: Order
) -> dict[str, Any]:
    began, stop = time.monotonic(), asyncio.Event()
    _set_at_signals(stop)
    if order.seconds is not None:
        asyncio.get_running_loop().call_later(order.seconds, stop.set)
    store = await Store.open(config)
    try:
        service = Service(store, jobs, settings, order)
        stopping = asyncio.create_task(_stop_at(stop, service))
        # Libraries stay: no collection need look at them.
        gc.freeze()
        async with _measured(service, order):
            await service.work()
        stopping.cancel()
    finally:
        await store.close()
    return service.report.as_json(time.monotonic() - began)


def _measured(service: Service, order: Order) -> AbstractAsyncContextManager[None]:
    """Metrics, where somebody wants them."""
    folder = service.store.config.metrics_dir
    if order.metrics is None and folder is None:
        return nullcontext()
    # Slow to import, and needed by few.
    from crawler.ops.service_metrics import measured

    return measured(
        service.store, service.report, folder, order.metrics, service.store.config.metrics_hosts
    )


async def _stop_at(stop: asyncio.Event, service: Service) -> None:
    await stop.wait()
    service.stop()


def _set_at_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()

    def hear() -> None:
        # A second signal ends at once, as it does where nobody listens.
        for number in ENDS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        stop.set()

    for number in ENDS:
        loop.add_signal_handler(number, hear)
