"""The settings: bad ones, unknown ones, and values that make no sense together."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping

from pydantic_settings.sources import read_env_file

from crawler.config import PREFIX, PROJECT, UNPREFIXED, Config
from crawler.doctor.findings import Finding, ok, warning

CHECK = "settings"
ENV_FILE = PROJECT / ".env"
KNOWN = {PREFIX + field.upper() for field in Config.model_fields} | set(UNPREFIXED)
DAY_HOURS = 24
NEAR = 0.8


def check(config: Config, environment: Iterable[str]) -> list[Finding]:
    """What is to be said of settings that are good one by one.

    environment: names of the process's variables
    """
    written = dict(read_env_file(ENV_FILE)) if ENV_FILE.is_file() else {}
    found = [*unknown({*environment, *written}), *unreadable(written), *odd(config)]
    if config.private_hosts:
        hosts = ", ".join(config.private_hosts)
        found.append(ok(CHECK, f"FRESHET_PRIVATE_HOSTS: may be in private networks: {hosts}"))
    return found or [ok(CHECK, _source(written))]


def _source(written: Mapping[str, str | None]) -> str:
    return f"environment and {ENV_FILE}" if written else f"environment; there is no {ENV_FILE}"


def unknown(names: Iterable[str]) -> Iterator[Finding]:
    """Variables that look like Freshet's and are none."""
    for name in sorted({name.upper() for name in names}):
        if name.startswith(PREFIX) and name not in KNOWN:
            near = difflib.get_close_matches(name, KNOWN, 1, NEAR)
            todo = f"did you mean {near[0]}?" if near else "docs/reference.md has all of them"
            yield warning(CHECK, f"{name} is no setting", todo)


def unreadable(written: Mapping[str, str | None]) -> Iterator[Finding]:
    """Lines of `.env` that say nothing. written: values by name, None where there is no `=`."""
    for name, value in written.items():
        if value is None:
            yield warning(CHECK, f"{ENV_FILE}: {name} has no value", f"write {name}=…")


def odd(config: Config) -> Iterator[Finding]:
    """Values that make no sense together."""
    yield from _of_servers(config)
    yield from _of_times(config)
    yield from _of_budgets(config)
    if config.private_addresses:
        said = "FRESHET_PRIVATE_ADDRESSES=1: any page may lead Freshet into your private networks"
        yield warning(CHECK, said, "list the hosts that are needed in FRESHET_PRIVATE_HOSTS")
    if not config.contact:
        todo = "set FRESHET_CONTACT to a page or an address of yours"
        yield warning(CHECK, "no site can tell whose crawler this is", todo)


def _of_servers(config: Config) -> Iterator[Finding]:
    if config.redis_url and config.mongo_uri is None:
        said = "REDIS_URL is for several machines, the embedded MongoDB is for this one alone"
        yield warning(CHECK, said, "set MONGO_URI where other machines are to share the work")


def _of_times(config: Config) -> Iterator[Finding]:
    if config.clock_offset_hours:
        said = f"FRESHET_CLOCK_OFFSET_HOURS={config.clock_offset_hours:g}: all times are moved"
        yield warning(CHECK, said, "take it out: it is for rehearsals")
    for kind in ("list", "item", "feed", "cell"):
        hours = getattr(config, f"{kind}_interval_hours")
        if hours > (longest := config.longest_hours(feeds=kind == "feed")):
            said = (
                f"FRESHET_{kind.upper()}_INTERVAL_HOURS={hours:g} is longer than "
                f"FRESHET_MAX_INTERVAL_HOURS={longest:g}"
            )
            yield warning(CHECK, said, "the shorter one holds")


def _of_budgets(config: Config) -> Iterator[Finding]:
    if config.shared_budget and config.feed_budget:
        said = "FRESHET_FEED_BUDGET has no meaning while FRESHET_SHARED_BUDGET is on"
        yield warning(CHECK, said, "take one of them out")
    if config.budget and config.daily_cap and config.daily_cap < config.budget:
        said = f"FRESHET_DAILY_CAP={config.daily_cap:g} is less than the budget, {config.budget:g}"
        yield warning(CHECK, said, "the budget cannot be spent: raise the cap")
    hourly = config.hourly_cap
    if config.budget and hourly and hourly * DAY_HOURS < config.budget:
        said = f"FRESHET_HOURLY_CAP={hourly:g} leaves no room for a budget of {config.budget:g}"
        yield warning(CHECK, f"{said} a day", "raise the cap")
