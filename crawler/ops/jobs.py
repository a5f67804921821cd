"""Jobs of the service and of cron: spider classes, stored site definitions, definition files."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scrapy import Spider
from scrapy.settings import BaseSettings
from scrapy.spiderloader import get_spider_loader

from crawler.config import Config
from crawler.errors import ConfigError, suggestion_or_all
from crawler.extract.site_definition import Wrapper
from crawler.extract.stored_definition import Definition
from crawler.storage import sites, targets
from crawler.storage.client import Database
from crawler.storage.store import opened
from spiders.feeds import FeedsSpider
from spiders.site import CellsSpider, lacks_file, spider_of
from spiders.wrapper import WrapperSpider

# Name of the spider that runs site definition files.
ANY_SITE = "site"
Spiders = dict[str, type[Spider]]


@dataclass(frozen=True, slots=True)
class Job:
    """One spider and its arguments, as for `scrapy crawl`.

    word: name given by the user: of a spider, a site or a file
    """

    word: str
    spider: type[WrapperSpider]
    arguments: dict[str, str] = field(default_factory=dict)

    @property
    def definition(self) -> Definition | None:
        """Return the stored definition that the job runs; None for spider classes and files."""
        return getattr(self.spider, "stored_definition", None)

    def wrapper(self) -> Wrapper:
        """Read the site definition; raises ConfigError or WrapperError."""
        return self.spider.read_wrapper(self.spider.read_arguments(self.arguments))

    def name(self) -> str:
        """Return the spider's name in the database; raises ConfigError or WrapperError."""
        return self.wrapper().name


@dataclass(frozen=True, slots=True)
class StoredSites:
    """The sites in the database.

    watched:     names of sites that have targets
    definitions: definitions of sites without a spider class, by name
    """

    watched: tuple[str, ...] = ()
    definitions: Mapping[str, Definition] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DefaultJobs:
    """Jobs that run if the user names no spider.

    jobs:      sites that have targets, and the cells of the project's cells file; sorted by name
    undefined: names that have targets, but no site definition
    unwatched: names of spiders that have no targets because they have never run
    """

    jobs: list[Job]
    undefined: list[str]
    unwatched: list[str]


async def read_stored_sites(db: Database) -> StoredSites:
    """Return the sites in the database; reads only indexes."""
    return StoredSites(tuple(await targets.spiders(db)), await sites.definitions(db))


def stored_sites(config: Config) -> StoredSites:
    """Open the database and return its sites; blocks."""

    async def read() -> StoredSites:
        async with opened(config) as db:
            return await read_stored_sites(db)

    return asyncio.run(read())


def spiders_of(settings: BaseSettings) -> Spiders:
    """Return all spider classes of the project, by name."""
    loader = get_spider_loader(settings)
    return {name: loader.load(name) for name in sorted(loader.list())}


def default_jobs(spiders: Spiders, stored: StoredSites) -> DefaultJobs:
    """Return the jobs that run if the user names no spider."""
    jobs: dict[str, Job] = {}
    undefined: list[str] = []
    for name in stored.watched:
        if (job := _named_job(name, spiders, stored)) is not None:
            jobs[name] = job
        else:
            undefined.append(name)
    for name, spider in spiders.items():
        # Run cells even before they have targets: the user has written the file.
        if issubclass(spider, CellsSpider) and not lacks_file(spider):
            jobs.setdefault(name, Job(name, spider))
    unwatched = [name for name in classes(spiders) if name not in jobs]
    return DefaultJobs([jobs[name] for name in sorted(jobs)], undefined, unwatched)


def undefined_words(name: str) -> str:
    """Return the problem of a name that has targets but no site definition, and the fix."""
    return (
        "it has targets but no site definition: run scrapy crawl site -a wrapper=FILE.toml once, "
        f"or scrapy forget {name}"
    )


def initial_jobs(spiders: Spiders) -> list[Job]:
    """Return the jobs that the service starts with if the user names no spider.

    These are all spider classes, because some may have no targets yet. Examples, subscribed feeds,
    and sites without a spider class are added only when they have targets.
    """
    names = [
        name
        for name in classes(spiders)
        if issubclass(spiders[name], WrapperSpider) and spiders[name] is not FeedsSpider
    ]
    jobs = [job_of(name, spiders, StoredSites()) for name in names]
    # vars() ignores inheritance: a user's class derived from an example is not an example.
    return [job for job in jobs if not vars(job.spider).get("is_example")]


def classes(spiders: Spiders) -> list[str]:
    """Return the names of the spider classes that can run without arguments."""
    return [name for name in spiders if name != ANY_SITE and not lacks_file(spiders[name])]


def needs_database(names: Iterable[str], spiders: Spiders) -> bool:
    """Return whether some of the names may be sites that are only defined in the database."""
    return any(
        name not in spiders or lacks_file(spiders[name])
        for name in names
        if not name.endswith(".toml")
    )


def jobs_of(names: list[str], spiders: Spiders, stored: StoredSites) -> list[Job]:
    """Return the jobs of spider classes, stored sites and files by name; raises ConfigError."""
    return [job_of(name, spiders, stored) for name in names]


def with_files(names: Iterable[str]) -> Iterator[str]:
    """Replace each folder (its name ends with /) with its .toml files; raises ConfigError."""
    for name in names:
        if not name.endswith(os.sep):
            yield name
            continue
        if not (files := sorted(map(str, Path(name).glob("*.toml")))):
            raise ConfigError(f"{name}: folder contains no site definitions (.toml files)")
        yield from files


def job_of(name: str, spiders: Spiders, stored: StoredSites) -> Job:
    """Return the job of a file, a spider class or a stored site; raises ConfigError."""
    if name.endswith(".toml"):
        # The file must exist, but may be invalid, for example while it is being edited.
        path = Path(name).resolve()
        if not path.is_file():
            raise ConfigError(f"{path}: no such file")
        reader = spiders.get(ANY_SITE)
        if reader is None or not issubclass(reader, WrapperSpider):
            raise ConfigError(
                f"{path}: the project lacks the spider {ANY_SITE!r}, which runs .toml files"
            )
        return Job(name, reader, {"wrapper": str(path)})
    check_name(name, spiders, stored)
    if (job := _named_job(name, spiders, stored)) is None:
        raise ConfigError(f"{name}: not a WrapperSpider, so it has no targets to keep fresh")
    return job


def check_name(name: str, spiders: Spiders, stored: StoredSites) -> None:
    """Raise ConfigError unless `name` is a spider class or a stored site."""
    if name in stored.definitions or (name in spiders and name != ANY_SITE):
        return
    ending = suggestion_or_all(name, sorted({*classes(spiders), *stored.definitions}))
    hint = "" if ending.endswith("?") else "; or name a .toml file"
    raise ConfigError(f"site not found: {name!r}{ending}{hint}")


def _named_job(name: str, spiders: Spiders, stored: StoredSites) -> Job | None:
    """Return a job; None if `name` is not a WrapperSpider or a stored site.

    A spider class takes precedence over a stored definition, unless the file of the class is
    missing.
    """
    spider = None if name == ANY_SITE else spiders.get(name)
    if (spider is None or lacks_file(spider)) and name in stored.definitions:
        spider = spider_of(stored.definitions[name], spiders)
    if spider is None or not issubclass(spider, WrapperSpider):
        return None
    return Job(name, spider)
