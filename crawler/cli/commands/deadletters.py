"""`scrapy deadletters`: dead letters, which are pages that repeatedly crashed their workers."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import TypedDict

from crawler.cli.base import Action, ActionsCommand, print_json, table, with_database
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

    default_action = "list"
    summary = "List, retry or discard dead letters: pages that repeatedly crashed workers"
    example = "scrapy deadletters list"
    documents: ClassVar = {
        "scrapy deadletters list --json": "list[crawler.storage.runs.DeadLetterReport]",
        "scrapy deadletters retry URL --json": ChangedLetters,
        "scrapy deadletters drop URL --json": ChangedLetters,
    }

    @property
    def actions(self) -> Mapping[str, Action]:
        """Return the actions."""
        return {
            "list": Action(
                "List dead-lettered pages, newest first", "scrapy deadletters list --json",
                run_list, spider_option,
            ),
            "retry": Action(
                "Make pages due, so that the next crawl visits them",
                "scrapy deadletters retry --all",
                partial(change, drops=False), partial(add_selection, verb="retry"),
            ),
            "drop": Action(
                "Discard pages, so that they are never visited again",
                "scrapy deadletters drop https://shop.example/bad",
                partial(change, drops=True), partial(add_selection, verb="discard"),
            ),
        }  # fmt: skip


def spider_option(parser: argparse.ArgumentParser) -> None:
    """Add the `--spider` option."""
    parser.add_argument(
        "--spider", metavar="NAME", help="only pages of this spider (default: all spiders)"
    )


def add_selection(parser: argparse.ArgumentParser, *, verb: str) -> None:
    """Add the URLs, `--all` and `--spider`."""
    parser.add_argument("urls", metavar="URL", nargs="*", help=f"dead-lettered page to {verb}")
    parser.add_argument("--all", action="store_true", help=f"{verb} all dead-lettered pages")
    spider_option(parser)


def run_list(config: Config, opts: argparse.Namespace) -> None:
    """Print the dead-lettered pages, newest first."""
    from crawler.storage import runs

    rows = with_database(config, lambda db: runs.dead_letters(db, opts.spider))
    if opts.json:
        print_json(rows)
    elif not rows:
        print_line("no dead letters")
    else:
        columns = ("URL", "spider", "since (UTC)", "workers lost")
        letters = table(*columns, whole=columns[1:])
        for row in rows:
            since = f"{row['at']:%Y-%m-%d %H:%M}"
            letters.add_row(shortened(row["url"]), row["spider"], since, str(row["leases"]))
        stdout().print(letters)


def change(config: Config, opts: argparse.Namespace, *, drops: bool) -> None:
    """Make dead-lettered pages due, or discard them; print their number."""
    from crawler.storage import runs

    if bool(opts.urls) == opts.all:
        raise ConfigError("give either the URLs of dead-lettered pages, or --all")
    urls = [canonical(url) if is_http(url) else url for url in opts.urls]
    now = config.clock.now()

    async def work(db: Database) -> list[str]:
        keys = await runs.dead_letter_keys(db, opts.spider, None if opts.all else urls)
        if not keys:
            raise ConfigError("no matching dead letters. scrapy deadletters list shows all of them")
        if drops:
            await runs.drop_dead_letters(db, keys)
        else:
            await runs.retry_dead_letters(db, keys, now)
        return keys

    keys = with_database(config, work)
    if opts.json:
        print_json(ChangedLetters(targets=keys))
    else:
        result = "discarded; never visited again" if drops else "due again"
        print_line(f"{count(len(keys), 'target')} {result}")
