"""`scrapy duplicates explain`: print two posts side by side, and explain the verdict on them."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from crawler.cli.base import print_json, with_database
from crawler.cli.duplicates import title_of
from crawler.config import Config
from crawler.reports.comparison import (
    GAP,
    LEFT,
    RIGHT,
    SAME,
    Comparison,
    DiffRow,
    compare_posts,
)
from crawler.utils.terminal import SafeConsole, printable
from crawler.utils.text import count

INDENT = 3
MAX_ROWS = 200
STYLES = {LEFT: ("red", ""), RIGHT: ("", "green")}
SPANS = ("bold red", "bold green")


def show(console: Console, comparison: Comparison) -> None:
    """Print both posts, their similarity, the verdict, and their texts side by side."""
    for name, post in (("A", comparison["a"]), ("B", comparison["b"])):
        heading = f"{name}  {title_of(post['title']) or '(no title)'}"
        console.print(heading, style="bold", soft_wrap=True)
        place = printable(post["url"] or post["id"])
        console.print(" " * INDENT + place, style="cyan", soft_wrap=True)
        facts = [
            f"{post['created']:%Y-%m-%d %H:%M}",
            f"{count(post['characters'], 'character')}, {count(post['words'], 'word')}",
            f"shingles of {' and '.join(post['shingles'])}" if post["shingles"] else "",
            f"bands {' and '.join(post['bandings'])}" if post["bandings"] else "",
            f"{post['boilerplate']:.0%} boilerplate" if post["boilerplate"] else "",
        ]
        console.print(Padding("; ".join(filter(None, facts)), (0, 0, 0, INDENT)))
    console.print()
    exact, estimated = (
        [f"{value:.3f} ({name})" for name, value in similarities.items()]
        for similarities in (comparison["exact"], comparison["datasketch"])
    )
    for line in (
        f"shared bands  {comparison['shared_bands']} of {comparison['of_bands']}",
        f"similarity    {comparison['similarity']:.3f} estimated by {comparison['scheme']}, "
        f"threshold {comparison['threshold']:.3g}",
        f"exact         {', '.join(exact) or 'no shingles'}",
        f"datasketch    {', '.join(estimated) or 'no shingles'}",
    ):
        console.print(line, soft_wrap=True)
    console.print(printable(comparison["verdict"]), style="bold", soft_wrap=True)
    console.print()
    _show_diff(console, comparison["diff"])
    if comparison["is_long"]:
        console.print("long texts: only their beginnings are shown side by side", style="dim")


def _show_diff(console: Console, rows: list[DiffRow]) -> None:
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(ratio=1, overflow="fold")
    table.add_column(width=1)
    table.add_column(ratio=1, overflow="fold")
    for row in rows[:MAX_ROWS]:
        mark = row["mark"]
        if mark == GAP:
            same = Text(f"… {count(row['left_out'], 'equal sentence')}", style="dim")
            table.add_row(same, "", "")
            continue
        sides = []
        both = ((row["left"], row["left_spans"]), (row["right"], row["right_spans"]))
        for place, (sentence, spans) in enumerate(both):
            style = STYLES.get(mark, ("", ""))[place]
            text = Text(sentence, style="dim" if mark == SAME else style)
            for start, stop in spans:
                text.stylize(SPANS[place], start, stop)
            sides.append(text)
        table.add_row(sides[0], mark, sides[1])
    console.print(table)
    if (more := len(rows) - MAX_ROWS) > 0:
        console.print(f"and {count(more, 'more row')}. --json shows all")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the two posts and `--spider`."""
    for name, which in (("A", "first"), ("B", "second")):
        parser.add_argument(
            f"url_{name.lower()}", metavar=f"URL_{name}", help=f"URL or id of the {which} post"
        )
    parser.add_argument(
        "--spider", metavar="NAME", help="spider of the posts, if several have the same URL"
    )


def run(config: Config, opts: argparse.Namespace) -> int:
    """Print the comparison and the verdict."""
    urls = opts.url_a, opts.url_b
    comparison = with_database(config, lambda db: compare_posts(db, config, urls, opts.spider))
    if opts.json:
        print_json(comparison)
    else:
        show(SafeConsole(), comparison)
    return 0
