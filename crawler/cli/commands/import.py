"""`scrapy import`: take over the watches of changedetection.io, urlwatch and webchanges."""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import TypedDict

from crawler.cli.base import FreshetCommand, print_json
from crawler.utils.terminal import print_line, without_secrets
from crawler.utils.text import count

if TYPE_CHECKING:
    from crawler.exchange.watch import WatchFile
    from crawler.exchange.watches import Plan

SHOWN_NEXT = 3
# The kind of target that a watch becomes, by the kind of its definition.
BECOMES = {"site": "page", "cells": "cell", None: "feed"}


class LostSetting(TypedDict):
    """A setting that is not carried over."""

    key: str
    """Its name in the other program."""
    reason: str
    """Reason, or what to do instead."""


class ImportedWatch(TypedDict):
    """A watch."""

    where: str
    """Position in the file."""
    name: str | None
    """Title of the watch."""
    url: str
    """URL."""
    becomes: str | None
    """`page`, `cell` or `feed`; null if it was not imported."""
    site: str | None
    """Name of the site, or `feeds`."""
    lost: list[LostSetting]
    """Settings that are not carried over."""
    refused: str | None
    """Reason why the watch was not imported."""
    problem: str | None
    """Why a visit of the page found nothing; null if it found something, or was not made."""


class ImportedSite(TypedDict):
    """A site definition, or a list of cells."""

    name: str
    """Name of the site."""
    kind: str
    """`site` or `cells`."""
    watches: int
    """Number of its watches."""
    known: bool
    """Whether it was imported before."""
    file: str | None
    """TOML file; null without `--out`."""


class ImportReport(TypedDict):
    """Imported watches."""

    program: str
    """Program that wrote the file."""
    dry_run: bool
    """Whether nothing was stored."""
    sites: list[ImportedSite]
    """Site definitions."""
    watches: list[ImportedWatch]
    """Watches, in the order of the file."""
    lost: list[LostSetting]
    """Settings of the whole file that are not carried over."""


class Command(FreshetCommand):
    """Import the watches of other programs as sites, cells and feeds."""

    arguments = ("FILE",)
    summary = "Import the watches of changedetection.io, urlwatch or webchanges"
    example = "scrapy import url-watches.json --dry-run"
    documents: ClassVar = {
        "scrapy import FILE --json": ImportReport,
    }

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add options for where to store the site definitions."""
        super().add_options(parser)
        parser.add_argument(
            "--out", metavar="DIR",
            help="write site definitions (TOML) and feeds (OPML) into this folder (default: store "
            "them in the database)",
        )  # fmt: skip
        parser.add_argument(
            "--no-check", action="store_true",
            help="do not visit the pages once to check what the definitions find",
        )  # fmt: skip
        parser.add_argument(
            "--dry-run", action="store_true", help="print what would be imported, store nothing"
        )

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Import the file, and print the result for each watch; exit with 1 if none was usable."""
        from crawler.exchange.watch_formats import read_watches
        from crawler.utils.terminal import working

        with working(self.config.progress, "reading the watches"):
            file = read_watches(Path(args[0]))
        if not (opts.dry_run or opts.no_check):
            with working(self.config.progress, "visiting the pages once"):
                self._check(file)
        plan = asyncio.run(self._import(file, opts))
        if opts.json:
            out = None if opts.dry_run or opts.out is None else Path(opts.out)
            report: ImportReport = {
                "program": file.program,
                "dry_run": opts.dry_run,
                "sites": [
                    {
                        "name": planned.name,
                        "kind": planned.kind,
                        "watches": len(planned.watches),
                        "known": planned.known,
                        "file": None if out is None else str(out / f"{planned.name}.toml"),
                    }
                    for planned in plan.definitions
                ],
                "watches": _rows(file, plan),
                "lost": [{"key": lost.key, "reason": lost.reason} for lost in file.problems],
            }
            print_json(report)
        else:
            _print(file, plan, opts)
        self.exitcode = 0 if plan.places else 1

    def _check(self, file: WatchFile) -> None:
        """Visit the page of each watch once, and note what does not work."""
        from crawler.exchange.watches import definitions_to_check, note_check
        from spiders.probe import check_watches

        pages = definitions_to_check(file, self.config)
        if not pages:
            return
        for index, check in zip(pages, check_watches([*pages.values()], self.config), strict=True):
            if check is not None:
                note_check(file.watches[index], check["problem"], is_markup=check["is_markup"])

    async def _import(self, file: WatchFile, opts: argparse.Namespace) -> Plan:
        """Plan the import, and unless it is a dry run, store or write the result."""
        from crawler.exchange import watches
        from crawler.storage.sites import keys_by_name
        from crawler.storage.store import opened

        now = self.config.clock.now()
        if opts.out is not None:
            folder = Path(opts.out)
            plan = watches.plan(file, self.config, watches.existing_files(folder))
            if not opts.dry_run and plan.places:
                watches.write(folder, plan, now)
            return plan
        async with opened(self.config) as db:
            plan = watches.plan(file, self.config, await keys_by_name(db))
            if not opts.dry_run:
                await watches.store(db, plan, now)
        return plan


def _rows(file: WatchFile, plan: Plan) -> list[ImportedWatch]:
    kinds = {n: planned.kind for planned in plan.definitions for n in planned.watches}
    return [
        {
            "where": watch.where,
            "name": watch.name,
            "url": without_secrets(watch.url),
            "becomes": BECOMES[kinds.get(n)] if n in plan.places else None,
            "site": plan.places.get(n),
            "lost": [{"key": lost.key, "reason": lost.reason} for lost in watch.lost],
            "refused": watch.refusal,
            "problem": watch.problem,
        }
        for n, watch in enumerate(file.watches)
    ]


def _print(file: WatchFile, plan: Plan, opts: argparse.Namespace) -> None:
    """Print a line for each watch, the settings that are not carried over, and the next step."""
    rows = _rows(file, plan)
    width = max((len(name) for name in plan.places.values()), default=0)
    for row in rows:
        if row["becomes"] is None:
            what = f"{row['where']}: {row['url'] or row['name'] or ''}"
            print_line(f"-     {what}: not imported: {row['refused']}")
            continue
        print_line(f"{row['becomes']:4}  {row['site'] or '':{width}}  {row['url']}")
        if row["problem"]:
            print_line(f"      the first visit found nothing: {row['problem']}")
        for lost in row["lost"]:
            print_line(f"      not carried over: {lost['key']}: {lost['reason']}")
    for problem in file.problems:
        print_line(f"all watches: not carried over: {problem.key}: {problem.reason}")
    numbers = Counter(row["becomes"] for row in rows)
    lost_count = sum(len(row["lost"]) for row in rows if row["becomes"]) + len(file.problems)
    known = sum(planned.known for planned in plan.definitions)
    verb = "would become" if opts.dry_run else "became"
    made = ", ".join(count(numbers[kind], kind) for kind in ("page", "cell", "feed"))
    print_line(
        f"{count(len(rows), 'watch')} of {file.program} {verb} {made} "
        f"in {count(len(plan.definitions), 'definition')} ({known} imported before); "
        f"{numbers[None]} not imported, {count(lost_count, 'setting')} not carried over"
    )
    if not opts.dry_run and plan.places:
        print_line(f"Next: {_next_steps(plan, opts)}")


def _next_steps(plan: Plan, opts: argparse.Namespace) -> str:
    steps = []
    for planned in plan.definitions[:SHOWN_NEXT]:
        words = planned.name
        if opts.out is not None:
            argument = "wrapper" if planned.kind == "site" else "file"
            words = f"{planned.kind} -a {argument}={Path(opts.out) / planned.name}.toml"
        steps.append(f"scrapy crawl {words}")
    if len(plan.definitions) > SHOWN_NEXT:
        steps.append("…")
    if plan.feeds:
        if opts.out is not None:
            steps.append(f"scrapy feeds import {Path(opts.out) / 'feeds.opml'}")
        steps.append("scrapy crawl feeds")
    return ", ".join(steps)
