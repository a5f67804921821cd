"""`scrapy history`: visits and versions of a URL, and the difference between two versions."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from crawler.cli.base import FreshetCommand, print_json
from crawler.errors import ConfigError
from crawler.utils.terminal import printable, shortened, stdout
from crawler.utils.text import count, listed

if TYPE_CHECKING:
    from crawler.storage.client import Document

SHOWN_HASH = 8
STYLES = {"+": "green", "-": "red", "@": "cyan"}
# A mark is never searched beyond the start of the next one, to keep the search linear.
MARKS = {r"\[-(?:(?!\[-).)*?-\]": "red", r"\{\+(?:(?!\{\+).)*?\+\}": "green"}


class Command(FreshetCommand):
    """Show visits and versions of a URL, or the difference between two versions."""

    arguments = ("URL",)
    example = "scrapy history https://books.toscrape.com/ --diff 1 2"

    def short_desc(self) -> str:
        """Return the description for `scrapy -h`."""
        return "Show visits and versions of a URL, or the difference between two versions"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add `--diff`, and options that select the target and its visits."""
        super().add_options(parser)
        parser.add_argument(
            "--diff", nargs="*", metavar="VERSION",
            help="show the difference between two versions, by their numbers; negative numbers "
            "count from the end (default: -2 -1)",
        )  # fmt: skip
        parser.add_argument(
            "--spider", metavar="NAME", help="spider of the target, if several visit the URL"
        )
        parser.add_argument(
            "--source", metavar="FEED",
            help="show the post of this feed instead of the page at the URL",
        )  # fmt: skip
        parser.add_argument(
            "--last", type=int, metavar="N", default=0,
            help="show only the last N visits (default: all)",
        )  # fmt: skip

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Print the history."""
        history = asyncio.run(self._read(args[0], opts))
        if opts.diff is not None:
            pair = _version_pair(opts.diff, len(history["versions"]))
            self._show_diff(history, pair, as_json=opts.json)
        elif opts.json:
            print_json(history)
        else:
            self._show(history)

    async def _read(self, url: str, opts: argparse.Namespace) -> Document:
        from crawler.storage import posts, sources, targets, visits
        from crawler.storage.store import opened
        from crawler.storage.target_queries import names_of, target_of

        config = self.config
        async with opened(config) as db:
            names = names_of(url, config)
            items = await sources.of_urls(db, [url, *names], opts.spider)
            feed_posts = [item for item in items if "feed" in item]
            # A post's link may differ from the page's URL, such as http instead of https.
            named = [*names, *(item["url"] for item in items if "feed" not in item)]
            watched = await targets.of_url(db, named, opts.spider)
            # Targets with `post` are fetched only to complete the post of a feed.
            pages = [target for target in watched if "post" not in target] or watched
            if opts.source is not None or (feed_posts and not pages):
                post = _post_of_source(feed_posts, url, opts.source)
                key, spider = post["_id"], post["spider"]
                return {
                    "url": post["url"],
                    "spider": spider,
                    "post": post,
                    # Visits are recorded for the feed, not for its posts.
                    "visits": [],
                    "versions": await posts.of_target(db, spider, key.removeprefix(f"{spider} ")),
                    "sources": _sources(other for other in feed_posts if other["_id"] != key),
                }
            target = (
                pages[0]
                if len(pages) == 1
                else await target_of(db, config, url, opts.spider, among=("targets", "posts"))
            )
            spider, stored_url = target["spider"], target["url"]
            return {
                "url": stored_url,
                "spider": spider,
                "target": {key: value for key, value in target.items() if key != "last_visit"},
                "visits": await visits.of_target(db, spider, stored_url, max(0, opts.last)),
                "versions": await posts.of_target(db, spider, stored_url),
                "sources": _sources(feed_posts),
            }

    def _show(self, history: Document) -> None:
        from rich.table import Table

        console = stdout()
        console.print(history["url"], style="bold", soft_wrap=True)
        if post := history.get("post"):
            seen = _time(post["first_seen"])
            console.print(f"{history['spider']}, post of {post['feed']}, first seen {seen}")
        else:
            target = history["target"]
            console.print(
                f"{history['spider']}, {target['kind']}, first seen {_time(target['first_seen'])}, "
                f"next visit {_time(target['next_visit'])}"
            )
            visits = Table(
                "at (UTC)", "outcome", "status", "get", "update", "diff", "reason",
                title="visits, sizes in bytes, diff in characters", title_justify="left",
            )  # fmt: skip
            # In a narrow terminal, only the last column (the reason) is shortened.
            for column in visits.columns[:-1]:
                column.no_wrap = True
            for row in history["visits"]:
                sizes = (str(row[name]) for name in ("get_size", "update_size", "diff_size"))
                reason = shortened(printable(row.get("reason") or ""))
                status = str(row["status"] or "")
                visits.add_row(_time(row["at"]), row["outcome"], status, *sizes, reason)
            console.print(visits)
        versions = Table("", "since (UTC)", "bytes", "hash", title="versions", title_justify="left")
        for number, row in enumerate(history["versions"], 1):
            digest = row["content_hash"][:SHOWN_HASH]
            versions.add_row(str(number), _time(row["at"]), str(row["size"]), digest)
        console.print(versions)
        for source in history["sources"]:
            console.print(
                f"also a post of {source['feed']} (--source {source['feed']})", soft_wrap=True
            )

    def _show_diff(self, history: Document, pair: tuple[int, int], *, as_json: bool) -> None:
        from crawler.storage import posts
        from crawler.utils.diff import unified

        before, after = (history["versions"][position] for position in pair)
        names = tuple(
            f"version {i + 1}, {history['versions'][i]['at']:%Y-%m-%d %H:%M}" for i in pair
        )
        lines = unified(
            posts.as_lines(before["content"]),
            posts.as_lines(after["content"]),
            (names[0], names[1]),
        )
        if as_json:
            print_json({"url": history["url"], "before": before, "after": after, "diff": lines})
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


def _post_of_source(posts: Sequence[Document], url: str, source: str | None) -> Document:
    """Return the post of a feed, or the first post if no feed is given; raises ConfigError."""
    if not posts:
        raise ConfigError(f"no feed has a post with the URL {url}")
    post = next((post for post in posts if source in (None, post["feed"])), None)
    if post is None:
        feeds = listed([post["feed"] for post in posts])
        raise ConfigError(
            f"--source {source}: this feed has no post with the URL {url}. Available: {feeds}"
        )
    return post


def _sources(posts: Iterable[Document]) -> list[Document]:
    """Return the posts of feeds with the same URL, and the feeds for `--source`."""
    return [{"id": post["_id"], "spider": post["spider"], "feed": post["feed"]} for post in posts]


def _version_pair(numbers: list[str], n: int) -> tuple[int, int]:
    """Return the positions of the two versions to compare; raises ConfigError.

    numbers: given by the user, two or none
    n:       number of stored versions
    """
    if len(numbers) not in (0, 2):
        raise ConfigError(f"--diff takes two versions or none, not {len(numbers)}")
    if n < 2 and not numbers:
        raise ConfigError(f"nothing to compare: {count(n, 'version')} stored")
    positions = []
    for number in numbers or ("-2", "-1"):
        try:
            value = int(number)
        except ValueError:
            raise ConfigError(f"--diff {number}: not a number") from None
        if value == 0 or abs(value) > n:
            raise ConfigError(f"--diff {number}: version not found. Available: 1 to {n}")
        positions.append(value - 1 if value > 0 else n + value)
    before, after = positions
    return before, after


def _time(value: Any) -> str:
    return f"{value:%Y-%m-%d %H:%M:%S}"
