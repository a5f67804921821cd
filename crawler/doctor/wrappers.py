"""The spiders: whether each loads, and describes its site without a mistake."""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from pydantic_settings.sources import read_env_file
from scrapy.settings import BaseSettings
from scrapy.utils.spider import iter_spider_classes

from crawler.config import VARIABLE
from crawler.doctor.findings import Finding, failed, ok, warning
from crawler.doctor.knobs import ENV_FILE
from crawler.errors import ConfigError, FreshetError
from crawler.extract.wrapper import Wrapper
from crawler.refreshing.jobs import Job, Known, Spiders, jobs_of, undefined_words, usual, with_files
from crawler.refreshing.passes import why
from crawler.utils.text import count, listed
from spiders.wrapper import WrapperSpider

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
