"""All checks in their order: what one needs and another found wanting is left out."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from scrapy.settings import BaseSettings

from crawler.config import Config
from crawler.doctor import (
    claims,
    deep,
    disks,
    embedded,
    items,
    knobs,
    machine,
    mongodb,
    names,
    passes,
    robots,
    wrappers,
)
from crawler.doctor.findings import Finding, failed
from crawler.doctor.wrappers import Site
from crawler.errors import FreshetError
from crawler.refreshing.jobs import Known, read_known
from crawler.storage import health
from crawler.utils.time import Clock

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
        self.found += [*machine.check(), *names.check()]
        config = self._config()
        known = None if config is None else self._known(config)
        self.say("loading the spiders")
        found, sites = wrappers.check(self.settings, self.asked.spiders, known or Known())
        if config is not None:
            self._of_config(config, sites, answers=known is not None)
        self.found += found
        if config is not None and not self.asked.quick:
            self.say("asking for robots.txt")
            self.found += robots.check(self.settings, sites)
        return self.found

    def _known(self, config: Config) -> Known | None:
        """What the database knows of sites; None where it does not answer."""
        if config.mongo_uri is None:
            self.say("looking at the embedded MongoDB")
            finding, answers = embedded.check(config, start=not self.asked.quick)
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
            self.found.append(failed(knobs.CHECK, str(error), "the servers are not looked at"))
            return None
        self.found += [*knobs.check(config, os.environ), *disks.check(config)]
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
            self.found += asyncio.run(claims.check(config.redis_url, config))


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
            found += await passes.check(db, sites, now)
            found += await disks.versions(db, [site.wrapper.name for site in sites], config)
            found += await items.check(db, sites, config)
    except FreshetError as error:
        found.append(failed(mongodb.SERVER, str(error)))
    return found
