"""`scrapy history`: the visits and versions of a URL, and what changed between two of them."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from crawler.command import FreshetCommand, print_json
from crawler.config import Config
from crawler.errors import ConfigError
from crawler.terminal import shortened, stdout

if TYPE_CHECKING:
    from crawler.storage.client import Database, Document

SHOWN_HASH = 8
STYLES = {"+": "green", "-": "red", "@": "cyan"}
# No mark is looked for beyond the next one: that keeps the search linear.
MARKS = {r"\[-(?:(?!\[-).)*?-\]": "red", r"\{\+(?:(?!\{\+).)*?\+\}": "green"}


class Command(FreshetCommand):
    """What became of one URL."""

    arguments = ("URL",)
    example = "scrapy history https://books.toscrape.com/ --diff 1 2"

    def short_desc(self) -> str:
        """One line for `scrapy -h`."""
        return "Show visits and versions of a URL, or the difference of two versions"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """What to show."""
        super().add_options(parser)
        parser.add_argument(
            "--diff", nargs="*", metavar="VERSION",
            help="difference of two versions (numbers, negative from the end; default -2 -1)",
        )  # fmt: skip
        parser.add_argument("--spider", help="where several spiders watch the URL")
        parser.add_argument("--last", type=int, default=0, help="only the last N visits")

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Print the history."""
        found = asyncio.run(_history(self.config, args[0], opts.spider, max(0, opts.last)))
        if opts.diff is not None:
            _show_diff(found, _pair(opts.diff, len(found["versions"])), as_json=opts.json)
        elif opts.json:
            print_json(found)
        else:
            _show(found)


async def _history(config: Config, url: str, spider: str | None, last: int) -> Document:
    from crawler.finding import target_of
    from crawler.storage import versions, visits
    from crawler.storage.store import opened

    async with opened(config) as db:
        if post := await _post(db, config, url, spider):
            return post
        target = await target_of(db, config, url, spider, among=("targets", "posts"))
        name, known_as = target["spider"], target["url"]
        return {
            "url": known_as,
            "spider": name,
            "target": {key: value for key, value in target.items() if key != "last_visit"},
            "visits": await visits.of_target(db, name, known_as, last),
            "versions": await versions.of_target(db, name, known_as),
        }


async def _post(db: Database, config: Config, url: str, spider: str | None) -> Document | None:
    """A feed's post by its link: it has versions, and the visits are its feed's."""
    from crawler.finding import names_of
    from crawler.storage import feedposts, versions

    found = await feedposts.of_urls(db, [url, *names_of(url, config)], spider)
    if not found:
        return None
    name, key = found[0]["spider"], found[0]["_id"]
    return {
        "url": found[0]["url"],
        "spider": name,
        "post": found[0],
        "visits": [],
        "versions": await versions.of_target(db, name, key.removeprefix(f"{name} ")),
    }


def _pair(given: list[str], n: int) -> tuple[int, int]:
    """Positions of the two versions to compare."""
    if len(given) not in (0, 2):
        raise ConfigError(f"--diff takes no or two versions, not {len(given)}")
    if n < 2 and not given:
        raise ConfigError(f"there is {n} version, nothing to compare")
    before, after = (_position(number, n) for number in given or ("-2", "-1"))
    return before, after


def _position(number: str, n: int) -> int:
    try:
        value = int(number)
    except ValueError:
        raise ConfigError(f"--diff {number}: not a number") from None
    if value == 0 or abs(value) > n:
        raise ConfigError(f"--diff {number}: there are versions 1 to {n}")
    return value - 1 if value > 0 else n + value


def _show_diff(found: Document, pair: tuple[int, int], *, as_json: bool) -> None:
    from crawler.differences import unified
    from crawler.storage import versions

    before, after = (found["versions"][position] for position in pair)
    names = tuple(f"version {i + 1}, {found['versions'][i]['at']:%Y-%m-%d %H:%M}" for i in pair)
    lines = unified(
        versions.as_lines(before["content"]),
        versions.as_lines(after["content"]),
        (names[0], names[1]),
    )
    if as_json:
        print_json({"url": found["url"], "before": before, "after": after, "diff": lines})
        return
    console = Console(soft_wrap=True, highlight=False, markup=False)
    if not lines:
        console.print(f"no difference between {names[0]} and {names[1]}")
    for line in lines:
        text = Text(line, style=STYLES.get(line[:1], ""))
        if line.startswith("~"):
            for mark, style in MARKS.items():
                text.highlight_regex(mark, style)
        console.print(text)


def _show(found: Document) -> None:
    console = stdout()
    console.print(found["url"], style="bold", soft_wrap=True)
    if post := found.get("post"):
        seen = _time(post["first_seen"])
        console.print(f"{found['spider']}, post of {post['feed']}, first seen {seen}")
    else:
        target = found["target"]
        console.print(
            f"{found['spider']}, {target['kind']}, first seen {_time(target['first_seen'])}, "
            f"next visit {_time(target['next_visit'])}"
        )
        console.print(_visits_table(found["visits"]))
    console.print(_versions_table(found["versions"]))


def _visits_table(rows: list[Document]) -> Table:
    from crawler.searching.passages import printable

    columns = ("at (UTC)", "outcome", "status", "get", "update", "diff", "reason")
    table = Table(
        *columns, title="visits, sizes in bytes, diff in characters", title_justify="left"
    )
    # Too narrow a terminal shortens the reason.
    for column in table.columns[:-1]:
        column.no_wrap = True
    for row in rows:
        sizes = (str(row[name]) for name in ("get_size", "update_size", "diff_size"))
        status = str(row["status"] or "")
        table.add_row(
            _time(row["at"]),
            row["outcome"],
            status,
            *sizes,
            shortened(printable(row.get("reason") or "")),
        )
    return table


def _versions_table(rows: list[Document]) -> Table:
    table = Table("", "since (UTC)", "bytes", "hash", title="versions", title_justify="left")
    for number, row in enumerate(rows, 1):
        digest = row["content_hash"][:SHOWN_HASH]
        table.add_row(str(number), _time(row["at"]), str(row["size"]), digest)
    return table


def _time(value: Any) -> str:
    return f"{value:%Y-%m-%d %H:%M:%S}"
