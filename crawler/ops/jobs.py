"""Jobs, what the service and cron run: spider classes, sites with stored definitions, files."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scrapy import Spider
from scrapy.settings import BaseSettings
from scrapy.spiderloader import get_spider_loader

from crawler.config import Config
from crawler.errors import ConfigError, FreshetError
from crawler.extract.definition import Definition
from crawler.storage import sites, targets
from crawler.storage.client import Database
from crawler.storage.store import opened
from spiders.cells import CellsSpider
from spiders.site import spider_of
from spiders.wrapper import WrapperSpider

# The spider of sites that have a file instead of a class.
ANY_SITE = "site"
Spiders = dict[str, type[Spider]]


@dataclass(frozen=True, slots=True)
class Job:
    """One spider with its arguments, as `scrapy crawl` would be given them."""

    word: str
    spider: type[WrapperSpider]
    arguments: dict[str, str] = field(default_factory=dict)

    @property
    def definition(self) -> Definition | None:
        """The stored definition that it runs; None for spider classes and files."""
        return getattr(self.spider, "stored_definition", None)

    def name(self) -> str:
        """The name in the database; raises ConfigError or WrapperError."""
        return self.spider.read_wrapper(self.spider.read_arguments(self.arguments)).name


@dataclass(frozen=True, slots=True)
class StoredSites:
    """What the database has of sites.

    watched:     names that have targets
    definitions: of sites without a spider class, by name
    """

    watched: tuple[str, ...] = ()
    definitions: Mapping[str, Definition] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Usual:
    """What runs where no names are given.

    jobs:      the sites that have targets, by name, and cells that the project's file describes
    undefined: names that have targets, but no site definition
    unwatched: names of spiders that have no targets, as they have never run
    """

    jobs: list[Job]
    undefined: list[str]
    unwatched: list[str]


async def read_stored_sites(db: Database) -> StoredSites:
    """Return what the database has of sites; by indexes."""
    return StoredSites(tuple(await targets.spiders(db)), await sites.definitions(db))


def stored_sites(config: Config) -> StoredSites:
    """As `read_stored_sites`, from a database that is opened for it (blocking)."""

    async def read() -> StoredSites:
        async with opened(config) as db:
            return await read_stored_sites(db)

    return asyncio.run(read())


def spiders_of(settings: BaseSettings) -> Spiders:
    """All spider classes of the project, by name."""
    loader = get_spider_loader(settings)
    return {name: loader.load(name) for name in sorted(loader.list())}


def usual(spiders: Spiders, stored: StoredSites) -> Usual:
    """What runs where no names are given."""
    jobs: dict[str, Job] = {}
    undefined: list[str] = []
    for name in stored.watched:
        if (job := _named_job(name, spiders, stored)) is not None:
            jobs[name] = job
        else:
            undefined.append(name)
    for name, spider in spiders.items():
        # Its file is there, so that somebody wants it.
        if issubclass(spider, CellsSpider) and not lacks_file(spider):
            jobs.setdefault(name, Job(name, spider))
    unwatched = [name for name in classes(spiders) if name not in jobs]
    return Usual([jobs[name] for name in sorted(jobs)], undefined, unwatched)


def undefined_words(name: str) -> str:
    """What is wrong with a name that has targets but no site definition, and what to do."""
    return (
        "it has targets but no site definition: run scrapy crawl site -a wrapper=FILE.toml once, "
        f"or scrapy forget {name}"
    )


def to_serve(spiders: Spiders) -> list[Job]:
    """What the service keeps fresh from its start where no names are given.

    Spider classes may never have run, and feeds may be imported at any time; examples wait until
    they have targets, as sites without a class do.
    """
    names = [name for name in classes(spiders) if issubclass(spiders[name], WrapperSpider)]
    jobs = [job_of(name, spiders, StoredSites()) for name in names]
    # A class of the user's that inherits from an example is none.
    return [job for job in jobs if not vars(job.spider).get("is_example")]


def classes(spiders: Spiders) -> list[str]:
    """Names of the spider classes that can run without arguments."""
    return [name for name in spiders if name != ANY_SITE and not lacks_file(spiders[name])]


def lacks_file(spider: type[Spider]) -> bool:
    """Whether a spider's wrapper is a file that is not there; one that is broken counts."""
    try:
        if issubclass(spider, WrapperSpider):
            Job(spider.name, spider).name()
    except FreshetError as error:
        return str(error).endswith(os.strerror(errno.ENOENT))
    return False


def needs_database(names: Iterable[str], spiders: Spiders) -> bool:
    """Whether some of these names are neither files nor spider classes that can run."""
    return any(
        name not in spiders or lacks_file(spiders[name])
        for name in names
        if not name.endswith(".toml")
    )


def jobs_of(names: list[str], spiders: Spiders, stored: StoredSites) -> list[Job]:
    """The jobs of these names: spider classes, stored sites, files; raises ConfigError."""
    return [job_of(name, spiders, stored) for name in names]


def with_files(names: Iterable[str]) -> Iterator[str]:
    """These names, and for a folder (its name ends with /) its wrappers; raises ConfigError."""
    for name in names:
        if not name.endswith(os.sep):
            yield name
            continue
        if not (files := sorted(map(str, Path(name).glob("*.toml")))):
            raise ConfigError(f"{name}: folder contains no site definitions (.toml files)")
        yield from files


def job_of(name: str, spiders: Spiders, stored: StoredSites) -> Job:
    """The job of a file, a spider class or a stored site; raises ConfigError."""
    if name.endswith(".toml"):
        # The file may be broken for a while, as it is being edited; it has to be there.
        path = Path(name).resolve()
        if not path.is_file():
            raise ConfigError(f"{path}: no such file")
        reader = spiders.get(ANY_SITE)
        if reader is None or not issubclass(reader, WrapperSpider):
            raise ConfigError(
                f"{path}: this project has no spider {ANY_SITE!r}, which reads such files"
            )
        return Job(name, reader, {"wrapper": str(path)})
    check_name(name, spiders, stored)
    if (job := _named_job(name, spiders, stored)) is None:
        raise ConfigError(f"{name}: not a WrapperSpider, so it never has anything due")
    return job


def check_name(name: str, spiders: Spiders, stored: StoredSites) -> None:
    """Raise ConfigError unless this is the name of a spider class or of a stored site."""
    if name in stored.definitions or (name in spiders and name != ANY_SITE):
        return
    available = ", ".join(sorted({*classes(spiders), *stored.definitions})) or "none"
    raise ConfigError(f"site not found: {name!r}. Available: {available}; or name a .toml file")


def _named_job(name: str, spiders: Spiders, stored: StoredSites) -> Job | None:
    """A spider class wins over a definition of its name, unless its own file is missing."""
    spider = None if name == ANY_SITE else spiders.get(name)
    if (spider is None or lacks_file(spider)) and name in stored.definitions:
        spider = spider_of(stored.definitions[name], spiders)
    if spider is None or not issubclass(spider, WrapperSpider):
        return None
    return Job(name, spider)
