"""The spiders: whether each loads, and describes its site without a mistake."""

from __future__ import annotations

import difflib
import os
import pkgutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic_settings.sources import read_env_file
from scrapy.crawler import AsyncCrawlerProcess
from scrapy.settings import BaseSettings, Settings
from scrapy.utils.spider import iter_spider_classes

from crawler.config import PREFIX, PROJECT, UNPREFIXED, VARIABLE, Config
from crawler.errors import ConfigError, FreshetError
from crawler.extract.wrapper import Wrapper
from crawler.items import Kind
from crawler.ops.findings import Finding, failed, ok, warning
from crawler.ops.jobs import Job, Known, Spiders, jobs_of, undefined_words, usual, with_files
from crawler.ops.service import why
from crawler.storage import posts, runs, targets
from crawler.storage.client import Database
from crawler.storage.posts import Filled
from crawler.utils.text import count, listed
from spiders.probe import Answer, asking
from spiders.wrapper import WrapperSpider

KNOBS_CHECK = "settings"
ENV_FILE = PROJECT / ".env"
KNOWN = {PREFIX + field.upper() for field in Config.model_fields} | set(UNPREFIXED)
DAY_HOURS = 24
NEAR = 0.8


def check_knobs(config: Config, environment: Iterable[str]) -> list[Finding]:
    """What is to be said of settings that are good one by one.

    environment: names of the process's variables
    """
    written = dict(read_env_file(ENV_FILE)) if ENV_FILE.is_file() else {}
    found = [*unknown({*environment, *written}), *unreadable(written), *odd(config)]
    if config.private_hosts:
        hosts = ", ".join(config.private_hosts)
        found.append(ok(KNOBS_CHECK, f"FRESHET_PRIVATE_HOSTS: may be in private networks: {hosts}"))
    return found or [ok(KNOBS_CHECK, _source(written))]


def _source(written: Mapping[str, str | None]) -> str:
    return f"environment and {ENV_FILE}" if written else f"environment; there is no {ENV_FILE}"


def unknown(names: Iterable[str]) -> Iterator[Finding]:
    """Variables that look like Freshet's and are none."""
    for name in sorted({name.upper() for name in names}):
        if name.startswith(PREFIX) and name not in KNOWN:
            near = difflib.get_close_matches(name, KNOWN, 1, NEAR)
            todo = f"did you mean {near[0]}?" if near else "docs/reference.md has all of them"
            yield warning(KNOBS_CHECK, f"{name} is no setting", todo)


def unreadable(written: Mapping[str, str | None]) -> Iterator[Finding]:
    """Lines of `.env` that say nothing. written: values by name, None where there is no `=`."""
    for name, value in written.items():
        if value is None:
            yield warning(KNOBS_CHECK, f"{ENV_FILE}: {name} has no value", f"write {name}=…")


def odd(config: Config) -> Iterator[Finding]:
    """Values that make no sense together."""
    yield from _of_servers(config)
    yield from _of_times(config)
    yield from _of_budgets(config)
    if config.private_addresses:
        said = "FRESHET_PRIVATE_ADDRESSES=1: any page may lead Freshet into your private networks"
        yield warning(KNOBS_CHECK, said, "list the hosts that are needed in FRESHET_PRIVATE_HOSTS")
    if not config.contact:
        todo = "set FRESHET_CONTACT to a page or an address of yours"
        yield warning(KNOBS_CHECK, "no site can tell whose crawler this is", todo)


def _of_servers(config: Config) -> Iterator[Finding]:
    if config.redis_url and config.mongo_uri is None:
        said = "REDIS_URL is for several machines, the embedded MongoDB is for this one alone"
        yield warning(KNOBS_CHECK, said, "set MONGO_URI where other machines are to share the work")


def _of_times(config: Config) -> Iterator[Finding]:
    if config.clock_offset_hours:
        said = f"FRESHET_CLOCK_OFFSET_HOURS={config.clock_offset_hours:g}: all times are moved"
        yield warning(KNOBS_CHECK, said, "take it out: it is for rehearsals")
    for kind in ("list", "item", "feed", "cell"):
        hours = getattr(config, f"{kind}_interval_hours")
        if hours > (longest := config.longest_hours(feeds=kind == "feed")):
            said = (
                f"FRESHET_{kind.upper()}_INTERVAL_HOURS={hours:g} is longer than "
                f"FRESHET_MAX_INTERVAL_HOURS={longest:g}"
            )
            yield warning(KNOBS_CHECK, said, "the shorter one holds")


def _of_budgets(config: Config) -> Iterator[Finding]:
    if config.shared_budget and config.feed_budget:
        said = "FRESHET_FEED_BUDGET has no meaning while FRESHET_SHARED_BUDGET is on"
        yield warning(KNOBS_CHECK, said, "take one of them out")
    if config.budget and config.daily_cap and config.daily_cap < config.budget:
        said = f"FRESHET_DAILY_CAP={config.daily_cap:g} is less than the budget, {config.budget:g}"
        yield warning(KNOBS_CHECK, said, "the budget cannot be spent: raise the cap")
    hourly = config.hourly_cap
    if config.budget and hourly and hourly * DAY_HOURS < config.budget:
        said = f"FRESHET_HOURLY_CAP={hourly:g} leaves no room for a budget of {config.budget:g}"
        yield warning(KNOBS_CHECK, f"{said} a day", "raise the cap")


CHECK = "wrapper"


@dataclass(frozen=True, slots=True)
class Site:
    """A spider that loads, with its wrapper."""

    job: Job
    wrapper: Wrapper


def check(
    settings: BaseSettings, names: Sequence[str], known: Known
) -> tuple[list[Finding], list[Site]]:
    """What is found of the sites and files that are named, else of all; and those that load."""
    spiders: Spiders = {}
    found = list(_import_all(settings, spiders))
    sites: dict[str, Site] = {}
    if names:
        jobs = _jobs(names, spiders, known, found)
    else:
        every = usual(spiders, known)
        found += [_undefined(name) for name in every.undefined]
        jobs = [*every.jobs, *_jobs(every.unwatched, spiders, known, found, only_ours=True)]
    found += [_read(job, sites) for job in sorted(jobs, key=lambda job: job.word)]
    return found, list(sites.values())


def _undefined(name: str) -> Finding:
    said, _, todo = undefined_words(name).partition(": ")
    return warning(CHECK, said, todo, of=name)


def _read(job: Job, sites: dict[str, Site]) -> Finding:
    """Read a wrapper and put it to the others, by the names they have in the database."""
    try:
        wrapper = job.spider.read_wrapper(job.spider.read_arguments(job.arguments))
    except FreshetError as error:
        return failed(CHECK, str(error), _about_secrets(job), of=job.word)
    if (other := sites.get(wrapper.name)) is not None:
        said = f"its name {wrapper.name!r} is that of {other.job.word} too"
        return failed(CHECK, said, "give one of them another name", of=job.word)
    sites[wrapper.name] = Site(job, wrapper)
    said = _in_short(wrapper)
    if job.definition is not None and (used := wrapper.definition) is not None:
        said += f"; defined by {'what is stored of ' if used.stored else ''}{used.source}"
    return ok(CHECK, said, of=job.word)


def _import_all(settings: BaseSettings, spiders: Spiders) -> Iterator[Finding]:
    """Fill `spiders`; a module that cannot be imported keeps all of them from being found."""
    for package in settings.getlist("SPIDER_MODULES"):
        for name in _modules(package):
            try:
                module = import_module(name)
            except Exception as error:  # noqa: BLE001 - a user's module may raise anything
                todo = "mend it: no spider can be crawled before"
                yield failed(CHECK, why(error), todo, of=name)
                continue
            spiders |= {spider.name: spider for spider in iter_spider_classes(module)}


def _modules(name: str) -> list[str]:
    """A module, and if it is a package, all within."""
    try:
        path = import_module(name).__path__
    except Exception:  # noqa: BLE001 - whoever imports it anew tells why
        return [name]
    return [name, *(one.name for one in pkgutil.iter_modules(path, f"{name}."))]


def _jobs(
    names: Sequence[str],
    spiders: Spiders,
    known: Known,
    found: list[Finding],
    *,
    only_ours: bool = False,
) -> list[Job]:
    """The jobs of these names; what cannot be named so is found to have failed.

    only_ours: leave out spiders that are not Freshet's
    """
    jobs: list[Job] = []
    for name in names:
        if only_ours and not issubclass(spiders[name], WrapperSpider):
            continue
        try:
            jobs += jobs_of([*with_files([name])], spiders, known)
        except ConfigError as error:
            found.append(failed(CHECK, str(error), of=name))
    return jobs


def _in_short(wrapper: Wrapper) -> str:
    parts = [
        count(len(wrapper.starts), "start URL"),
        count(len(wrapper.fields), "field") if wrapper.fields else "main text",
        count(len(wrapper.cells), "cell") if wrapper.cells else "",
    ]
    return "fine; " + ", ".join(filter(None, parts))


def _about_secrets(job: Job) -> str:
    """What to do about the variables that a wrapper names and nobody has set."""
    files = (Path(path) for path in job.arguments.values())
    text = "".join(path.read_text("utf-8", "replace") for path in files if path.is_file())
    names = sorted(set(VARIABLE.findall(text or str(vars(job.spider)))) - os.environ.keys())
    if not names:
        return ""
    written = read_env_file(ENV_FILE) if ENV_FILE.is_file() else {}
    if kept := [name for name in names if name.lower() in written or name in written]:
        return f"export {listed(kept)}: wrappers see the environment, not {ENV_FILE}"
    return f"set {listed(names)} in the environment"


ROBOTS_CHECK = "robots.txt"
SECONDS = 10.0
# Of one spider: cells may be of many.
MOST_HOSTS = 20


def check_robots(settings: BaseSettings, sites: Sequence[Site]) -> list[Finding]:
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
        yield ok(ROBOTS_CHECK, "not looked at, as the wrapper says robots = false", of=wrapper.name)
        return
    for url in list(pages)[:MOST_HOSTS]:
        silent = Answer(url, problem=f"no answer in {SECONDS:g} s")
        yield of_host(wrapper, pages[url], answers[wrapper.name].get(url, silent))
    if (more := len(pages) - MOST_HOSTS) > 0:
        yield ok(ROBOTS_CHECK, f"{count(more, 'more host')} not asked", of=wrapper.name)


def of_host(wrapper: Wrapper, pages: Sequence[str], answer: Answer) -> Finding:
    """What an answer means for the pages of its host that a crawl begins at."""
    host, of = urlsplit(answer.url).netloc, wrapper.name
    if answer.rules is None:
        todo = "is the host's name right, is the network there, does the proxy work?"
        return warning(ROBOTS_CHECK, f"{host} cannot be reached: {answer.problem}", todo, of=of)
    said = f"{host} answers {answer.status}"
    if refused := [page for page in pages if not answer.rules.allowed(page, answer.agent)]:
        todo = "they will not be visited; ask the site, or begin elsewhere"
        return warning(ROBOTS_CHECK, f"{said}, and forbids {listed(refused, 3)}", todo, of=of)
    asked_seconds = answer.rules.crawl_delay(answer.agent) or 0.0
    ours_seconds = wrapper.delay_seconds or 0.0
    if asked_seconds > ours_seconds:
        said += f", and asks for {asked_seconds:g} s between requests; ours is {ours_seconds:g}"
        return warning(ROBOTS_CHECK, said, f"delay_seconds = {asked_seconds:g}", of=of)
    if answer.status >= 500 or answer.status in (401, 403, 429):
        return warning(ROBOTS_CHECK, said, "the site may not want to be crawled", of=of)
    return ok(ROBOTS_CHECK, f"{said}; nothing of ours is forbidden", of=of)


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


ITEMS, FIELDS = "items", "fields"
# Fewer posts may all lack a field by chance.
MIN_POSTS = 3


async def check_items(db: Database, sites: Sequence[Site], config: Config) -> list[Finding]:
    """What the newest posts of each site have; nothing for feeds and for lists of cells."""
    found: list[Finding] = []
    for site in sites:
        wrapper = site.wrapper.completed(config)
        if not wrapper.item_pages:
            continue
        if not await targets.has_items(db, wrapper.name):
            if await runs.has_ended(db, wrapper.name):
                found.append(_none(site))
        elif names := wrapper.field_names:
            read = await posts.filled(db, wrapper.name, wrapper.scheme(Kind.ITEM), names)
            found += of_fields(wrapper, read, site.job.word)
    return found


def of_fields(wrapper: Wrapper, read: Mapping[str, Filled], word: str) -> Iterator[Finding]:
    """What is to be said of fields. read: the newest posts, by field; word: names the site."""
    most = max((one.read for one in read.values()), default=0)
    missing = [name for name, one in read.items() if one.read >= MIN_POSTS and not one.found]
    for name in missing:
        field = wrapper.fields.get(name)
        selector = f" (selector {field.selector})" if field else ""
        said = f"{name}: not found in any of the newest {count(read[name].read, 'item')}{selector}"
        todo = f"correct the selector: scrapy wrapper check {word} URL"
        yield warning(FIELDS, said, todo if field else "", of=wrapper.name)
    if most and not missing:
        yield ok(FIELDS, f"each is found in the newest {count(most, 'item')}", of=wrapper.name)


def _none(site: Site) -> Finding:
    todo = f"scrapy wrapper check {site.job.word} {next(iter(site.wrapper.starts))}"
    return warning(
        ITEMS, "none collected so far, though runs have ended", todo, of=site.wrapper.name
    )
