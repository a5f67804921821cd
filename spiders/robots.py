"""Asks for robots.txt as a crawl would, and hands back what it says; nothing is stored."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.http import Response
from scrapy.robotstxt import RobotParser
from scrapy.utils.misc import build_from_crawler, load_object

from crawler.extract.response import HANDLED
from spiders.wrapper import WrapperSpider

LONGEST = 200


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one request.

    rules: as a crawl would read them; None where nothing came, which `problem` says then
    agent: the user agent of the request
    """

    url: str
    status: int = 0
    rules: RobotParser | None = None
    agent: str = ""
    problem: str = ""


def asking(
    spider: type[WrapperSpider], urls: list[str], seconds: float, answers: list[Answer]
) -> type[WrapperSpider]:
    """A spider like `spider` that asks for `urls` alone and appends what came to `answers`."""

    class Asking(spider):  # type: ignore[misc, valid-type]
        """All at once, each for so many seconds at most, and once."""

        def begin(self, crawler: Crawler) -> None:
            """Open no pass."""

        async def start(self) -> AsyncIterator[Request]:
            """One request for each; no delay parts them, as each has a slot of its own."""
            for url in urls:
                meta = {
                    "dont_obey_robotstxt": True,
                    "dont_retry": True,
                    "download_slot": url,
                    "download_timeout": seconds,
                    "handle_httpstatus_list": HANDLED,
                    "asked": url,
                }
                yield Request(
                    url, self.answered, errback=self.not_answered, meta=meta, dont_filter=True
                )

        def answered(self, response: Response) -> None:
            """Keep the rules."""
            parser = load_object(self.crawler.settings["ROBOTSTXT_PARSER"])
            rules = build_from_crawler(parser, self.crawler, response.body)
            sent = response.request.headers if response.request else {}
            agent = (sent.get("User-Agent") or b"").decode("latin-1")
            answers.append(Answer(response.meta["asked"], response.status, rules, agent))

        def not_answered(self, failure: Any) -> None:
            """Keep why nothing came."""
            said = " ".join(f"{failure.type.__name__}: {failure.value}".split())
            answers.append(Answer(failure.request.meta["asked"], problem=said[:LONGEST]))

    return Asking
