"""What `scrapy duplicates explain` prints."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from crawler.duplication import sidebyside
from crawler.duplication.common import place_of, title_of
from crawler.storage.client import Document
from crawler.utils.terminal import printable
from crawler.utils.text import count

INDENT = 3
MOST_ROWS = 200
STYLES = {sidebyside.LEFT: ("red", ""), sidebyside.RIGHT: ("", "green")}
SPANS = ("bold red", "bold green")


def show(console: Console, told: Document) -> None:
    """Print both posts, how alike they are, the verdict, and their texts side by side."""
    for name in ("a", "b"):
        _show_post(console, name.upper(), told[name])
    console.print()
    for line in _numbers(told):
        console.print(line, soft_wrap=True)
    console.print(printable(told["verdict"]), style="bold", soft_wrap=True)
    console.print()
    _show_diff(console, told["diff"])
    if told["is_long"]:
        console.print("only the beginnings of the texts are shown side by side", style="dim")


def _show_post(console: Console, name: str, post: Document) -> None:
    console.print(f"{name}  {title_of(post) or '(no title)'}", style="bold", soft_wrap=True)
    console.print(" " * INDENT + place_of(post), style="cyan", soft_wrap=True)
    told = [
        f"{post['created']:%Y-%m-%d %H:%M}",
        f"{count(post['characters'], 'character')}, {count(post['words'], 'word')}",
        f"shingles of {' and '.join(post['shingles'])}" if post["shingles"] else "",
        f"bands {' and '.join(post['bandings'])}" if post["bandings"] else "",
        f"{post['boilerplate']:.0%} boilerplate of its source" if post["boilerplate"] else "",
    ]
    console.print(Padding("; ".join(filter(None, told)), (0, 0, 0, INDENT)))


def _numbers(told: Document) -> list[str]:
    exact = [f"{value:.3f} ({name})" for name, value in told["exact"].items()]
    return [
        f"shared bands  {told['shared_bands']} of {told['of_bands']}",
        f"similarity    {told['similarity']:.3f} estimated by {told['scheme']}, "
        f"duplicates from {told['threshold']:.3g} on",
        f"exactly       {', '.join(exact) or 'nothing to compare by'}",
    ]


def _show_diff(console: Console, rows: list[Document]) -> None:
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(ratio=1, overflow="fold")
    table.add_column(width=1)
    table.add_column(ratio=1, overflow="fold")
    for row in rows[:MOST_ROWS]:
        if row["mark"] == sidebyside.GAP:
            same = Text(f"… {count(row['left_out'], 'sentence')} the same", style="dim")
            table.add_row(same, "", "")
        else:
            sides = (_side(row, name, place) for place, name in enumerate(("left", "right")))
            left, right = sides
            table.add_row(left, row["mark"], right)
    console.print(table)
    if (more := len(rows) - MOST_ROWS) > 0:
        console.print(f"and {count(more, 'row')} more; --json shows all")


def _side(row: Document, name: str, place: int) -> Text:
    style = STYLES.get(row["mark"], ("", ""))[place]
    text = Text(row[name], style="dim" if row["mark"] == sidebyside.SAME else style)
    for start, stop in row[f"{name}_spans"]:
        text.stylize(SPANS[place], start, stop)
    return text
