"""All checks in their order: what one needs and another found wanting is left out."""

from __future__ import annotations

import asyncio
import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

from scrapy.settings import BaseSettings
from scrapy.utils.conf import closest_scrapy_cfg

from crawler.config import PROJECT, Config
from crawler.errors import FreshetError
from crawler.ops import doctor_servers as claims
from crawler.ops import doctor_servers as deep
from crawler.ops import doctor_servers as disks
from crawler.ops import doctor_servers as embedded
from crawler.ops import doctor_servers as mongodb
from crawler.ops import doctor_servers as passes
from crawler.ops import doctor_sites as items
from crawler.ops import doctor_sites as knobs
from crawler.ops import doctor_sites as robots
from crawler.ops import doctor_sites as wrappers
from crawler.ops.doctor_sites import Site
from crawler.ops.findings import Finding, failed, ok, warning
from crawler.ops.jobs import Known, read_known
from crawler.storage import health
from crawler.utils.time import Clock

OLDEST, NEWEST = (3, 11), (3, 13)
PYTHON, FOLDER = "python", "folder"


def check() -> list[Finding]:
    """Both."""
    return [python(sys.version_info[:3], platform.system()), *folder(_here(), sys.path)]


def python(version: Sequence[int], system: str) -> Finding:
    """Whether the interpreter and the system are among those that the tests run on."""
    said = ".".join(map(str, version))
    found = f"{said} on {system} {platform.machine()}"
    if tuple(version[:2]) < OLDEST:
        return failed(PYTHON, found, "install Python 3.11 or newer, then make clean venv")
    if tuple(version[:2]) > NEWEST:
        return warning(PYTHON, f"{found}: newer than what the tests run on (3.11 to 3.13)")
    if system != "Linux":
        return warning(PYTHON, f"{found}: the tests run on Linux", "name a MongoDB by MONGO_URI")
    return ok(PYTHON, found)


def folder(here: Path | None, search: Sequence[str]) -> list[Finding]:
    """Whether the code at work is that of the project in whose folder we are.

    here:   the folder, None where it is gone
    search: where Python looks for modules
    """
    if here is None:
        return [failed(FOLDER, "the working directory is gone", f"cd {PROJECT}")]
    found = []
    if inner := [path for path in search if _is_within(here / path)]:
        said = f"Python looks for modules in {inner[0] or here}, where redis is not the library"
        found.append(failed(FOLDER, said, f"run it in {PROJECT}, and keep PYTHONPATH clear of it"))
    project = closest_scrapy_cfg(here)
    if project and Path(project).parent.resolve() != PROJECT:
        said = f"scrapy.cfg is that of {Path(project).parent}, the code that of {PROJECT}"
        found.append(failed(FOLDER, said, f"cd {PROJECT}, or use the environment of that project"))
    return found or [ok(FOLDER, str(PROJECT))]


def _here() -> Path | None:
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def _is_within(path: Path) -> bool:
    """Whether a folder is one of the project's packages."""
    packages = (PROJECT / name for name in ("crawler", "spiders", "pipelines", "schedules"))
    return any(path.resolve().is_relative_to(package) for package in packages)


NAMES = ("crawler", "spiders", "pipelines", "schedules", "tests")
# Only these are needed to crawl.
NEEDED = NAMES[:-1]
CHECK = "names"


def check_names() -> list[Finding]:
    """Whether each name leads to the project, however Freshet is started."""
    elsewhere = [path for path in sys.path if not _is_project(path)]
    found = [
        _finding(name, spec)
        for name in NAMES
        if (spec := PathFinder.find_spec(name, elsewhere)) is not None and spec.origin is not None
    ]
    return found or [ok(CHECK, "no installed package hides the project's")]


def _finding(name: str, spec: ModuleSpec) -> Finding:
    owners = packages_distributions().get(name, [])
    whose = f"of {' and '.join(owners)}" if owners else "of no distribution"
    said = f"{name} is also a package {whose} ({spec.origin})"
    todo = f"pip uninstall {owners[0]}" if owners else f"remove {_place(spec.origin)}"
    if name in NEEDED and not _is_ours(name):
        return failed(CHECK, said, f"{todo}, or run python -m scrapy in {PROJECT}")
    return warning(CHECK, said, f"{todo}, or keep to python -m scrapy in {PROJECT}")


def _place(origin: str | None) -> Path:
    """The folder of a package, the file of a module."""
    path = Path(origin or "")
    return path.parent if path.name == "__init__.py" else path


def _is_ours(name: str) -> bool:
    spec = find_spec(name)
    places: Sequence[str] = (spec.submodule_search_locations or []) if spec else []
    return any(Path(place).resolve() == PROJECT / name for place in places)


def _is_project(path: str) -> bool:
    try:
        return Path(path).resolve() == PROJECT
    except OSError:
        return False


Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Asked:
    """What to look at.

    spiders: names and files; empty: all of the project
    quick:   nothing is started and nobody on the network is asked but the servers
    deep:    all documents of the database are read; repair: and repaired
    """

    spiders: Sequence[str] = ()
    quick: bool = False
    deep: bool = False
    repair: bool = False


@dataclass(slots=True)
class Examination:
    """One visit of the doctor."""

    settings: BaseSettings
    asked: Asked
    say: Say
    found: list[Finding] = field(default_factory=list)

    def run(self) -> list[Finding]:
        """Everything that is found."""
        self.found += [*check(), *check_names()]
        config = self._config()
        known = None if config is None else self._known(config)
        self.say("loading the spiders")
        found, sites = wrappers.check(self.settings, self.asked.spiders, known or Known())
        if config is not None:
            self._of_config(config, sites, answers=known is not None)
        self.found += found
        if config is not None and not self.asked.quick:
            self.say("asking for robots.txt")
            self.found += robots.check_robots(self.settings, sites)
        return self.found

    def _known(self, config: Config) -> Known | None:
        """What the database knows of sites; None where it does not answer."""
        if config.mongo_uri is None:
            self.say("looking at the embedded MongoDB")
            finding, answers = embedded.check_embedded(config, start=not self.asked.quick)
            self.found.append(finding)
            if not answers:
                return None
        try:
            return asyncio.run(_known_sites(config))
        except FreshetError as error:
            self.found.append(failed(mongodb.SERVER, str(error)))
            return None

    def _config(self) -> Config | None:
        try:
            config = Config.of(self.settings)
        except FreshetError as error:
            self.found.append(
                failed(knobs.KNOBS_CHECK, str(error), "the servers are not looked at")
            )
            return None
        self.found += [*knobs.check_knobs(config, os.environ), *disks.check_disks(config)]
        return config

    def _of_config(self, config: Config, sites: Sequence[Site], *, answers: bool) -> None:
        """What the settings lead to. answers: whether MongoDB does."""
        if answers:
            self.say("looking at MongoDB")
            self.found += asyncio.run(_of_database(config, sites))
            if self.asked.deep:
                self.found += asyncio.run(_deep(config, self.say, repair=self.asked.repair))
        if config.redis_url is not None:
            self.say("looking at Redis")
            self.found += asyncio.run(claims.check_claims(config.redis_url, config))


async def _known_sites(config: Config) -> Known:
    async with health.reached(config) as db:
        return await read_known(db)


async def _deep(config: Config, say: Say, *, repair: bool) -> list[Finding]:
    try:
        async with health.reached(config) as db:
            if repair:
                now = Clock(config.clock_offset_hours).now()
                return await deep.repair(db, config, now, say)
            return await deep.examine(db, say)
    except FreshetError as error:
        return [failed(mongodb.SERVER, str(error))]


async def _of_database(config: Config, sites: Sequence[Site]) -> list[Finding]:
    found: list[Finding] = []
    try:
        async with health.reached(config) as db:
            now = Clock(config.clock_offset_hours).now()
            found += await mongodb.check(db, config)
            found += await passes.check_passes(db, sites, now)
            found += await disks.versions(db, [site.wrapper.name for site in sites], config)
            found += await items.check_items(db, sites, config)
    except FreshetError as error:
        found.append(failed(mongodb.SERVER, str(error)))
    return found
