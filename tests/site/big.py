"""Generate a site of any size from byte templates, for fast serving.

`/big/<total>/list/<n>/` links 100 items per page, `/big/<total>/item/<i>.html` is an item of
about 5 kB, `/big/<total>/articles/<n>/?kb=100` links 100 articles per page and
`/big/<total>/article/<i>.html?kb=100` is an article of about that many kB (5 by default). Articles
share their paragraphs, so many are near-duplicates; with `?own=100` each article has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import count
from random import Random
from typing import Any, NamedTuple
from zlib import crc32

from twisted.web.server import Request

from tests.site.exchange import etag_matches
from tests.site.words import paragraph, sentence, title

A_PAGE = 100
LISTS_A_CATEGORY = 10
MAX_ITEMS = 100_000_000
MAX_KB = 1000
SHARED, OWN = b"kb", b"own"
WORDS_A_PARAGRAPH = 90

_RANDOM = Random("big")
_NAMES = tuple(title(_RANDOM).encode() for _ in range(97))
_SENTENCES = tuple(sentence(_RANDOM).encode() for _ in range(211))
_PARAGRAPHS = tuple(paragraph(_RANDOM, 6).encode() for _ in range(307))
_LETTERS = "aeiou" * 3 + "bcdfghjklmnpqrstvwxyz"
_WORDS = tuple("".join(_RANDOM.choices(_LETTERS, k=2 + n % 9)).encode() for n in range(4000))
_MISSING = b"<!DOCTYPE html><h1>No such page</h1>\n"
_SIDE = b"\n".join(
    b'<li class="side-entry"><a class="side-link" href="/about/?topic=%d"><span class="icon">'
    b'</span><span class="label">%s</span></a></li>' % (n, _NAMES[n])
    for n in range(22)
)
_HEAD = b"""<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>%s</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="/static/site.css"></head>
<body class="page">
<header class="site-header"><div class="bar"><a class="brand" href="/">Big store</a>
<form class="search" action="/search"><input name="q" type="search"></form></div></header>
<div class="layout"><div class="column column-main"><main id="content">
"""
_FOOT = (
    b"""
</main></div>
<div class="column column-side"><nav class="side"><ul class="side-list">
"""
    + _SIDE
    + b"""
</ul></nav></div></div>
<footer class="site-footer"><div class="bar"><p>Big store, all of it made up.</p></div></footer>
</body>
</html>
"""
)
_ITEM = (
    _HEAD.replace(b"%s", b"%(name)s %(i)d")
    + b"""<article class="item"><div class="item-grid">
<div class="item-picture"><img src="/static/%(i)d.jpg" alt="%(name)s"></div>
<div class="item-main"><h1>%(name)s %(i)d</h1>
<div class="offer"><p class="price">\xc2\xa3%(pounds)d.%(pence)02d</p>
<p class="stock">In stock (%(stock)d available)</p></div>
<p class="code">Code <span class="sku">BG-%(i)08d</span></p></div></div>
<div class="item-text"><h2>Description</h2><div class="description">
<p>%(first)s %(second)s %(third)s</p>
<p>%(fourth)s %(fifth)s</p>
</div></div></article>"""
    + _FOOT.replace(b"%", b"%%")
)


class Text(NamedTuple):
    """The text of an article: its approximate size in kB, and whether other articles share it."""

    kb: int = 5
    own: bool = False

    @property
    def query(self) -> bytes:
        """Return the text as a query string."""
        return b"?%s=%d" % (OWN if self.own else SHARED, self.kb)


def answer(request: Request, edits: Callable[[str], int]) -> bytes:
    """Set the request's status and headers and return the body (empty for a 304)."""
    handle: Any = request  # Most of Twisted's methods have no type annotations.
    path, _, query = handle.uri.partition(b"?")
    count = edits(path.decode("latin-1"))
    etag = b'"%08x-%d"' % (crc32(path + query), count)
    handle.setHeader(b"content-type", b"text/html; charset=utf-8")
    body = page(path, query, count)
    if body is None:
        handle.setResponseCode(404)
        body = _MISSING
    else:
        handle.setHeader(b"etag", etag)
        tags = handle.getHeader(b"if-none-match")
        if tags is not None and etag_matches(tags.decode("latin-1"), etag.decode().strip('"')):
            handle.setResponseCode(304)
            return b""
    handle.setHeader(b"content-length", b"%d" % len(body))
    return body


def page(path: bytes, query: bytes, edits: int) -> bytes | None:
    """Return the page at `path` after `edits` edits, or None for a 404."""
    parts = path.split(b"/")
    total = _number(parts[2], MAX_ITEMS) if len(parts) in (5, 6) else None
    if total is None:
        return None
    kind = parts[3]
    if kind in (b"list", b"articles") and len(parts) == 6 and parts[5] == b"":
        number = _number(parts[4], -(-total // A_PAGE))
        if number is None:
            return None
        return list_page(total, kind == b"articles", number, _text(query), edits)
    if len(parts) == 5 and parts[4].endswith(b".html"):
        number = _number(parts[4][:-5], total)
        if number and kind == b"item":
            return item_page(number, edits)
        if number and kind == b"article":
            return article_page(number, _text(query), edits)
    return None


def _number(text: bytes, most: int) -> int | None:
    """Return a number from 1 to `most` in decimal notation, or None."""
    if not text.isdigit() or text.startswith(b"0") or len(text) > 9:
        return None
    return int(text) if int(text) <= most else None


def _text(query: bytes) -> Text:
    name, _, digits = query.partition(b"=")
    if name not in (SHARED, OWN) or not digits.isdigit() or len(digits) > 5:
        return Text()
    return Text(min(max(int(digits), 1), MAX_KB), name == OWN)


def item_page(i: int, edits: int) -> bytes:
    """Return item `i`, about 5 kB; each edit raises its price by 10 pence."""
    pounds, pence = divmod(500 + i * 7919 % 9500 + 10 * edits, 100)
    return _ITEM % {
        b"i": i,
        b"name": _NAMES[i % 97],
        b"pounds": pounds,
        b"pence": pence,
        b"stock": 1 + i * 31 % 50,
        b"first": _SENTENCES[i % 211],
        b"second": _SENTENCES[i * 3 % 209],
        b"third": _SENTENCES[i * 5 % 199],
        b"fourth": _SENTENCES[i * 7 % 197],
        b"fifth": _SENTENCES[i * 11 % 193],
    }


@lru_cache(maxsize=256)
def list_page(total: int, articles: bool, number: int, text: Text, edits: int) -> bytes:
    """Return list page `number` of items or of articles, 100 links and a link to the next."""
    first = (number - 1) * A_PAGE + 1
    last = min(number * A_PAGE, total)
    kind, query = (b"article", text.query) if articles else (b"item", b"")
    links = b"\n".join(
        b'<li class="product"><a href="/big/%d/%s/%d.html%s">%s %d</a></li>'
        % (total, kind, i, query, _NAMES[i % 97], i)
        for i in range(first, last + 1)
    )
    category = b"Category %d" % (1 + (number - 1) // LISTS_A_CATEGORY)
    after = b""
    if last < total:
        place = b"articles" if articles else b"list"
        after = b'<a class="next" rel="next" href="/big/%d/%s/%d/%s">next</a>'
        after %= (total, place, number + 1, query)
    body = b'<h2 class="category">%s</h2>\n<ul class="products">\n%s\n</ul>\n<p>%s</p>'
    note = b"\n<p>Edited %d times.</p>" % edits if edits else b""
    return framed(category, body % (category, links, after) + note)


def framed(name: bytes, body: bytes) -> bytes:
    """Return a page with this name and body."""
    return _HEAD % name + body + _FOOT


@lru_cache(maxsize=128)
def article_page(i: int, text: Text, edits: int) -> bytes:
    """Return article `i` as an HTML page; each edit adds a sentence at the end."""
    size = text.kb * 1000 - len(_HEAD) - len(_FOOT)
    texts: list[bytes] = []
    for content in _own_paragraphs(i) if text.own else _shared_paragraphs(i):
        if size <= 0:
            break
        texts.append(b"<p>%s</p>" % content)
        size -= len(texts[-1]) + 1
    if edits:
        texts.append(b'<p class="edited">This page was edited %d times.</p>' % edits)
    name = b"%s %d" % (_NAMES[i % 97], i)
    start = b'<article class="post"><h1>%s</h1>\n<div class="body">\n' % name
    return _HEAD % name + start + b"\n".join(texts) + b"\n</div></article>" + _FOOT


def _shared_paragraphs(i: int) -> Iterator[bytes]:
    return (_PARAGRAPHS[(i * 13 + n * (1 + i % 17)) % 307] for n in count())


def _own_paragraphs(i: int) -> Iterator[bytes]:
    random = Random(i)
    return (b" ".join(random.choices(_WORDS, k=WORDS_A_PARAGRAPH)) + b"." for _ in count())
