"""`scrapy archive`: list, check and export the archives of sites.

The actions read files only, and need no database.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import ClassVar

from typing_extensions import TypedDict

from crawler import __version__
from crawler.cli.base import Action, ActionsCommand, print_json
from crawler.config import Config
from crawler.errors import ConfigError
from crawler.utils.files import file_errors
from crawler.utils.shapes import copied
from crawler.utils.terminal import print_line, stdout, working
from crawler.utils.text import count, megabytes

SUFFIX = ".wacz"


class ArchiveFile(TypedDict):
    """A WARC file of an archive."""

    site: str
    """Name of the site."""
    file: str
    """Path of the file."""
    bytes: int
    """Size in bytes."""
    responses: int
    """Number of responses, revisit records included."""
    first: datetime | None
    """Time of the first response; null without one."""
    last: datetime | None
    """Time of the last response; null without one."""
    full: bool
    """Whether the file is complete, so that no run adds responses to it."""


class ArchiveCheck(TypedDict):
    """Result of a check of an archive."""

    site: str
    """Name of the site."""
    files: int
    """Number of WARC files."""
    responses: int
    """Number of responses, revisit records included."""
    revisits: int
    """Number of revisit records: responses with the body of an earlier one."""
    dangling: int
    """Number of revisit records whose body was deleted with the oldest files."""
    problems: list[str]
    """Damaged files, one line each."""


class ArchiveExport(TypedDict):
    """Result of an export."""

    site: str
    """Name of the site."""
    file: str
    """Path of the WACZ file."""
    bytes: int
    """Size of the WACZ file in bytes."""
    warc_files: int
    """Number of WARC files in it."""
    responses: int
    """Number of responses in it."""
    pages: int
    """Number of HTML pages in it."""


class Command(ActionsCommand):
    """List, check and export the responses that sites with `archive = true` keep."""

    summary = "List, check and export archived responses"
    example = "scrapy archive list"
    default_action = "list"
    documents: ClassVar = {
        "scrapy archive list --json": list[ArchiveFile],
        "scrapy archive verify NAME --json": ArchiveCheck,
        "scrapy archive export NAME FILE --json": ArchiveExport,
    }

    @property
    def actions(self) -> Mapping[str, Action]:
        """Return the actions."""
        return {
            "list": Action(
                "List the files of archives", "scrapy archive list shop",
                list_files, add_name_option,
            ),
            "verify": Action(
                "Check all records of an archive and its indexes", "scrapy archive verify shop",
                verify, add_name,
            ),
            "export": Action(
                "Write an archive to a WACZ file, for replay in a browser",
                "scrapy archive export shop shop.wacz", export_site, add_name_and_file,
            ),
        }  # fmt: skip


def add_name_option(parser: argparse.ArgumentParser) -> None:
    """Add an optional site."""
    parser.add_argument("site", metavar="NAME", nargs="?", help="name of a site (default: all)")


def add_name(parser: argparse.ArgumentParser) -> None:
    """Add the site."""
    parser.add_argument("site", metavar="NAME", help="name of the site")


def add_name_and_file(parser: argparse.ArgumentParser) -> None:
    """Add the site and the file to write."""
    add_name(parser)
    parser.add_argument("file", metavar="FILE", help=f"file to write; its name ends in {SUFFIX}")


def list_files(config: Config, opts: argparse.Namespace) -> None:
    """Print a line for each WARC file; raises ConfigError for a site without an archive."""
    from crawler.archive.files import archived_sites, files_of, folder_of
    from crawler.archive.records import line_time

    sites = archived_sites(config) if opts.site is None else [_checked(config, opts.site)]
    rows: list[ArchiveFile] = []
    for site in sites:
        for file in files_of(folder_of(config, site)):
            times = [line_time(line) for line in file.lines()]
            rows.append(
                {
                    "site": site,
                    "file": str(file.path),
                    "bytes": file.size,
                    "responses": len(times),
                    "first": min(times, default=None),
                    "last": max(times, default=None),
                    "full": file.is_full,
                }
            )
    if opts.json:
        print_json(rows)
        return
    if not rows:
        print_line("no archives. Set archive = true in a site definition, and crawl the site")
        return
    from rich.table import Table

    table = Table("site", "file", "MB", "responses", "first (UTC)", "last (UTC)", "state")
    for row in rows:
        first, last = (f"{at:%Y-%m-%d %H:%M}" if at else "" for at in (row["first"], row["last"]))
        state = "full" if row["full"] else "growing"
        table.add_row(
            row["site"], Path(row["file"]).name, f"{row['bytes'] / 1024**2:,.1f}",
            f"{row['responses']:,}", first, last, state,
        )  # fmt: skip
    stdout().print(table)
    total = count(len(rows), "file")
    print_line(f"{total}, {megabytes(sum(row['bytes'] for row in rows))}")


def verify(config: Config, opts: argparse.Namespace) -> int:
    """Check an archive, and print the result; return 1 if it is damaged."""
    from crawler.archive import files

    folder = files.folder_of(config, _checked(config, opts.site))
    with working(config.progress, f"checking the archive of {opts.site}") as progress:
        check = files.check(folder, progress)
    report: ArchiveCheck = {**copied(ArchiveCheck, check), "site": opts.site}
    if opts.json:
        print_json(report)
    else:
        responses = f"{count(check.responses, 'response')} in {count(check.files, 'file')}"
        state = count(len(check.problems), "problem") if check.problems else "no problems"
        print_line(f"{opts.site}: {responses}, {check.revisits:,} of them revisits; {state}")
        if check.dangling:
            deleted = count(check.dangling, "revisit record")
            print_line(f"{deleted} without a body, which was deleted with the oldest files")
        for problem in check.problems:
            print_line(problem)
    return int(bool(check.problems))


def export_site(config: Config, opts: argparse.Namespace) -> None:
    """Write the WACZ file, and print its size; raises ConfigError and ArchiveError."""
    from crawler.archive import wacz
    from crawler.archive.files import folder_of

    site, to = _checked(config, opts.site), Path(opts.file)
    if to.suffix != SUFFIX:
        raise ConfigError(f"name of the file: {opts.file!r}. Use a name that ends in {SUFFIX}")
    now = config.clock.now()
    with working(config.progress, f"exporting {site}") as progress, file_errors(opts.file):
        done = wacz.export(
            folder_of(config, site), to, site, f"Freshet/{__version__}", now, progress
        )
    report: ArchiveExport = {
        "site": site, "file": str(to), "bytes": done.bytes, "warc_files": done.files,
        "responses": done.responses, "pages": done.pages,
    }  # fmt: skip
    if opts.json:
        print_json(report)
    else:
        exported = f"{count(done.responses, 'response')} of {count(done.pages, 'page')}"
        print_line(f"{to}: {exported}, {megabytes(done.bytes)}")


def _checked(config: Config, site: str) -> str:
    """Return the name of a site with an archive; raise ConfigError for others."""
    from crawler.archive.files import archived_sites

    sites = archived_sites(config)
    if site not in sites:
        names = ", ".join(sites) or "none. Set archive = true in a site definition, and crawl it"
        raise ConfigError(f"no archive of {site!r}. Sites with an archive: {names}")
    return site
