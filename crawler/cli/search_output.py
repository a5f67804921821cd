"""Output of `scrapy search`: title, date, copies, URL and a passage of each post."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from rich.console import Console
from rich.text import Text

from crawler.reports.search import FoundCopy, FoundPost
from crawler.search import Passage, Query, Term, marked
from crawler.utils.terminal import printable

PASSAGE_LINES = 2
INDENT = 2
# Columns at the end of a line that may stay empty because the next word is too long for them.
WRAP_COLUMNS = 5
MIN_WIDTH = 20
MARKED = "bold red"


def passage_columns(console: Console) -> int:
    """Return the columns available for a passage, summed over its lines."""
    return PASSAGE_LINES * (_width(console) - WRAP_COLUMNS)


def _width(console: Console) -> int:
    return max(MIN_WIDTH, console.width) - INDENT


def show_posts(console: Console, rows: Iterable[FoundPost], terms: Sequence[Term]) -> None:
    """Print the posts that `scrapy search` found."""
    for row in rows:
        title = marked(row["title"], terms)
        console.print(_styled(title, "bold") if title.text else "(no title)", soft_wrap=True)
        n = row["copies"]
        copies = f"+{n:,} {'copy' if n == 1 else 'copies'}" if n else ""
        place = "  ".join(filter(None, (_day(row["date"]), copies, _url(row))))
        console.print(place, style="cyan", soft_wrap=True)
        if len(row["sources"]) > 1:
            sources = ", ".join(
                source["spider"] + (f" ({source['feed']})" if source["feed"] else "")
                for source in row["sources"]
            )
            console.print(printable(f"sources: {sources}"), style="dim", soft_wrap=True)
        if row["snippet"]:
            passage = Passage(row["snippet"], tuple(row["marks"]))
            for line in _styled(passage).wrap(console, _width(console)):
                line.rstrip()
                line.pad_left(INDENT)
                console.print(line, soft_wrap=True)
        for copy in row.get("hidden", ()):
            similarity = copy["similarity"]
            alike = "" if similarity is None else f"{similarity:.0%} alike"
            parts = (" " * INDENT + "copy", alike, _day(copy["date"]), _url(copy))
            console.print("  ".join(filter(None, parts)), style="dim", soft_wrap=True)
        console.print()


def _styled(passage: Passage, style: str = "") -> Text:
    text = Text(passage.text, style=style)
    for start, stop in passage.marks:
        text.stylize(MARKED, start, stop)
    return text


def _url(post: FoundPost | FoundCopy) -> str:
    """Return the post's URL, or its feed's URL if the post has no link."""
    return printable(post["url"] or post["feed"] or post["id"])


def _day(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d}"


def no_matches(query: Query) -> str:
    """Return a message for a query without matching posts, with a hint on what to change."""
    if not query.terms:
        return "the query has no letters or digits to search for"
    if query.is_one_character:
        return (
            "no posts found. A single character matches only as a separate word. "
            "Add the next character"
        )
    if query.every and len(query.terms) > 1:
        return "no posts found with all of the words. --any finds posts with at least one of them"
    return "no posts found"
