"""What is kept fresh: spiders of the project, and wrappers that are files."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from scrapy import Spider
from scrapy.settings import BaseSettings
from scrapy.spiderloader import get_spider_loader

from crawler.errors import ConfigError, FreshetError
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

    def name(self) -> str:
        """The name in the database; raises ConfigError or WrapperError."""
        return self.spider.read_wrapper(self.spider.read_arguments(self.arguments)).name


def spiders_of(settings: BaseSettings) -> Spiders:
    """All spiders of the project, by name."""
    loader = get_spider_loader(settings)
    return {name: loader.load(name) for name in sorted(loader.list())}


def usual(spiders: Spiders) -> list[str]:
    """Names of the spiders that can be crawled as they are; raises ConfigError without any."""
    if not (names := _usual(spiders)):
        raise ConfigError("no spiders in this project: name the files of your wrappers")
    return names


def known(name: str, spiders: Spiders) -> str:
    """The name of a spider; raises ConfigError if it is none that can be named alone."""
    if name not in spiders or name == ANY_SITE:
        there = ", ".join(_usual(spiders)) or "none"
        raise ConfigError(f"no spider {name!r}; there are: {there}; or name a .toml file")
    return name


def _usual(spiders: Spiders) -> list[str]:
    return [name for name in spiders if name != ANY_SITE and not _lacks_file(spiders[name])]


def _lacks_file(spider: type[Spider]) -> bool:
    """Whether a spider's wrapper is a file that is not there; one that is broken counts."""
    try:
        if issubclass(spider, WrapperSpider):
            Job(spider.name, spider).name()
    except FreshetError as error:
        return str(error).endswith(os.strerror(errno.ENOENT))
    return False


def jobs_of(names: list[str], spiders: Spiders) -> list[Job]:
    """The jobs of these names, of all Freshet's spiders if there are none; raises ConfigError."""
    if names:
        return [_job(name, spiders) for name in with_files(names)]
    return [_job(name, spiders) for name in usual(spiders) if _is_ours(spiders[name])]


def with_files(names: Iterable[str]) -> Iterator[str]:
    """These names, and for a folder (its name ends with /) its wrappers; raises ConfigError."""
    for name in names:
        if not name.endswith(os.sep):
            yield name
            continue
        if not (files := sorted(map(str, Path(name).glob("*.toml")))):
            raise ConfigError(f"{name}: no .toml file there: it is where wrappers are to be")
        yield from files


def _job(name: str, spiders: Spiders) -> Job:
    if name.endswith(".toml"):
        return _of_file(name, spiders)
    spider = spiders[known(name, spiders)]
    if not issubclass(spider, WrapperSpider):
        raise ConfigError(f"{name}: not a WrapperSpider, so nothing of it is ever due")
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


def _is_ours(spider: type[Spider]) -> bool:
    return issubclass(spider, WrapperSpider)
