"""What is kept fresh: spider classes, sites whose definitions are stored, and files."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scrapy import Spider
from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings
from scrapy.spiderloader import get_spider_loader

from crawler.config import PROJECT, Config
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
class Known:
    """What the database knows of sites.

    watched: names that have targets
    stored:  definitions of sites without a spider class, by name
    """

    watched: tuple[str, ...] = ()
    stored: Mapping[str, Definition] = field(default_factory=dict)


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


async def read_known(db: Database) -> Known:
    """What the database knows of sites; by indexes."""
    return Known(tuple(await targets.spiders(db)), await sites.definitions(db))


def known_sites(config: Config) -> Known:
    """As `read_known`, from a database that is opened for it (blocking)."""

    async def read() -> Known:
        async with opened(config) as db:
            return await read_known(db)

    return asyncio.run(read())


def spiders_of(settings: BaseSettings) -> Spiders:
    """All spider classes of the project, by name."""
    loader = get_spider_loader(settings)
    return {name: loader.load(name) for name in sorted(loader.list())}


def usual(spiders: Spiders, known: Known) -> Usual:
    """What runs where no names are given."""
    jobs: dict[str, Job] = {}
    undefined: list[str] = []
    for name in known.watched:
        if (job := _job_of(name, spiders, known)) is not None:
            jobs[name] = job
        else:
            undefined.append(name)
    for name, spider in spiders.items():
        # Its file is there, so that somebody wants it.
        if issubclass(spider, CellsSpider) and not lacks_file(spider):
            jobs.setdefault(name, Job(name, spider))
    others = [name for name in classes(spiders) if name not in jobs]
    return Usual([jobs[name] for name in sorted(jobs)], undefined, others)


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
    jobs = [job_of(name, spiders, Known()) for name in names]
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


def jobs_of(names: list[str], spiders: Spiders, known: Known) -> list[Job]:
    """The jobs of these names: spider classes, stored sites, files; raises ConfigError."""
    return [job_of(name, spiders, known) for name in names]


def with_files(names: Iterable[str]) -> Iterator[str]:
    """These names, and for a folder (its name ends with /) its wrappers; raises ConfigError."""
    for name in names:
        if not name.endswith(os.sep):
            yield name
            continue
        if not (files := sorted(map(str, Path(name).glob("*.toml")))):
            raise ConfigError(f"{name}: no .toml file there: it is where wrappers are to be")
        yield from files


def job_of(name: str, spiders: Spiders, known: Known) -> Job:
    """The job of a file, a spider class or a stored site; raises ConfigError."""
    if name.endswith(".toml"):
        return _of_file(name, spiders)
    check_name(name, spiders, known)
    if (job := _job_of(name, spiders, known)) is None:
        raise ConfigError(f"{name}: not a WrapperSpider, so it never has anything due")
    return job


def check_name(name: str, spiders: Spiders, known: Known) -> None:
    """Raise ConfigError unless this is the name of a spider class or of a stored site."""
    if name in known.stored or (name in spiders and name != ANY_SITE):
        return
    available = ", ".join(sorted({*classes(spiders), *known.stored})) or "none"
    raise ConfigError(f"site not found: {name!r}. Available: {available}; or name a .toml file")


def _job_of(name: str, spiders: Spiders, known: Known) -> Job | None:
    """A spider class wins over a definition of its name, unless its own file is missing."""
    spider = None if name == ANY_SITE else spiders.get(name)
    if (spider is None or lacks_file(spider)) and name in known.stored:
        spider = spider_of(known.stored[name], spiders)
    if spider is None or not issubclass(spider, WrapperSpider):
        return None
    return Job(name, spider)


def _of_file(name: str, spiders: Spiders) -> Job:
    """A file may be broken for a while, as it is being edited; it has to be there."""
    path = Path(name).resolve()
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    spider = spiders.get(ANY_SITE)
    if spider is None or not issubclass(spider, WrapperSpider):
        raise ConfigError(
            f"{path}: this project has no spider {ANY_SITE!r}, which reads such files"
        )
    return Job(name, spider, {"wrapper": str(path)})


logger = logging.getLogger(__name__)
# What cron's prune keeps where no setting says it.
KEEP = ("--keep-versions", "20", "--keep-days", "180")
PRUNE_SECONDS = 24 * 3600.0
FIRST_PRUNE_SECONDS = 3600.0
AGAIN_SECONDS = 3600.0
STOP_SECONDS = 10.0
STDERR = 2
CHORES = REPLAN, PRUNE = "replan", "prune"
# Behind the name of a chore in its counts.
FAILED = "failed"


@dataclass(slots=True)
class Chore:
    """A command that is run again and again.

    every:   seconds between two starts
    next_at: of a monotonic clock, in seconds
    """

    name: str
    words: list[str]
    every: float
    next_at: float

    def ran(self, now: float, *, well: bool) -> None:
        """Note that it was run; one that failed is run again within the hour."""
        self.next_at = now + (self.every if well else min(self.every, AGAIN_SECONDS))


def chores(
    config: Config, replan_seconds: float, since_plan: float, now: float, *, prunes: bool = True
) -> list[Chore]:
    """What is to be done beside the passes.

    replan_seconds: between replans; 0: never
    since_plan:     seconds since the last plan, or since the first pass ever
    """
    prune = Chore(PRUNE, prune_words(config), PRUNE_SECONDS, now + FIRST_PRUNE_SECONDS)
    first = now + max(0.0, replan_seconds - since_plan)
    replan = Chore(REPLAN, ["replan"], replan_seconds, first)
    return [replan] * bool(replan_seconds) + [prune] * prunes


def prune_words(config: Config) -> list[str]:
    """The words of a prune; what to keep is left to the settings where they say it."""
    keeps = config.keep_versions or config.keep_visits_days
    return ["prune", *([] if keeps else KEEP)]


def told(settings: BaseSettings) -> list[str]:
    """What `-s` said to this process, to be said to others."""
    given = (name for name in settings if settings.getpriority(name) == COMMAND_LINE)
    ours = sorted(name for name in given if name.startswith(("FRESHET_", "MONGO_", "REDIS_")))
    return [word for name in ours for word in ("-s", f"{name}={settings[name]}")]


COMMAND_LINE = SETTINGS_PRIORITIES["cmdline"]


async def keep_doing(
    todo: list[Chore],
    options: list[str],
    counts: Counter[str],
    waits: Callable[[Chore], Awaitable[float]],
) -> None:
    """Run each chore at its time, one at a time, until this is cancelled; count how they went.

    waits: seconds that a chore has to wait yet, as another machine does it, or has done it
    """
    clock = asyncio.get_running_loop().time
    while todo:
        chore = min(todo, key=lambda one: one.next_at)
        await asyncio.sleep(max(0.0, chore.next_at - clock()))
        if (seconds := await waits(chore)) > 0:
            chore.next_at = clock() + seconds
            continue
        code = await _run([*chore.words, *options])
        chore.ran(clock(), well=not code)
        counts[f"{chore.name} {FAILED}" if code else chore.name] += 1
        if code:
            logger.warning("scrapy %s failed (exit code %d)", chore.name, code)
        else:
            logger.info("scrapy %s is done", chore.name)


async def _run(words: list[str]) -> int:
    """The exit code of a command; what it prints goes to stderr. Ends it when cancelled."""
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "scrapy", *words,
            cwd=PROJECT, stdin=subprocess.DEVNULL, stdout=STDERR, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        logger.error("scrapy %s: %s", words[0], error.strerror or error)
        return 1
    try:
        return await process.wait()
    finally:
        if process.returncode is None:
            await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
