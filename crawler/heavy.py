"""Pages that are costly to read, as far as that shows before they are read.

Libraries take the square of some things: libxml2 of a tag's attributes and of what a selector finds
below elements that stand in one another. So a page that is large, or has many tags, or is deep,
may keep a crawl busy for minutes, or hours where that is meant.
"""

from __future__ import annotations

from lxml import etree
from scrapy.http import Response, TextResponse

# 300 kB have room for 80,000 attributes of one tag, which take libxml2 about 9 s.
LARGE_BYTES = 300_000
ZIPPED_BYTES = 20_000
GZIP_MAGIC = b"\x1f\x8b"
MANY_TAGS = 20_000
# So many may stand in any way: `div div` takes 6 s at worst.
FEW_TAGS = 5_000
# Of real pages hardly one is deeper than 40.
IS_DEEP = etree.XPath(f"boolean({'/*' * 51})")
# libxml2 reads no further than 2,048.
DEEPEST = 2_000
NO_MEMORY = etree.ErrorTypes.ERR_NO_MEMORY


def is_heavy(response: Response) -> bool:
    """Whether reading a response may take long; False for nearly all."""
    body = response.body
    if len(body) > (ZIPPED_BYTES if body.startswith(GZIP_MAGIC) else LARGE_BYTES):
        return True
    tags = body.count(b"<")
    if tags <= FEW_TAGS or not isinstance(response, TextResponse):
        return False
    return tags > MANY_TAGS or _is_deep(response)


def is_cut_off(page: TextResponse) -> bool:
    """Whether a page is nested so deeply that the rest of it is lost."""
    try:
        node, depth = page.selector.root, 1
    except ValueError:  # a base that is no URL
        return False
    while isinstance(node, etree._Element) and len(node):
        node, depth = node[-1], depth + 1
    return depth >= DEEPEST


def out_of_memory(error: Exception) -> bool:
    """Whether an error while a page was read says that there was no memory left."""
    of_lxml = isinstance(error, etree.ParseError) and getattr(error, "code", None) == NO_MEMORY
    return of_lxml or isinstance(error, MemoryError)


def _is_deep(page: TextResponse) -> bool:
    try:
        root = page.selector.root
    except ValueError:
        return True
    return isinstance(root, etree._Element) and bool(IS_DEEP(root))
