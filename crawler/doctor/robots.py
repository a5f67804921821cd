"""robots.txt of the hosts that crawls begin at: whether it comes, what it forbids and asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from scrapy.crawler import AsyncCrawlerProcess
from scrapy.settings import BaseSettings, Settings

from crawler.doctor.findings import Finding, ok, warning
from crawler.doctor.wrappers import Site
from crawler.extract.wrapper import Wrapper
from crawler.utils.text import count, listed
from spiders.robots import Answer, asking

CHECK = "robots.txt"
SECONDS = 10.0
# Of one spider: cells may be of many.
MOST_HOSTS = 20


def check(settings: BaseSettings, sites: Sequence[Site]) -> list[Finding]:
    """What the hosts of these spiders answer; all are asked at once."""
    asked = {site.wrapper.name: _pages_by_robots(site.wrapper) for site in sites}
    answers = _ask(settings, sites, asked)
    return [
        finding
        for site in sites
        for finding in of_spider(site.wrapper, asked[site.wrapper.name], answers)
    ]


def of_spider(
    wrapper: Wrapper, pages: dict[str, list[str]], answers: Mapping[str, dict[str, Answer]]
) -> Iterator[Finding]:
    """What the hosts of one spider answered. pages: by robots.txt; answers: by spider and URL."""
    if pages and wrapper.robots is False:
        yield ok(CHECK, "not looked at, as the wrapper says robots = false", of=wrapper.name)
        return
    for url in list(pages)[:MOST_HOSTS]:
        silent = Answer(url, problem=f"no answer in {SECONDS:g} s")
        yield of_host(wrapper, pages[url], answers[wrapper.name].get(url, silent))
    if (more := len(pages) - MOST_HOSTS) > 0:
        yield ok(CHECK, f"{count(more, 'more host')} not asked", of=wrapper.name)


def of_host(wrapper: Wrapper, pages: Sequence[str], answer: Answer) -> Finding:
    """What an answer means for the pages of its host that a crawl begins at."""
    host, of = urlsplit(answer.url).netloc, wrapper.name
    if answer.rules is None:
        todo = "is the host's name right, is the network there, does the proxy work?"
        return warning(CHECK, f"{host} cannot be reached: {answer.problem}", todo, of=of)
    said = f"{host} answers {answer.status}"
    if refused := [page for page in pages if not answer.rules.allowed(page, answer.agent)]:
        todo = "they will not be visited; ask the site, or begin elsewhere"
        return warning(CHECK, f"{said}, and forbids {listed(refused, 3)}", todo, of=of)
    asked_seconds = answer.rules.crawl_delay(answer.agent) or 0.0
    ours_seconds = wrapper.delay_seconds or 0.0
    if asked_seconds > ours_seconds:
        said += f", and asks for {asked_seconds:g} s between requests; ours is {ours_seconds:g}"
        return warning(CHECK, said, f"delay_seconds = {asked_seconds:g}", of=of)
    if answer.status >= 500 or answer.status in (401, 403, 429):
        return warning(CHECK, said, "the site may not want to be crawled", of=of)
    return ok(CHECK, f"{said}; nothing of ours is forbidden", of=of)


def _pages_by_robots(wrapper: Wrapper) -> dict[str, list[str]]:
    """The pages that a crawl begins at, by the robots.txt that is theirs."""
    cells = (cell.url for cell in wrapper.cells.values() if cell.url)
    pages: dict[str, list[str]] = {}
    for page in dict.fromkeys([*wrapper.starts, *cells]):
        parts = urlsplit(page)
        pages.setdefault(f"{parts.scheme}://{parts.netloc}/robots.txt", []).append(page)
    return pages


def _ask(
    settings: BaseSettings, sites: Sequence[Site], asked: dict[str, dict[str, list[str]]]
) -> dict[str, dict[str, Answer]]:
    """Answers by spider and URL. Takes SECONDS and a little, however many there are."""
    answers: dict[str, list[Answer]] = {name: [] for name in asked}
    wanted = [one for one in sites if asked[one.wrapper.name] and one.wrapper.robots is not False]
    if wanted:
        process = AsyncCrawlerProcess(_bounded(settings))
        for site in wanted:
            name = site.wrapper.name
            urls = list(asked[name])[:MOST_HOSTS]
            spider = asking(site.job.spider, urls, SECONDS, answers[name])
            process.crawl(spider, **site.job.arguments)
        process.start()
    return {name: {one.url: one for one in some} for name, some in answers.items()}


def _bounded(settings: BaseSettings) -> Settings:
    own: Any = settings.copy()
    limits = {"DNS_TIMEOUT": SECONDS, "CLOSESPIDER_TIMEOUT": 2 * SECONDS, "LOG_ENABLED": False}
    for name, value in limits.items():
        own.set(name, value, priority="cmdline")
    result: Settings = own
    return result
