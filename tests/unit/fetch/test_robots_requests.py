"""Requests for robots.txt: which rules apply to which URLs, and which responses are kept."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from scrapy import Request, Spider
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response
from scrapy.utils.test import get_crawler

from crawler.fetch.downloader import NotRequested
from crawler.fetch.robots import RobotsMiddleware

FORBIDS = b"User-agent: *\nDisallow: /private"
PRIVATE = "https://shop.example/private"


class Web:
    """Answers requests for robots.txt. answers: by URL, in order; the last one is repeated."""

    def __init__(self, answers: dict[str, list[Response | Exception]]) -> None:
        self.answers = answers
        self.asked: Counter[str] = Counter()
        crawler: Any = get_crawler(settings_dict={"ROBOTSTXT_OBEY": True})
        crawler.spider = Spider("shop", start_urls=[])
        crawler.engine = SimpleNamespace(download_async=self.download)
        self.middleware = RobotsMiddleware(crawler)

    async def download(self, request: Request) -> Response:
        answers = self.answers[request.url]
        answer = answers[min(self.asked[request.url], len(answers) - 1)]
        self.asked[request.url] += 1
        if isinstance(answer, Exception):
            raise answer
        return answer

    def refusal(self, url: str) -> str | None:
        """Return why a URL may not be requested; None if it may."""

        async def ask() -> None:
            await self.middleware.process_request(Request(url))

        try:
            asyncio.run(ask())
        except IgnoreRequest as error:
            return str(error)
        return None


def robots(scheme: str, body: bytes = b"", status: int = 200) -> Response:
    return Response(f"{scheme}://shop.example/robots.txt", status, body=body)


def test_rules_of_a_paused_host_are_read_after_the_pause() -> None:
    paused = NotRequested("requests to shop.example are paused for another 90 s")
    web = Web({"https://shop.example/robots.txt": [paused, robots("https", FORBIDS)]})
    assert web.refusal(PRIVATE) == str(paused)
    assert web.refusal(PRIVATE) == "Forbidden by robots.txt"


def test_each_scheme_has_its_own_rules() -> None:
    web = Web({
        "http://shop.example/robots.txt": [robots("http", status=404)],
        "https://shop.example/robots.txt": [robots("https", FORBIDS)],
    })  # fmt: skip
    assert web.refusal("http://shop.example/private") is None
    assert web.refusal(PRIVATE) == "Forbidden by robots.txt"


def test_rules_that_redirect_to_https_are_requested_once() -> None:
    web = Web({"http://shop.example/robots.txt": [robots("https", FORBIDS)]})
    assert web.refusal("http://shop.example/private") == "Forbidden by robots.txt"
    assert web.refusal(PRIVATE) == "Forbidden by robots.txt"
    assert web.asked.total() == 1


@pytest.mark.parametrize("status", [429, 500, 503, 599])
def test_unavailable_rules_forbid_everything(status: int) -> None:
    web = Web({"https://shop.example/robots.txt": [robots("https", status=status)]})
    for path in ("", "private", "other"):
        refusal = web.refusal(f"https://shop.example/{path}")
        assert refusal is not None
        assert f"robots.txt returned {status}" in refusal
    assert web.asked.total() == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410])
def test_missing_rules_forbid_nothing(status: int) -> None:
    web = Web({"https://shop.example/robots.txt": [robots("https", status=status)]})
    assert web.refusal(PRIVATE) is None
