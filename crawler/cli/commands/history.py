"""`scrapy history`: visits and versions of a URL, and the difference between two versions."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from crawler.cli.base import (
    MIN_FIGURES_COLUMNS,
    FreshetCommand,
    print_json,
    with_database,
)
from crawler.cli.options import add_spider_of_target, positive_int
from crawler.errors import ConfigError
from crawler.utils.terminal import printable, shortened, stdout, visible
from crawler.utils.text import count
from crawler.utils.time import NEVER

if TYPE_CHECKING:
    from rich.text import Text

    from crawler.reports.history import History, VersionDiff
    from crawler.utils.edits import DiffPart, Segment

SHOWN_HASH = 8
# Lines that are longer are shown once, with their differences marked.
LONG_LINE = 160
SIDES = {"-": "deleted", "+": "inserted"}
# Marks around the words of a long line, and their style.
MARKS = {"same": ("", "", ""), "deleted": ("[-", "-]", "red"), "inserted": ("{+", "+}", "green")}


class Command(FreshetCommand):
    """Show visits and versions of a URL, or the difference between two versions."""

    arguments = ("URL",)
    summary = "Show visits and versions of a URL, or the difference between two versions"
    example = "scrapy history https://books.toscrape.com/ --diff 1 2"
    documents: ClassVar = {
        "scrapy history URL --json": "crawler.reports.history.History",
        "scrapy history URL --diff 1 2 --json": "crawler.reports.history.VersionDiff",
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
            # Slow to import, and --help does not need it.
            from crawler.reports.history import differences, version_diff

            pair = _version_pair(opts.diff, len(history["versions"]))
            before, after = (history["versions"][at] for at in pair)
            (difference,) = differences([before["content"], after["content"]])
            between = version_diff(before, after, difference)
            if opts.json:
                print_json(between)
            else:
                _show_difference(between, pair)
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


def _show_difference(between: VersionDiff, positions: tuple[int, int]) -> None:
    console = stdout(soft_wrap=True)
    before, after = (
        f"version {position + 1}, {version['at']:%Y-%m-%d %H:%M}"
        for position, version in zip(positions, (between["before"], between["after"]), strict=True)
    )
    changed = [field for field in between["fields"] if field["kind"] != "same"]
    if not changed:
        console.print(f"no difference between {before} and {after}")
        return
    console.print(f"--- {before}\n+++ {after}")
    for field in changed:
        console.print(f"@@ {visible(field['name'], spaces=True)} @@", style="cyan")
        for line in lines_of(field["parts"]):
            console.print(line)
    if between["truncated"]:
        console.print("… diff truncated; scrapy history URL --json prints both versions in full")


def lines_of(parts: Iterable[DiffPart]) -> Iterator[Text]:
    """Yield the parts of a field as lines, which begin like those of `diff -u`.

    ` `: unchanged; `-`: deleted; `+`: inserted; `~`: long, with marks around words of one side
    """
    from rich.text import Text

    for part in parts:
        segments, kinds = part["segments"], {segment["kind"] for segment in part["segments"]}
        if part["kind"] == "folded":
            yield Text(f" … {count(part['lines'], 'unchanged line')} …", style="dim")
            continue
        if part["kind"] == "same":
            for line in _text_of(segments, "same"):
                yield Text(f" {line[:LONG_LINE]}{'…' if len(line) > LONG_LINE else ''}")
            continue
        sides = [(sign, kind, _text_of(segments, kind)) for sign, kind in SIDES.items()]
        is_long = any(len(line) > LONG_LINE for _, _, lines in sides for line in lines)
        if "same" in kinds and (is_long or "folded" in kinds):
            yield from _marked(segments)
            continue
        for sign, kind, lines in sides:
            if lines != [""]:
                yield from (Text(f"{sign}{line}", style=MARKS[kind][2]) for line in lines)


def _text_of(segments: Sequence[Segment], kind: str) -> list[str]:
    """Return the lines of one side of a part."""
    texts = [each["text"] for each in segments if each["kind"] in ("same", kind)]
    return visible("".join(texts), spaces=True).split("\n")


def _marked(segments: Sequence[Segment]) -> Iterator[Text]:
    from rich.text import Text

    line = Text("~")
    for segment in segments:
        if segment["kind"] == "folded":
            line.append(f"… {count(segment['characters'], 'character')} …", style="dim")
            continue
        begin, end, style = MARKS[segment["kind"]]
        for n, text in enumerate(visible(segment["text"], spaces=True).split("\n")):
            if n:
                yield line
                line = Text("~")
            if text:
                line.append(f"{begin}{text}{end}", style=style)
    yield line


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
