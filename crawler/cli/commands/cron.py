"""`scrapy cron`: print the crontab lines, or the systemd unit, that run this project."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import TypedDict

from crawler.cli.base import FreshetCommand, print_json, usage_error
from crawler.config import PREFIX, PROJECT, UNPREFIXED, Config
from crawler.errors import PRIVATE_KEYS, ConfigError, ServerError
from crawler.utils.terminal import complain, print_line

if TYPE_CHECKING:
    from crawler.ops.jobs import Spiders, StoredSites

CRAWL_MINUTES, NOTIFY_MINUTES = 10, 5
# Hours of the daily replan and prune.
NIGHT_HOURS = 2, 3
QUIET = ("-L", "WARNING")


class CrontabLine(TypedDict):
    """A line for a crontab."""

    schedule: str
    """Minute, hour, day of the month, month and day of the week."""
    command: str
    """The command, with `%` escaped."""


class SystemdUnit(TypedDict):
    """A systemd unit."""

    name: str
    """File name of the unit."""
    text: str
    """Contents of the file."""


class Command(FreshetCommand):
    """Print lines for a crontab, or a systemd unit."""

    arguments = ("[NAME|FILE.toml|FOLDER/…]",)
    summary = "Print crontab lines that crawl, notify, replan and prune, or a systemd unit"
    example = "(crontab -l; scrapy cron books shop.toml) | crontab -"
    documents: ClassVar = {
        "scrapy cron --json": list[CrontabLine],
        "scrapy cron --systemd --json": SystemdUnit,
    }

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the options of systemd units."""
        super().add_options(parser)
        parser.add_argument(
            "--systemd", action="store_true",
            help="print a systemd unit that runs scrapy refresh run, instead of crontab lines",
        )  # fmt: skip
        parser.add_argument(
            "--worker", action="store_true",
            help="with --systemd: print the unit of additional workers, freshet@.service",
        )  # fmt: skip
        parser.add_argument(
            "--web", action="store_true",
            help="with --systemd: print the unit of the web app, freshet-web.service",
        )  # fmt: skip

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Print the crontab lines, or the unit."""
        from crawler.ops import jobs
        from crawler.ops.schedule import SERVICE, WEB, WORKER, unit

        assert self.settings is not None
        config = self.config
        if opts.worker:
            if not opts.systemd:
                raise usage_error("--worker requires --systemd")
            if config.redis_url is None:
                raise ConfigError(
                    "--worker: workers share a crawl run through Redis, but REDIS_URL is not set. "
                    f"Set it in {PROJECT / '.env'}"
                )
        if opts.web:
            if not opts.systemd or opts.worker or args:
                raise usage_error("--web requires --systemd, without --worker and names")
            print_line(unit(config, [], WEB).rstrip("\n"))
            return
        spiders = jobs.spiders_of(self.settings)
        names = [*jobs.with_files(args)]
        # The service finds the sites on its own if none are named, but crontab lines need names.
        finds_sites = not names and not opts.systemd
        is_stored = finds_sites or jobs.needs_database(names, spiders)
        stored = jobs.stored_sites(config) if is_stored else jobs.StoredSites()
        remarks: list[str] = []
        if finds_sites:
            names, remarks = _sites_to_schedule(spiders, stored)
        lines = _crontab_lines(names, spiders, stored, config)
        if opts.systemd:
            template = WORKER if opts.worker else SERVICE
            text = unit(config, args, template)
            if opts.json:
                print_json(SystemdUnit(name=template, text=text))
            else:
                print_line(text.rstrip("\n"))
            return
        self._print(lines, remarks, opts)

    def _print(
        self, lines: list[CrontabLine], remarks: list[str], opts: argparse.Namespace
    ) -> None:
        folder = self.config.data_dir
        try:
            # The shell does not run a command whose log it cannot open.
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ServerError(
                f"data folder {folder}: {error.strerror or error} (set FRESHET_DATA_DIR to a "
                "folder you can write)"
            ) from None
        if opts.json:
            print_json(lines)
            return
        if secret := _variables()[1]:
            remark = (
                f"cron does not see these variables of this shell, which may hold passwords: "
                f"{', '.join(secret)}. Set them in {PROJECT / '.env'}"
            )
            remarks.append(remark)
            if not sys.stdout.isatty():
                # The user may not see what goes into a crontab.
                complain(self.name, f"warning: {remark}")
        for remark in remarks:
            print_line(f"# {remark}")
        for line in lines:
            print_line(f"{line['schedule']:<15} {line['command']}")


def _sites_to_schedule(spiders: Spiders, stored: StoredSites) -> tuple[list[str], list[str]]:
    """Return the sites that have targets, and remarks on sites that are left out.

    Raises ConfigError if no site has targets.
    """
    from crawler.ops.jobs import default_jobs, undefined_words

    sites = default_jobs(spiders, stored)
    remarks = [f"not scheduled: {name}: {undefined_words(name)}" for name in sites.undefined]
    never_run = ", ".join(sites.unwatched)
    if never_run:
        remarks.append(
            f"not scheduled, because they have never run: {never_run}. Run scrapy cron NAME to "
            "schedule them"
        )
    if not sites.jobs:
        ready = f" ({never_run})" if never_run else ""
        raise ConfigError(
            f"no site has targets yet. Run scrapy crawl NAME{ready} or scrapy feeds import FILE "
            "first, or name sites: scrapy cron NAME|FILE.toml"
        )
    return [job.word for job in sites.jobs], remarks


def _crontab_lines(
    names: list[str], spiders: Spiders, stored: StoredSites, config: Config
) -> list[CrontabLine]:
    """Return crontab lines: a crawl per site, the delivery of notifications, replan and prune.

    names: spider classes, stored sites or files of site definitions; raises ConfigError for others
    """
    from crawler.extract.list_wrappers import load_any
    from crawler.ops.jobs import ANY_SITE, check_name

    # Projects and sites start at different minutes, to spread the load of a machine.
    minute = int(sha256(str(PROJECT).encode()).hexdigest(), 16)
    lines: list[CrontabLine] = []
    for number, name in enumerate(names):
        if name.endswith(".toml"):
            path = Path(name).resolve()
            load_any(path)
            words = [ANY_SITE, "-a", f"wrapper={path}"]
        else:
            check_name(name, spiders, stored)
            words = [name]
        command = _command(config, "crawl", *words, *QUIET)
        # Every ten minutes, starting at another minute of the hour for each site.
        lines.append({"schedule": _every(CRAWL_MINUTES, minute + number), "command": command})
    # Crawls only mark events.
    if config.notify_file.exists():
        command = _command(config, "notify", "deliver")
        lines.append({"schedule": _every(NOTIFY_MINUTES, minute), "command": command})
    replan, prune = (f"{(minute + 7 * k) % 60} {hour} * * *" for k, hour in enumerate(NIGHT_HOURS))
    return [
        *lines,
        {"schedule": replan, "command": _command(config, "replan")},
        {"schedule": prune, "command": _command(config, "prune")},
    ]


def _every(minutes: int, start: int) -> str:
    """Return a schedule that repeats every `minutes`, begun in the minute `start` of an hour."""
    first = start % minutes
    return f"{first}-59/{minutes} * * * *" if first else f"*/{minutes} * * * *"


def _variables() -> tuple[list[str], list[str]]:
    """Return this shell's variables of Freshet as `NAME=VALUE`, and names of those left out.

    Cron runs commands without them. Every user of the machine can read command lines, so values
    that may hold a password are left out.
    """
    given = {n: v for n, v in os.environ.items() if v and (n in UNPREFIXED or n.startswith(PREFIX))}
    secret = [n for n, v in given.items() if "@" in v or "\n" in v or PRIVATE_KEYS.search(n)]
    words = [f"{name}={value}" for name, value in sorted(given.items()) if name not in secret]
    return words, sorted(secret)


def _command(config: Config, *words: str) -> str:
    """Return a crontab command that runs scrapy in the project folder and appends to the log.

    It uses this Python interpreter and the variables of this shell. If it fails, cron mails the end
    of the log, once a day for each error. `%` is escaped, because it ends a command in a crontab.
    """
    from crawler.ops import cron_mail
    from crawler.ops.schedule import CRON_LOG

    log = shlex.quote(str(config.data_dir.resolve() / CRON_LOG))
    variables, _ = _variables()
    run = shlex.join([*(["env", *variables] if variables else []), sys.executable, "-m", "scrapy"])
    line = f"cd {shlex.quote(str(PROJECT))} && {run} {shlex.join(words)} >>{log} 2>&1"
    mail = f"{shlex.quote(sys.executable)} -m {cron_mail.__name__} {log}"
    return f"{line} || {mail}".replace("%", r"\%")
