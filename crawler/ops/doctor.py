"""`scrapy doctor`: runs all checks in order, and checks this machine.

A check is skipped if a check that it depends on has failed. In the doctor's modules, `check_*`
functions do I/O; `judge_*` functions turn the values read into findings.
"""

from __future__ import annotations

import asyncio
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

from scrapy.settings import BaseSettings
from scrapy.utils.conf import closest_scrapy_cfg

from crawler.config import PROJECT, Config
from crawler.errors import FreshetError
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
from crawler.ops.doctor_sites import (
    Site,
    check_definitions,
    check_items,
    check_robots,
    check_settings,
)
from crawler.ops.findings import Check, Finding, failed, ok, warning
from crawler.ops.jobs import StoredSites, read_stored_sites
from crawler.storage import health
from crawler.utils.process import Say

OLDEST, NEWEST = (3, 11), (3, 13)
# Packages that a crawl imports; installed packages of the same name could shadow them.
NEEDED = ("crawler", "spiders", "pipelines", "schedules")


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
            self.findings += check_robots(self.settings, sites)
        return self.findings

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
                self.findings += await check_runs(db, sites, started)
                names = [site.wrapper.name for site in sites]
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
    elsewhere = [path for path in sys.path if not _is_project(path)]
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


def _is_project(path: str) -> bool:
    try:
        return Path(path).resolve() == PROJECT
    except OSError:
        return False
