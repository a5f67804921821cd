"""`scrapy doctor`: runs all checks in order, and checks this machine, the settings and the sites.

A check is skipped if a check that it depends on has failed. In the doctor's modules, `check_*`
functions do I/O; `judge_*` functions turn the values read into findings.
"""

from __future__ import annotations

import asyncio
import os
import pkgutil
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from scrapy.crawler import AsyncCrawlerProcess
from scrapy.settings import BaseSettings
from scrapy.utils.conf import closest_scrapy_cfg
from scrapy.utils.spider import iter_spider_classes

from crawler.config import (
    ENV_FILE,
    PROJECT,
    VARIABLE,
    Config,
    UnknownVariable,
    env_file_variables,
    unknown_variables,
    value_of,
)
from crawler.errors import ConfigError, FreshetError
from crawler.extract.site_definition import Wrapper
from crawler.fetch.robots import is_unavailable
from crawler.items import Kind
from crawler.ops.doctor_servers import (
    check_data_folder,
    check_embedded,
    check_invariants,
    check_mongodb,
    check_notifications,
    check_redis,
    check_retention,
    check_runs,
    check_versions,
    repair,
)
from crawler.ops.findings import Check, Finding, failed, ok, warning
from crawler.ops.jobs import (
    Job,
    Spiders,
    StoredSites,
    default_jobs,
    jobs_of,
    read_stored_sites,
    undefined_words,
    with_files,
)
from crawler.ops.service import describe_error
from crawler.storage import alarms, health, posts, runs, targets
from crawler.storage.client import Database
from crawler.storage.posts import FieldCoverage
from crawler.utils.process import Say
from crawler.utils.text import count, listed, plain, precise
from spiders.probe import Answer, robots_spider
from spiders.wrapper import WrapperSpider

OLDEST, NEWEST = (3, 11), (3, 13)
# Packages that a crawl imports; installed packages of the same name could shadow them.
NEEDED = ("crawler", "spiders", "pipelines", "schedules")
DAY_HOURS = 24
ROBOTS_SECONDS = 10.0
# Hosts checked per spider; cells may be on many.
MAX_HOSTS = 20
# With fewer posts, a field may be missing from all of them by chance.
MIN_POSTS = 3


@dataclass(slots=True)
class Examination:
    """Run all checks and collect their findings.

    say:     callback that shows the check in progress
    spiders: spider names and site definition files; empty: all of the project
    quick:   do not start the embedded server, do not fetch robots.txt
    deep:    read all documents of the database and check the invariants
    repair:  with `deep`: repair violated invariants
    """

    settings: BaseSettings
    say: Say
    spiders: Sequence[str] = ()
    quick: bool = False
    deep: bool = False
    repair: bool = False
    findings: list[Finding] = field(default_factory=list)
    # Sites that were crawled before; None: unknown.
    crawled: frozenset[str] | None = None

    def run(self) -> list[Finding]:
        """Run the checks; return all findings."""
        try:
            here = Path.cwd()
        except FileNotFoundError:
            here = None
        self.findings.append(judge_python(sys.version_info[:3], platform.system()))
        self.findings += [*judge_folder(here, sys.path), *check_names()]
        config = self._config()
        stored = None if config is None else self._stored(config)
        self.say("loading the spiders")
        definitions, sites = check_definitions(self.settings, self.spiders, stored or StoredSites())
        if config is not None:
            if stored is not None:
                asyncio.run(self._check_database(config, sites))
            if config.redis_url is not None:
                self.say("checking Redis")
                self.findings += asyncio.run(check_redis(config.redis_url, config))
        self.findings += definitions
        if config is not None and not self.quick:
            self.say("fetching robots.txt")
            self.findings += check_robots(self.settings, self._of_interest(sites))
        return self.findings

    def _of_interest(self, sites: Sequence[Site]) -> list[Site]:
        """Return the sites that the user named or has crawled: the project comes with examples."""
        if self.spiders or self.crawled is None:
            return [*sites]
        return [site for site in sites if site.wrapper.name in self.crawled]

    def _config(self) -> Config | None:
        try:
            config = Config.of(self.settings)
        except FreshetError as error:
            self.findings.append(
                failed(Check.SETTINGS, str(error), "fix it first: the servers were not checked")
            )
            return None
        self.findings += [*check_settings(config), *check_data_folder(config)]
        return config

    def _stored(self, config: Config) -> StoredSites | None:
        """Read the sites stored in the database; None if the database is unavailable."""
        if config.mongo_uri is None:
            self.say("checking the embedded MongoDB")
            finding, answers = check_embedded(config, start=not self.quick)
            self.findings.append(finding)
            if not answers:
                return None

        async def read() -> StoredSites:
            async with health.reached(config) as db:
                return await read_stored_sites(db)

        try:
            return asyncio.run(read())
        except FreshetError as error:
            self.findings.append(failed(Check.MONGODB, str(error)))
            return None

    async def _check_database(self, config: Config, sites: Sequence[Site]) -> None:
        self.say("checking MongoDB")
        now = config.clock.now
        try:
            async with health.reached(config) as db:
                started = now()
                self.findings += await check_mongodb(db, config)
                names = [site.wrapper.name for site in sites]
                self.findings += await check_runs(db, names, started)
                self.crawled = frozenset(await runs.spiders(db))
                self.findings += await check_versions(db, names, config)
                self.findings += await check_retention(db, config, started)
                self.findings += await check_items(db, sites, config)
                self.findings += await check_notifications(db, config, now())
        except FreshetError as error:
            self.findings.append(failed(Check.MONGODB, str(error)))
        if not self.deep:
            return
        try:
            async with health.reached(config) as db:
                if self.repair:
                    self.findings += await repair(db, config, now(), self.say)
                else:
                    self.findings += await check_invariants(db, self.say)
        except FreshetError as error:
            self.findings.append(failed(Check.MONGODB, str(error)))


def judge_python(version: Sequence[int], system: str) -> Finding:
    """Check that the interpreter and the system are among those that Freshet is tested on."""
    result = f"{'.'.join(map(str, version))} on {system} {platform.machine()}"
    if tuple(version[:2]) < OLDEST:
        return failed(Check.PYTHON, result, "install Python 3.11 or newer, then make clean venv")
    if tuple(version[:2]) > NEWEST:
        message = f"{result}: newer than the tested versions (3.11 to 3.13)"
        return warning(Check.PYTHON, message)
    if system != "Linux":
        message = f"{result}: only Linux is tested"
        return warning(Check.PYTHON, message, "set MONGO_URI to a MongoDB server")
    return ok(Check.PYTHON, result)


def judge_folder(here: Path | None, search: Sequence[str]) -> list[Finding]:
    """Check that the imported code belongs to the project in the working directory.

    here:   working directory; None if it was deleted
    search: the module search path, `sys.path`
    """
    if here is None:
        return [failed(Check.FOLDER, "the working directory was deleted", f"cd {PROJECT}")]
    findings = []
    # With crawler/storage on the path, `import redis` would import crawler/storage/redis.py.
    packages = [PROJECT / name for name in NEEDED]
    for path in search:
        if any((here / path).resolve().is_relative_to(package) for package in packages):
            message = f"Python imports from {path or here}, where Freshet's modules shadow redis"
            fix = f"run scrapy in {PROJECT} and remove the folder from PYTHONPATH"
            findings.append(failed(Check.FOLDER, message, fix))
            break
    project = closest_scrapy_cfg(here)
    if project and Path(project).parent.resolve() != PROJECT:
        message = f"scrapy.cfg is in {Path(project).parent}, but the code is in {PROJECT}"
        fix = f"cd {PROJECT}, or use that project's environment"
        findings.append(failed(Check.FOLDER, message, fix))
    return findings or [ok(Check.FOLDER, str(PROJECT))]


def check_names() -> list[Finding]:
    """Check that no installed package shadows a package of the project.

    The order of sys.path depends on how Freshet is started, so a package that does not shadow the
    project's now may do so with another command: that is a warning.
    """
    elsewhere = [path for path in sys.path if os.path.realpath(path) != os.path.realpath(PROJECT)]
    findings = []
    for name in (*NEEDED, "tests"):
        spec = PathFinder.find_spec(name, elsewhere)
        if spec is None or spec.origin is None:
            continue
        owners = packages_distributions().get(name, [])
        owner = f"by {' and '.join(owners)}" if owners else "without a distribution"
        message = f"package {name!r} is also installed {owner} ({spec.origin})"
        origin = Path(spec.origin)
        place = origin.parent if origin.name == "__init__.py" else origin
        fix = f"pip uninstall {owners[0]}" if owners else f"remove {place}"
        first = find_spec(name)
        folders = (first.submodule_search_locations or []) if first else []
        is_ours = any(Path(folder).resolve() == PROJECT / name for folder in folders)
        if name in NEEDED and not is_ours:
            fix += f", or run python -m scrapy in {PROJECT}"
            findings.append(failed(Check.NAMES, message, fix))
        else:
            fix += f", or always run python -m scrapy in {PROJECT}"
            findings.append(warning(Check.NAMES, message, fix))
    return findings or [ok(Check.NAMES, "no installed package shadows the project's packages")]


@dataclass(frozen=True, slots=True)
class Site:
    """A job whose site definition was loaded."""

    job: Job
    wrapper: Wrapper


def check_settings(config: Config) -> list[Finding]:
    """Check settings that are valid on their own for typing errors, conflicts and risks."""
    written = env_file_variables()
    findings = [
        *judge_variables(unknown_variables()),
        *judge_env_file(written),
        *judge_settings(config),
    ]
    if config.private_hosts:
        hosts = ", ".join(config.private_hosts)
        message = f"FRESHET_PRIVATE_HOSTS allows these hosts in private networks: {hosts}"
        findings.append(ok(Check.SETTINGS, message))
    source = f"environment and {ENV_FILE}" if written else f"environment; {ENV_FILE} does not exist"
    return findings or [ok(Check.SETTINGS, source)]


def judge_variables(unknown: Iterable[UnknownVariable]) -> Iterator[Finding]:
    """Yield a finding for each variable that looks like a setting, but is not one."""
    for variable in unknown:
        message = f"{variable.name} is not a Freshet setting"
        yield warning(Check.SETTINGS, message, variable.hint)


def judge_env_file(written: Mapping[str, str | None]) -> Iterator[Finding]:
    """Yield a finding for each line of `.env` without a value.

    written: values by name; None for a line without `=`
    """
    for name, value in written.items():
        if value is None:
            yield warning(Check.SETTINGS, f"{ENV_FILE}: {name} has no value", f"write {name}=…")


def judge_settings(config: Config) -> Iterator[Finding]:
    """Yield a finding for settings that conflict with each other or are a risk."""
    if config.redis_url and config.mongo_uri is None:
        message = "REDIS_URL is set, but other machines cannot use the embedded MongoDB"
        fix = "set MONGO_URI if workers on other machines share the crawl"
        yield warning(Check.SETTINGS, message, fix)
    if config.clock_offset_hours:
        message = f"FRESHET_CLOCK_OFFSET_HOURS={config.clock_offset_hours:g} shifts all times"
        yield warning(Check.SETTINGS, message, "unset it: it is meant for tests")
    for kind in ("list", "item", "feed", "cell"):
        hours = getattr(config, f"{kind}_interval_hours")
        if hours > (longest := config.longest_hours(feeds=kind == "feed")):
            message = (
                f"FRESHET_{kind.upper()}_INTERVAL_HOURS={hours:g} is longer than "
                f"FRESHET_MAX_INTERVAL_HOURS={longest:g}"
            )
            yield warning(Check.SETTINGS, message, "the shorter interval applies")
    if config.shared_budget and config.feed_budget:
        message = "FRESHET_FEED_BUDGET is ignored because FRESHET_SHARED_BUDGET is on"
        yield warning(Check.SETTINGS, message, "unset one of them")
    budget, daily, hourly = config.budget, config.daily_cap, config.hourly_cap
    if budget and daily and daily < budget:
        per_day = f"{precise(budget)} requests a day"
        message = f"FRESHET_DAILY_CAP={plain(daily)} is below the budget of {per_day}"
        yield warning(Check.SETTINGS, message, "raise the cap or lower the budget")
    if budget and hourly and hourly * DAY_HOURS < budget:
        message = (
            f"FRESHET_HOURLY_CAP={plain(hourly)} allows fewer requests a day than "
            f"the budget, {precise(budget)}"
        )
        yield warning(Check.SETTINGS, message, "raise the cap or lower the budget")
    if config.private_addresses:
        message = "FRESHET_PRIVATE_ADDRESSES=1 lets any page make Freshet fetch private addresses"
        fix = "unset it and list the hosts that you need in FRESHET_PRIVATE_HOSTS"
        yield warning(Check.SETTINGS, message, fix)
    if not config.contact:
        fix = "set FRESHET_CONTACT to your URL or email address"
        yield warning(Check.SETTINGS, "the user agent gives site owners no contact", fix)


def check_definitions(
    settings: BaseSettings, names: Sequence[str], stored: StoredSites
) -> tuple[list[Finding], list[Site]]:
    """Load site definitions; return the findings and the sites that loaded.

    names:  sites and files to load; empty: all
    stored: names and definitions of sites in the database
    """
    findings: list[Finding] = []
    spiders: Spiders = {}
    for package in settings.getlist("SPIDER_MODULES"):
        names_of_modules = [package]
        # An error is reported below, where the module is imported again.
        with suppress(Exception):
            path = import_module(package).__path__
            names_of_modules += [m.name for m in pkgutil.iter_modules(path, f"{package}.")]
        for name in names_of_modules:
            try:
                module = import_module(name)
            except Exception as error:  # noqa: BLE001 - a user's module may raise anything
                fix = "fix the module: until then no spider can run"
                findings.append(failed(Check.WRAPPER, describe_error(error), fix, of=name))
                continue
            spiders |= {spider.name: spider for spider in iter_spider_classes(module)}
    jobs: list[Job] = []
    if not names:
        defaults = default_jobs(spiders, stored)
        jobs = list(defaults.jobs)
        names = [name for name in defaults.unwatched if issubclass(spiders[name], WrapperSpider)]
        for name in defaults.undefined:
            message, _, fix = undefined_words(name).partition(": ")
            findings.append(warning(Check.WRAPPER, message, fix, of=name))
    for name in names:
        try:
            jobs += jobs_of([*with_files([name])], spiders, stored)
        except ConfigError as error:
            findings.append(failed(Check.WRAPPER, str(error), of=name))
    sites: dict[str, Site] = {}
    findings += [_load_site(job, sites) for job in sorted(jobs, key=lambda job: job.word)]
    return findings, list(sites.values())


def _load_site(job: Job, sites: dict[str, Site]) -> Finding:
    """Load a job's site definition and add it to `sites`, keyed by its name in the database."""
    try:
        wrapper = job.wrapper()
    except FreshetError as error:
        return failed(Check.WRAPPER, str(error), _advice_on_variables(job), of=job.word)
    if (other := sites.get(wrapper.name)) is not None:
        message = f"name {wrapper.name!r} is already used by {other.job.word}"
        return failed(Check.WRAPPER, message, "rename one of them", of=job.word)
    sites[wrapper.name] = Site(job, wrapper)
    parts = [
        count(len(wrapper.starts), "start URL"),
        count(len(wrapper.fields), "field") if wrapper.fields else "main text",
        count(len(wrapper.cells), "cell") if wrapper.cells else "",
    ]
    message = "valid; " + ", ".join(filter(None, parts))
    if job.definition is not None and (used := wrapper.definition) is not None:
        message += f"; defined by {'the stored copy of ' if used.stored else ''}{used.source}"
    return ok(Check.WRAPPER, message, of=job.word)


def _advice_on_variables(job: Job) -> str:
    """Return how to set the variables that a site definition uses and that are not set."""
    files = (Path(path) for path in job.arguments.values())
    text = "".join(path.read_text("utf-8", "replace") for path in files if path.is_file())
    used = sorted(set(VARIABLE.findall(text or str(vars(job.spider)))))
    names = [name for name in used if value_of(name) is None]
    return f"set {listed(names)} in the environment or in {ENV_FILE}" if names else ""


def check_robots(settings: BaseSettings, sites: Sequence[Site]) -> list[Finding]:
    """Fetch the robots.txt of all hosts concurrently and check that start pages are allowed."""
    findings: list[Finding] = []
    # Start pages by spider and URL of their robots.txt.
    pages: dict[str, dict[str, list[str]]] = {}
    answers: dict[str, list[Answer]] = {}
    own: Any = settings.copy()
    limits = {"DNS_TIMEOUT": ROBOTS_SECONDS, "CLOSESPIDER_TIMEOUT": 2 * ROBOTS_SECONDS}
    for setting, value in (limits | {"LOG_ENABLED": False}).items():
        own.set(setting, value, priority="cmdline")
    process, max_seconds = None, Config.of(settings).crawl_delay_seconds
    for site in sites:
        name, starts = site.wrapper.name, site.wrapper.starts
        cells = (cell.url for cell in site.wrapper.cells.values() if cell.url)
        by_robots = pages[name] = {}
        for page in dict.fromkeys([*starts, *cells]):
            parts = urlsplit(page)
            by_robots.setdefault(f"{parts.scheme}://{parts.netloc}/robots.txt", []).append(page)
        if by_robots and site.wrapper.robots is not False:
            process = process or AsyncCrawlerProcess(own)
            urls, answers[name] = list(by_robots)[:MAX_HOSTS], []
            spider = robots_spider(site.job.spider, urls, ROBOTS_SECONDS, answers[name])
            process.crawl(spider, **site.job.arguments)
    if process is not None:
        process.start()
    for site in sites:
        wrapper, urls = site.wrapper, list(pages[site.wrapper.name])
        if urls and wrapper.robots is False:
            message = "not checked: the site definition sets robots = false"
            findings.append(ok(Check.ROBOTS, message, of=wrapper.name))
            continue
        by_url = {answer.url: answer for answer in answers.get(wrapper.name, ())}
        for url in urls[:MAX_HOSTS]:
            silent = Answer(url, problem=f"no response within {ROBOTS_SECONDS:g} s")
            answer = by_url.get(url, silent)
            findings.append(judge_robots(wrapper, pages[wrapper.name][url], answer, max_seconds))
        if (more := len(urls) - MAX_HOSTS) > 0:
            message = f"{count(more, 'more host')} not checked (limit {MAX_HOSTS})"
            findings.append(ok(Check.ROBOTS, message, of=wrapper.name))
    return findings


def judge_robots(
    wrapper: Wrapper, pages: Sequence[str], answer: Answer, max_delay_seconds: float
) -> Finding:
    """Judge the robots.txt response of a host.

    pages:             the start pages on that host
    max_delay_seconds: maximum Crawl-delay that crawls obey
    """
    host, of = urlsplit(answer.url).netloc, wrapper.name
    if answer.rules is None:
        message = f"{host} is unreachable: {answer.problem}"
        fix = "check the host name, the network and the proxy"
        return warning(Check.ROBOTS, message, fix, of=of)
    message = f"{host} returned {answer.status}"
    if is_unavailable(answer.status):
        message += ", so crawls fetch none of its pages"
        fix = "ask the site owner, or set robots = false in the site definition"
        return warning(Check.ROBOTS, message, fix, of=of)
    if refused := [page for page in pages if not answer.rules.allowed(page, answer.agent)]:
        fix = "these pages will not be fetched; ask the site owner or change start_urls"
        return warning(Check.ROBOTS, f"{message} and disallows {listed(refused, 3)}", fix, of=of)
    site_seconds = answer.rules.crawl_delay(answer.agent) or 0.0
    own_seconds = wrapper.delay_seconds or 0.0
    waited_seconds = max(own_seconds, min(site_seconds, max_delay_seconds))
    if site_seconds > waited_seconds:
        message += f" and asks for a delay of {site_seconds:g} s; crawls wait {waited_seconds:g} s"
        todo = f"set delay_seconds = {site_seconds:g} or raise FRESHET_CRAWL_DELAY_SECONDS"
        return warning(Check.ROBOTS, message, todo, of=of)
    if answer.status in (401, 403):
        return warning(
            Check.ROBOTS, message, "the site may refuse crawlers; ask the site owner", of=of
        )
    message += "; all start pages are allowed"
    if site_seconds > own_seconds:
        message += f"; crawls wait {site_seconds:g} s between requests (Crawl-delay)"
    return ok(Check.ROBOTS, message, of=of)


async def check_items(db: Database, sites: Sequence[Site], config: Config) -> list[Finding]:
    """Check that the newest items of each site have all fields.

    Sites without item pages, such as feeds and lists of cells, are skipped.
    """
    findings: list[Finding] = []
    for site in sites:
        wrapper = site.wrapper.completed(config)
        if not wrapper.item_pages:
            continue
        n_shells, example = await targets.shells(db, wrapper.name)
        if n_shells:
            message = f"{count(n_shells, 'page')} without content before scripts run: {example}"
            fix = "read the data that the page loads: docs/faq.md, pages that need JavaScript"
            findings.append(warning(Check.ITEMS, message, fix, of=wrapper.name))
        if not await targets.has_read(db, wrapper.name, Kind.ITEM):
            if await runs.has_ended(db, wrapper.name):
                message = "no items collected in any finished run"
                start = next(iter(site.wrapper.starts))
                fix = f"test the site definition: scrapy wrapper check {site.job.word} {start}"
                findings.append(warning(Check.ITEMS, message, fix, of=wrapper.name))
        elif names := wrapper.field_names:
            filled = await posts.field_coverage(
                db, wrapper.name, wrapper.selector_digest(Kind.ITEM), names
            )
            broken = await alarms.broken_sites(db, wrapper.name)
            findings += judge_fields(wrapper, filled, site.job.word, broken)
    return findings


def judge_fields(
    wrapper: Wrapper, filled: Mapping[str, FieldCoverage], word: str, broken: Sequence[str] = ()
) -> Iterator[Finding]:
    """Yield a finding for each field that is missing from all of the newest posts.

    filled: number of the newest posts that were read and that have the field, by field
    word:   the site's name on the command line
    broken: texts of open alarms about many pages of the site that broke
    """
    n_read = max((each.read for each in filled.values()), default=0)
    missing = [name for name, n in filled.items() if n.read >= MIN_POSTS and not n.found]
    for name in missing:
        field = wrapper.fields.get(name)
        selector = f" (selector {field.selector})" if field else ""
        items = count(filled[name].read, "item")
        message = f"{name}: not found in any of the newest {items}{selector}"
        fix = f"fix the selector and test it: scrapy wrapper check {word} URL"
        yield warning(Check.FIELDS, message, fix if field else "", of=wrapper.name)
    for text in broken:
        fix = "see scrapy silence and docs/how-to/find-silent-pages.md"
        yield warning(Check.FIELDS, text, fix, of=wrapper.name)
    if n_read and not missing and not broken:
        message = f"all fields found in the newest {count(n_read, 'item')}"
        yield ok(Check.FIELDS, message, of=wrapper.name)
