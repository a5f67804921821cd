"""`scrapy history`: visits and versions of a URL, and the difference between two versions."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, ClassVar

from crawler.cli.base import (
    MIN_FIGURES_COLUMNS,
    FreshetCommand,
    print_json,
    with_database,
)
from crawler.cli.options import add_spider_of_target, positive_int
from crawler.errors import ConfigError
from crawler.utils.terminal import printable, shortened, stdout
from crawler.utils.text import count
from crawler.utils.time import NEVER

if TYPE_CHECKING:
    from crawler.reports.history import History

SHOWN_HASH = 8
STYLES = {"+": "green", "-": "red", "@": "cyan"}
# A mark is never searched beyond the start of the next one, to keep the search linear.
MARKS = {r"\[-(?:(?!\[-).)*?-\]": "red", r"\{\+(?:(?!\{\+).)*?\+\}": "green"}


class Command(FreshetCommand):
    """Show visits and versions of a URL, or the difference between two versions."""

    arguments = ("URL",)
    summary = "Show visits and versions of a URL, or the difference between two versions"
    example = "scrapy history https://books.toscrape.com/ --diff 1 2"
    documents: ClassVar = {
        "scrapy history URL --json": "crawler.reports.history.History",
        "scrapy history URL --diff 1 2 --json": "crawler.reports.history.VersionDifference",
    }

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add `--diff`, and options that select the target and its visits."""
        super().add_options(parser)
        parser.add_argument(
            "--diff", nargs="*", metavar="VERSION",
            help="show the difference between two versions, by their numbers; negative numbers "
            "count from the end (default: -2 -1)",
        )  # fmt: skip
        add_spider_of_target(parser)
        parser.add_argument(
            "--source", metavar="FEED",
            help="show the post of this feed instead of the page at the URL",
        )  # fmt: skip
        parser.add_argument(
            "--last", type=positive_int, metavar="N", default=0,
            help="show only the last N visits (default: all)",
        )  # fmt: skip

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Print the history."""
        from crawler.reports.history import history_of

        config, last = self.config, opts.last
        history = with_database(
            config, lambda db: history_of(db, config, args[0], opts.spider, opts.source, last)
        )
        if opts.diff is not None:
            pair = _version_pair(opts.diff, len(history["versions"]))
            # Slow to import, and --help does not need it.
            from rich.text import Text

            from crawler.reports.history import difference, version_name

            between = difference(history, pair)
            if opts.json:
                print_json(between)
                return
            console = stdout(soft_wrap=True)
            if not between["diff"]:
                before = version_name(between["before"], pair[0])
                after = version_name(between["after"], pair[1])
                console.print(f"no difference between {before} and {after}")
            for line in between["diff"]:
                text = Text(line, style=STYLES.get(line[:1], ""))
                if line.startswith("~"):
                    for mark, style in MARKS.items():
                        text.highlight_regex(mark, style)
                console.print(text)
        elif opts.json:
            print_json(history)
        else:
            self._show(history)

    def _show(self, history: History) -> None:
        from rich.table import Table

        console = stdout()
        console.print(history["url"], style="bold", soft_wrap=True)
        if post := history["post"]:
            seen = _time(post["first_seen"])
            console.print(f"{history['spider']}, post of {post['feed']}, first seen {seen}")
        elif target := history["target"]:
            next_visit = target["next_visit"]
            console.print(
                f"{history['spider']}, {target['kind']}, first seen {_time(target['first_seen'])}, "
                f"next visit {_time(next_visit) if next_visit < NEVER else 'none'}"
            )
            has_figures = console.width >= MIN_FIGURES_COLUMNS
            figures = ("status", "get", "update", "diff") if has_figures else ()
            units = ", sizes in bytes, diff in characters" if has_figures else ""
            visits = Table(
                "at (UTC)", "outcome", *figures, "reason", title=f"visits{units}",
                title_justify="left",
            )  # fmt: skip
            # In a narrow terminal, only the last column (the reason) is shortened.
            for column in visits.columns[:-1]:
                column.no_wrap = True
            for row in history["visits"]:
                sizes = map(str, (row["get_size"], row["update_size"], row["diff_size"]))
                reason = shortened(printable(row["reason"] or ""))
                status = str(row["status"] or "")
                if has_figures:
                    visits.add_row(_time(row["at"]), row["outcome"], status, *sizes, reason)
                else:
                    visits.add_row(f"{row['at']:%Y-%m-%d %H:%M}", row["outcome"], reason)
            console.print(visits)
        versions = Table("", "since (UTC)", "bytes", "hash", title="versions", title_justify="left")
        for number, version in enumerate(history["versions"], 1):
            digest = version["content_hash"][:SHOWN_HASH]
            versions.add_row(str(number), _time(version["at"]), str(version["size"]), digest)
        console.print(versions)
        for source in history["sources"]:
            console.print(
                f"also a post of {source['feed']} (--source {source['feed']})", soft_wrap=True
            )


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
