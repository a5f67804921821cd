"""What `scrapy search` prints of a post: title, date, copies, URL, a passage with the words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from rich.console import Console
from rich.text import Text

from crawler.search import Passage, Query, Term, marked
from crawler.storage.client import Document
from crawler.utils.terminal import printable

PASSAGE_LINES = 2
INDENT = 2
SPARE = 5
LEAST_WIDTH = 20
MARKED = "bold red"


def room(console: Console) -> int:
    """Columns for a passage, all its lines together; each may end before a long word."""
    return PASSAGE_LINES * (_width(console) - SPARE)


def _width(console: Console) -> int:
    return max(LEAST_WIDTH, console.width) - INDENT


def show_posts(console: Console, rows: Iterable[Document], terms: Sequence[Term]) -> None:
    """Print posts as `scrapy search` finds them."""
    for row in rows:
        title = marked(row["title"], terms)
        console.print(_styled(title, "bold") if title.text else "(no title)", soft_wrap=True)
        console.print(_whereabouts(row), style="cyan", soft_wrap=True)
        if len(row["sources"]) > 1:
            console.print(_sources(row["sources"]), style="dim", soft_wrap=True)
        if row["passage"].text:
            _show_passage(console, row["passage"])
        for copy in row.get("hidden", ()):
            console.print(_copy(copy), style="dim", soft_wrap=True)
        console.print()


def _show_passage(console: Console, found: Passage) -> None:
    for line in _styled(found).wrap(console, _width(console)):
        line.rstrip()
        line.pad_left(INDENT)
        console.print(line, soft_wrap=True)


def _styled(shown: Passage, style: str = "") -> Text:
    text = Text(shown.text, style=style)
    for start, stop in shown.marks:
        text.stylize(MARKED, start, stop)
    return text


def _whereabouts(row: Document) -> str:
    n = row["copies"]
    copies = f"+{n:,} {'copy' if n == 1 else 'copies'}" if n else ""
    return "  ".join(filter(None, (_day(row["date"]), copies, _url(row))))


def _sources(sources: Iterable[Document]) -> str:
    """Which spiders and feeds have an item."""
    named = (one["spider"] + (f" ({one['feed']})" if one.get("feed") else "") for one in sources)
    return printable("sources: " + ", ".join(named))


def _copy(post: Document) -> str:
    similarity = post.get("similarity")
    alike = "" if similarity is None else f"{similarity:.0%} alike"
    return "  ".join(filter(None, (" " * INDENT + "copy", alike, _day(post["date"]), _url(post))))


def _url(post: Document) -> str:
    """A post without a link of its own is known by its feed."""
    return printable(post.get("url") or post.get("feed") or post["_id"])


def _day(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d}"


def nothing(query: Query) -> str:
    """Why there may be no post to print."""
    if not query.terms:
        return "nothing to look for: no letters and no digits"
    if query.is_one_character:
        return "nothing found (a single character is found where it stands alone; add the next one)"
    if query.every and len(query.terms) > 1:
        return "nothing found (all words have to occur; --any finds posts with one of them)"
    return "nothing found"


def plain(row: Document) -> Document:
    """A post as JSON has it."""
    told = _named({name: value for name, value in row.items() if name != "passage"})
    told["sources"] = [
        {"id": one["_id"]} | {name: one.get(name) for name in ("spider", "url", "feed")}
        for one in row["sources"]
    ]
    if "hidden" in row:
        told["hidden"] = [_named(post) for post in row["hidden"]]
    return told | {"snippet": row["passage"].text}


def _named(post: Document) -> Document:
    return {"id" if name == "_id" else name: value for name, value in post.items()}
