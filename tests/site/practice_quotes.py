"""A small site of quotes built like quotes.toscrape.com; people and quotes are invented."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from random import Random

from tests.site.words import paragraph, slug

A_PAGE = 10
AUTHORS = {
    "Ada Millward": ("March 4, 1871", "in Rowston, England"),
    "Bruno Castell": ("July 19, 1902", "in Girona, Spain"),
    "Clara Weir": ("November 30, 1888", "in Dunmore, Ireland"),
    "Dov Lindqvist": ("May 8, 1915", "in Visby, Sweden"),
    "Elif Tarhan": ("January 23, 1934", "in Bursa, Turkey"),
    "Femi Okafor": ("September 12, 1947", "in Enugu, Nigeria"),
    "Greta S. Holm": ("April 1, 1869", "in Bergen, Norway"),
    "Hugo Perrault": ("December 17, 1921", "in Annecy, France"),
}
SAYINGS = (
    ("A river never argues with its banks; it waits for rain.", "patience rivers"),
    ("Read slowly, and the book will read you back.", "books patience"),
    ("Whoever mends a net has already caught something.", "work"),
    ("The shortest path is the one you know in the dark.", "travel wisdom"),
    ("Keep one window unpainted, for the weather.", "home humor"),
    ("Good tools forgive, great ones remind.", "work wisdom"),
    ("I have never regretted a letter I posted late.", "friendship humor"),
    ("To know a town, ask where its children hide.", "travel"),
    ("Half of courage is having packed a sandwich.", "humor courage"),
    ("A friend is a lamp you do not have to carry.", "friendship"),
    ("Count the days by what you gave away in them.", "life"),
    ("The kettle has its own opinion of haste.", "patience humor home"),
    ("Every map is an apology for what it leaves out.", "travel wisdom books"),
    ("Plant the slow trees first.", "patience life"),
    ("Silence is a room; do not fill it with furniture.", "wisdom home"),
    ("Nobody reads the ledger, yet everybody feels the sum.", "work life"),
    ("If the bridge creaks, thank it for speaking.", "rivers courage"),
    ("A borrowed book knows two ways home.", "books friendship"),
    ("Old boots tell the truth about new roads.", "travel life"),
    ("Ask the tide for nothing before noon.", "rivers humor"),
    ("What you repair twice becomes yours.", "work life"),
    ("Bravery is mostly a matter of dry socks.", "courage humor"),
    ("Leave the gate as you would like to find it.", "wisdom"),
    ("The best stories are told while peeling potatoes.", "books home"),
    ("Stay until the lamps are lit; then you may go.", "friendship life"),
)


@dataclass(frozen=True)
class Quote:
    """A quote with its author and tags."""

    text: str
    author: str
    tags: tuple[str, ...]


_NAMES = tuple(AUTHORS)
QUOTES = tuple(
    Quote(text, _NAMES[n * 3 % len(_NAMES)], tuple(tags.split()))
    for n, (text, tags) in enumerate(SAYINGS)
)
TAGS = tuple(sorted({tag for quote in QUOTES for tag in quote.tags}))
_AUTHOR_PATHS = {f"/author/{slug(name).title()}": name for name in AUTHORS}
_LIST = re.compile(r"(?:/tag/([a-z]+))?(?:/page/([1-9]\d{0,3}))?/")


def page(path: str) -> str | None:
    """Return the HTML of a page, or None if there is no such page."""
    author = _AUTHOR_PATHS.get(path.rstrip("/"))
    if author is not None:
        return _author_page(author)
    if path == "/login":
        return _frame('<form action="/login" method="post"><input name="username"></form>')
    match = _LIST.fullmatch(path)
    if match is None or (match[1] is not None and match[1] not in TAGS):
        return None
    quotes = [quote for quote in QUOTES if match[1] in (None, *quote.tags)]
    base = f"/tag/{match[1]}" if match[1] else ""
    return _list_page(quotes, int(match[2] or 1), base)


def author_path(name: str) -> str:
    """Return the path of an author's page, as it appears in the links of the quotes."""
    return f"/author/{slug(name).title()}"


def _list_page(quotes: Sequence[Quote], number: int, base: str) -> str:
    shown = quotes[(number - 1) * A_PAGE : number * A_PAGE]
    body = "\n".join(_quote(quote) for quote in shown) or "No quotes found!"
    links = ""
    if number > 1:
        place = f"{base}/page/{number - 1}/"
        links += f'<li class="previous"><a href="{place}"><span>&larr;</span> Previous</a></li>\n'
    if len(quotes) > number * A_PAGE:
        place = f"{base}/page/{number + 1}/"
        links += f'<li class="next"><a href="{place}">Next <span>&rarr;</span></a></li>\n'
    top = "\n".join(f'<span class="tag-item">{_tag(tag)}</span>' for tag in TAGS[:10])
    return _frame(f"""<div class="row"><div class="col-md-8">
{body}
<nav><ul class="pager">
{links}</ul></nav></div>
<div class="col-md-4 tags-box"><h2>Top Ten tags</h2>
{top}
</div></div>""")


def _tag(tag: str) -> str:
    return f'<a class="tag" href="/tag/{tag}/page/1/">{tag}</a>'


def _quote(quote: Quote) -> str:
    words = ",".join(quote.tags)
    tags = "\n".join(_tag(tag) for tag in quote.tags)
    return f"""<div class="quote" itemscope itemtype="http://schema.org/CreativeWork">
<span class="text" itemprop="text">“{escape(quote.text)}”</span>
<span>by <small class="author" itemprop="author">{escape(quote.author)}</small>
<a href="{author_path(quote.author)}">(about)</a></span>
<div class="tags">Tags: <meta class="keywords" itemprop="keywords" content="{words}">
{tags}
</div></div>"""


def _author_page(name: str) -> str:
    born, place = AUTHORS[name]
    text = paragraph(Random(f"author/{name}"), 8)
    return _frame(f"""<div class="author-details"><h3 class="author-title">{escape(name)}</h3>
<p><strong>Born:</strong> <span class="author-born-date">{born}</span>
<span class="author-born-location">{place}</span></p>
<p><strong>Description:</strong></p>
<div class="author-description">
{escape(text)}
</div></div>""")


def _frame(body: str) -> str:
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="UTF-8"><title>Practice quotes</title></head>
<body><div class="container">
<div class="row header-box"><div class="col-md-8"><h1><a href="/">Practice quotes</a></h1></div>
<div class="col-md-4"><p><a href="/login">Login</a></p></div></div>
{body}
</div>
<footer class="footer"><div class="container"><p class="text-muted">All invented.</p></div></footer>
</body></html>
"""
