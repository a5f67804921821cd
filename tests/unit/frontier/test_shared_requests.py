"""Requests of spiders as JSON: unchanged by a round trip, or not shared at all."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from redis.asyncio import Redis
from scrapy import Request
from scrapy.http import FormRequest, JsonRequest, Response

from crawler.extract.site_definition import Wrapper
from crawler.frontier.redis_queue import MAX_CHARACTERS, LeasedQueue
from crawler.storage.redis import RedisRetry
from spiders.wrapper import WrapperSpider

URL = "https://shop.example/details"


class Shop(WrapperSpider):
    name = "shop"
    start_urls = ["https://shop.example/"]

    def read(self, response: Response, of: Any = None) -> Iterator[Any]:
        yield from ()

    def _hidden(self, response: Response) -> None:
        """Do nothing, as a callback that is not public."""


class Posted(Request):
    """A request class of a spider."""


@pytest.fixture
def queue() -> LeasedQueue:
    spider = Shop.__new__(Shop)
    spider.wrapper = Wrapper.of(
        {"name": "shop", "start_urls": Shop.start_urls, "item_pages": "/item/"}, "a test"
    )
    return LeasedQueue(RedisRetry(Redis(), 0.0), spider, "key", "worker", 1000)


def request_of(queue: LeasedQueue, url: str = URL, **parts: Any) -> Request:
    return Request(url, **({"callback": queue.spider.read} | parts))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"method": "PUT", "body": "mañana", "encoding": "latin-1"},
        {"headers": {"Accept": ["text/html", "*/*"], "X-Name": "日本"}},
        {"cookies": {"a": "b"}, "flags": ["x"], "priority": -3, "dont_filter": True},
        {"cookies": [{"name": "a", "value": "b", "path": "/x"}]},
        {"meta": {"depth": 1, "proxy": "http://proxy.example", "of": {"a": [1, None, "é"]}}},
        {"cb_kwargs": {"of": "\ud800"}},
    ],
)
def test_request_survives_a_round_trip(queue: LeasedQueue, parts: dict[str, Any]) -> None:
    given = request_of(queue, **parts)
    found = queue.decode(queue.encode(given))
    assert found.to_dict(spider=queue.spider) == given.to_dict(spider=queue.spider)
    assert found.callback == given.callback


def test_requests_of_scrapys_own_classes_are_shared(queue: LeasedQueue) -> None:
    read = queue.spider.read  # type: ignore[attr-defined]
    form = FormRequest(URL, read, formdata={"q": "tea"})
    for given in (form, JsonRequest(URL, callback=read, data={"a": 1})):
        found = queue.decode(queue.encode(given))
        assert (found.method, found.body, found.headers) == ("POST", given.body, given.headers)


@pytest.mark.parametrize(
    "parts",
    [
        {"meta": {"n": object()}},
        {"meta": {"cookiejar": 1}},
        {"meta": {1: "a"}},
        {"meta": {"pair": (1, 2)}},
        {"cb_kwargs": {"of": b"raw"}},
        {"cb_kwargs": {"of": float("nan")}},
        {"body": b"\xff\0"},
        {"headers": {"X-Raw": b"\xff"}},
        {"body": "x" * MAX_CHARACTERS},
        {"callback": None},
        {"callback": lambda response: None},
    ],
)
def test_request_that_another_worker_could_not_send_is_not_shared(
    queue: LeasedQueue, parts: dict[str, Any]
) -> None:
    with pytest.raises((TypeError, ValueError)):
        queue.encode(request_of(queue, **parts))


def test_requests_of_other_classes_and_for_other_sites_are_not_shared(queue: LeasedQueue) -> None:
    given = request_of(queue)
    for other in (given.replace(cls=Posted), given.replace(url="https://other.example/")):
        with pytest.raises(ValueError, match=r"unsupported request class|URL of another site"):
            queue.encode(other)


@pytest.mark.parametrize(
    "parts",
    [
        {"url": "file:///etc/passwd"},
        {"url": "https://other.example/"},
        {"url": None},
        {"callback": "no_such"},
        {"callback": None},
        {"callback": "begin"},
        {"callback": "parse_target"},
        {"callback": "_hidden"},
        {"callback": ["read"]},
        {"errback": "begin"},
    ],
)
def test_invalid_entry_is_rejected(queue: LeasedQueue, parts: dict[str, Any]) -> None:
    good = {"url": URL, "callback": "read"}
    assert queue.decode(json.dumps(good)).url == URL
    with pytest.raises((TypeError, ValueError)):
        queue.decode(json.dumps(good | parts))


def test_class_of_an_entry_is_not_imported(queue: LeasedQueue) -> None:
    text = json.dumps({"url": URL, "callback": "read", "_class": "antigravity.Popen"})
    assert type(queue.decode(text)) is Request


@pytest.mark.parametrize("text", [pickle.dumps({"url": URL}), "[1]", "", "[" * 100_000])
def test_anything_but_a_json_object_is_rejected(queue: LeasedQueue, text: Any) -> None:
    with pytest.raises((AttributeError, RecursionError, ValueError)):
        queue.decode(text)
