"""`scrapy history`: the visits and versions of a URL, and what changed between two of them."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from crawler.cli.base import FreshetCommand, print_json
from crawler.config import Config
from crawler.errors import ConfigError
from crawler.utils.terminal import printable, shortened, stdout
from crawler.utils.text import listed

if TYPE_CHECKING:
    from rich.table import Table

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
        parser.add_argument(
            "--source", metavar="FEED",
            help="show the post that this feed has of the URL, not the page (default: the page)",
        )  # fmt: skip
        parser.add_argument("--last", type=int, default=0, help="only the last N visits")

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Print the history."""
        found = asyncio.run(_history(self.config, args[0], opts))
        if opts.diff is not None:
            _show_diff(found, _pair(opts.diff, len(found["versions"])), as_json=opts.json)
        elif opts.json:
            print_json(found)
        else:
            _show(found)


async def _history(config: Config, url: str, opts: argparse.Namespace) -> Document:
    from crawler.storage import posts as versions
    from crawler.storage import sources, targets, visits
    from crawler.storage.store import opened
    from crawler.storage.target_queries import names_of, target_of

    async with opened(config) as db:
        names = names_of(url, config)
        found = await sources.of_urls(db, [url, *names], opts.spider)
        posts = [post for post in found if "feed" in post]
        # A link may name its page another way, such as by http in place of https.
        named = [*names, *(post["url"] for post in found if "feed" not in post)]
        watched = await targets.of_url(db, named, opts.spider)
        # The page of a feed's post is fetched for that post.
        pages = [target for target in watched if "post" not in target] or watched
        if opts.source is not None or (posts and not pages):
            return await _of_post(db, _chosen(posts, url, opts.source), posts)
        target = (
            pages[0]
            if len(pages) == 1
            else await target_of(db, config, url, opts.spider, among=("targets", "posts"))
        )
        name, known_as = target["spider"], target["url"]
        return {
            "url": known_as,
            "spider": name,
            "target": {key: value for key, value in target.items() if key != "last_visit"},
            "visits": await visits.of_target(db, name, known_as, max(0, opts.last)),
            "versions": await versions.of_target(db, name, known_as),
            "sources": _sources(posts),
        }


def _chosen(posts: Sequence[Document], url: str, source: str | None) -> Document:
    """The post of a feed, or the first one where none is asked for."""
    if not posts:
        raise ConfigError(f"no feed has a post of {url}")
    found = next((post for post in posts if source in (None, post["feed"])), None)
    if found is None:
        feeds = listed([post["feed"] for post in posts])
        raise ConfigError(f"--source {source}: not a feed with a post of {url}. Available: {feeds}")
    return found


async def _of_post(db: Database, post: Document, posts: Sequence[Document]) -> Document:
    """A feed's post has versions, and the visits are its feed's."""
    from crawler.storage import posts as versions

    name, key = post["spider"], post["_id"]
    return {
        "url": post["url"],
        "spider": name,
        "post": post,
        "visits": [],
        "versions": await versions.of_target(db, name, key.removeprefix(f"{name} ")),
        "sources": _sources(one for one in posts if one["_id"] != key),
    }


def _sources(posts: Iterable[Document]) -> list[Document]:
    """Posts of feeds that have the URL too, as `--source` takes them."""
    return [{"id": post["_id"], "spider": post["spider"], "feed": post["feed"]} for post in posts]


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
    from crawler.storage import posts as versions
    from crawler.utils.diff import unified

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
    from rich.text import Text

    console = stdout(soft_wrap=True)
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
    for source in found["sources"]:
        console.print(
            f"also a post of {source['feed']} (--source {source['feed']})", soft_wrap=True
        )


def _visits_table(rows: list[Document]) -> Table:
    columns = ("at (UTC)", "outcome", "status", "get", "update", "diff", "reason")
    from rich.table import Table

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
    from rich.table import Table

    table = Table("", "since (UTC)", "bytes", "hash", title="versions", title_justify="left")
    for number, row in enumerate(rows, 1):
        digest = row["content_hash"][:SHOWN_HASH]
        table.add_row(str(number), _time(row["at"]), str(row["size"]), digest)
    return table


def _time(value: Any) -> str:
    return f"{value:%Y-%m-%d %H:%M:%S}"
