"""`scrapy deadletters`: dead letters, which are pages that repeatedly crashed their workers."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import TypedDict

from crawler.cli.base import Action, ActionsCommand, Functions, JsonTypes, print_json, with_database
from crawler.config import Config
from crawler.errors import ConfigError
from crawler.utils.terminal import print_line, shortened, stdout
from crawler.utils.text import count
from crawler.utils.urls import canonical, is_http

if TYPE_CHECKING:
    from crawler.storage.client import Database


class ChangedLetters(TypedDict):
    """Pages that were removed from the dead letters."""

    targets: list[str]
    """Ids of the targets: spider and URL, separated by a space."""


class Command(ActionsCommand):
    """List, retry or discard dead letters."""

    actions: ClassVar[Mapping[str, Action]] = {
        "list": Action("List dead-lettered pages, newest first", "scrapy deadletters list --json"),
        "retry": Action(
            "Make pages due, so that the next crawl visits them", "scrapy deadletters retry --all"
        ),
        "drop": Action(
            "Discard pages, so that they are never visited again",
            "scrapy deadletters drop https://shop.example/bad",
        ),
    }
    default_action = "list"
    summary = "List, retry or discard dead letters: pages that repeatedly crashed workers"
    example = "scrapy deadletters list"

    def functions(self, action: str) -> Functions:
        """Return the functions of an action."""
        functions: Mapping[str, Functions] = {
            "list": (list_options, run_list),
            "retry": (retry_options, run_retry),
            "drop": (drop_options, run_drop),
        }
        return functions[action]

    def json_types(self) -> JsonTypes:
        """Return the types of the list and of changes to it."""
        from crawler.storage.runs import DeadLetterReport

        return {
            "scrapy deadletters list --json": list[DeadLetterReport],
            "scrapy deadletters retry URL --json": ChangedLetters,
            "scrapy deadletters drop URL --json": ChangedLetters,
        }


def list_options(parser: argparse.ArgumentParser) -> None:
    """Add the `--spider` option."""
    parser.add_argument(
        "--spider", metavar="NAME", help="only pages of this spider (default: all spiders)"
    )


def retry_options(parser: argparse.ArgumentParser) -> None:
    """Add the URLs, `--all` and `--spider`."""
    _add_selection(parser, "retry")


def drop_options(parser: argparse.ArgumentParser) -> None:
    """Add the URLs, `--all` and `--spider`."""
    _add_selection(parser, "discard")


def _add_selection(parser: argparse.ArgumentParser, verb: str) -> None:
    parser.add_argument("urls", metavar="URL", nargs="*", help=f"dead-lettered page to {verb}")
    parser.add_argument("--all", action="store_true", help=f"{verb} all dead-lettered pages")
    list_options(parser)


def run_list(config: Config, opts: argparse.Namespace) -> None:
    """Print the dead-lettered pages, newest first."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from crawler.storage import runs

    rows = with_database(config, lambda db: runs.dead_letters(db, opts.spider))
    if opts.json:
        print_json(rows)
    elif not rows:
        print_line("no dead letters")
    else:
        table = Table("URL", "spider", "since (UTC)", "workers lost", box=SIMPLE_HEAD)
        for column in table.columns[1:]:
            column.no_wrap = True
        for row in rows:
            since = f"{row['at']:%Y-%m-%d %H:%M}"
            table.add_row(shortened(row["url"]), row["spider"], since, str(row["leases"]))
        stdout().print(table)


def run_retry(config: Config, opts: argparse.Namespace) -> None:
    """Make dead-lettered pages due, so that the next crawl run visits them."""
    _change(config, opts, drops=False)


def run_drop(config: Config, opts: argparse.Namespace) -> None:
    """Remove pages from the list permanently; they are never visited again."""
    _change(config, opts, drops=True)


def _change(config: Config, opts: argparse.Namespace, *, drops: bool) -> None:
    from crawler.storage import runs

    if bool(opts.urls) == opts.all:
        raise ConfigError("give either the URLs of dead-lettered pages, or --all")
    urls = [canonical(url) if is_http(url) else url for url in opts.urls]
    now = config.clock.now()

    async def change(db: Database) -> list[str]:
        keys = await runs.dead_letter_keys(db, opts.spider, None if opts.all else urls)
        if not keys:
            raise ConfigError("no matching dead letters. scrapy deadletters list shows all of them")
        if drops:
            await runs.drop_dead_letters(db, keys)
        else:
            await runs.retry_dead_letters(db, keys, now)
        return keys

    keys = with_database(config, change)
    if opts.json:
        report: ChangedLetters = {"targets": keys}
        print_json(report)
    else:
        result = "discarded; never visited again" if drops else "due again"
        print_line(f"{count(len(keys), 'target')} {result}")
