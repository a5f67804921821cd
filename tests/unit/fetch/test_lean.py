"""Freshet's faster versions of Scrapy components behave like the originals."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from pydispatch import dispatcher
from scrapy import Request, signals
from scrapy.downloadermiddlewares import redirect
from scrapy.exceptions import DropItem
from scrapy.http import HtmlResponse, Response
from scrapy.settings import Settings
from scrapy.signalmanager import SignalManager
from scrapy.spiders import Spider
from scrapy.statscollectors import MemoryStatsCollector
from scrapy.utils.test import get_crawler

from crawler.fetch import lean

URL = "https://example.org/a"
REFRESHES = [
    '<meta http-equiv="refresh" content="0; url=/b">',
    '<META HTTP-EQUIV="ReFresh" CONTENT="0;URL=/b">',
    '<noscript><meta http-equiv="refresh" content="0; url=/b"></noscript>',
    '<meta http-equiv="refresh" content="500; url=/b">',
    "<p>refresh</p>",
    "<p>nothing</p>",
    "x" * 4090 + '<meta http-equiv="refresh" content="0; url=/b">',
]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "cp1252"])
@pytest.mark.parametrize("markup", REFRESHES)
def test_meta_refreshes_are_followed_as_in_scrapy(markup: str, encoding: str) -> None:
    def result(kind: type[redirect.MetaRefreshMiddleware]) -> tuple[type, str]:
        request = Request(URL)
        response = HtmlResponse(URL, body=markup.encode(encoding), encoding=encoding)
        middleware = kind(Settings())
        middleware.crawler = get_crawler()
        answer = middleware.process_response(request, response)
        return type(answer), answer.url

    assert result(lean.MetaRefreshMiddleware) == result(redirect.MetaRefreshMiddleware)


def test_stats_match_scrapy() -> None:
    def counts(kind: type[MemoryStatsCollector]) -> dict[str, Any]:
        stats = kind(get_crawler())
        stats.inc_value("a")
        stats.inc_value("a", 3, start=5)
        stats.inc_value("b", 3, start=5)
        stats.max_value("c", 1)
        stats.max_value("c", 3)
        stats.min_value("d", 3)
        stats.set_value("e", "x")
        return stats.get_stats()

    assert counts(lean.Stats) == counts(MemoryStatsCollector)


class Receiver:
    """A receiver that records the requests it receives."""

    def __init__(self) -> None:
        self.received: list[str] = []

    def take(self, request: str) -> str:
        """Receive a signal."""
        self.received.append(request)
        return "taken"


class Broken:
    """A receiver that raises an exception."""

    __module__ = "scrapy.test"

    def take(self) -> None:
        """Fail."""
        raise ValueError("no")

    take.__module__ = "scrapy.test"


@pytest.mark.parametrize("sender", ["own", "any"])
@pytest.mark.parametrize("signal", [signals.bytes_received, dispatcher.Any])
def test_signals_reach_the_receivers_of_scrapys_signals(sender: str, signal: object) -> None:
    me = object()
    before, receiver, lean_signals = SignalManager(me), Receiver(), lean.Signals(me)
    assert lean_signals.send_catch_log(signals.bytes_received, request="early", spider=None) == []
    senders = {} if sender == "own" else {"sender": dispatcher.Any}
    before.connect(receiver.take, signal, **senders)
    results = lean_signals.send_catch_log(signals.bytes_received, request="sent", spider=None)
    assert [result for _, result in results] == ["taken"]
    before.disconnect(receiver.take, signal, **senders)
    lean_signals.send_catch_log(signals.bytes_received, request="late", spider=None)
    assert receiver.received == ["sent"]


def test_asynchronous_signals_wait_for_their_receivers() -> None:
    me, order = object(), []
    lean_signals = lean.Signals(me)

    class Late:
        async def take(self, request: str) -> str:
            await asyncio.sleep(0)
            order.append(f"late {request}")
            return "late"

    async def send(request: str) -> set[object]:
        results = await lean_signals.send_catch_log_async(
            signals.item_scraped, request=request, spider=None
        )
        return {str(result) for _, result in results}

    async def run() -> None:
        assert await send("to nobody") == set()
        receiver, late, broken = Receiver(), Late(), Broken()
        lean_signals.connect(receiver.take, signals.item_scraped)
        assert await send("one") == {"taken"}
        lean_signals.connect(broken.take, signals.item_scraped)
        assert await send("two") == {"taken", "no"}
        lean_signals.connect(late.take, signals.item_scraped)
        assert await send("three") == {"taken", "no", "late"}
        assert receiver.received == ["one", "two", "three"]
        assert order == ["late three"]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("level", "messages"), [("DEBUG", 4), ("INFO", 1), (10, 4), ("WARNING", 1), ("ERROR", 0)]
)
def test_messages_below_the_level_of_the_log_are_not_created(
    level: str | int, messages: int
) -> None:
    crawler = get_crawler(settings_dict={"LOG_LEVEL": level})
    crawler.spider = spider = Spider.from_crawler(crawler, "x")
    formatter = lean.LogFormatter.from_crawler(crawler)
    request, response = Request(URL), Response(URL)
    created = [
        formatter.crawled(request, response, spider),
        formatter.scraped({}, response, spider),
        formatter.dropped({}, DropItem("x", log_level="DEBUG"), response, spider),
        formatter.dropped({}, DropItem("x", log_level=logging.WARNING), response, spider),
    ]
    assert sum(message is not None for message in created) == messages
