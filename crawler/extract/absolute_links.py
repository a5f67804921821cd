"""Make the URLs in HTML absolute, including those of images that pages load later."""

from __future__ import annotations

import re
from collections import deque
from contextlib import suppress
from html import escape
from typing import Any
from urllib.parse import urljoin

import lxml.html
from lxml import etree

from crawler.utils.urls import BLANKS, is_http

XHTML = "{http://www.w3.org/1999/xhtml}"
BASE_TAGS = ("base", f"{XHTML}base")
# Attributes with one URL that lxml does not know. Scripts copy the values of `data-` attributes
# into `src` and `srcset` when an image comes into view.
URL_ATTRIBUTE = re.compile(r"poster|data-(?:[\w-]+-)?(?:src|poster)")
# Attributes that are also used for other values.
OFTEN_URL_ATTRIBUTE = re.compile(
    r"data-(?:(?:[\w-]+-)?(?:original|lazy|href|url|image|img|bg|background|thumb(?:nail)?))"
)
URL_LIKE = re.compile(r"[^\s{}()<>\"']*[./][^\s{}()<>\"']*")
SRCSET_ATTRIBUTE = re.compile(r"(?:image)?srcset|data-(?:[\w-]+-)?srcset")


def base_url(root: Any, url: str) -> str:
    """Return the URL that relative links of a page refer to: its `<base href>`, else its own.

    root: root of the parsed page
    url:  URL of the page

    Scrapy's `get_base_url` reads only the first 4,096 characters of a page.
    """
    for element in root.iter(*BASE_TAGS) if isinstance(root, etree._Element) else ():
        if (href := element.get("href")) is not None:
            # Browsers ignore a base with an invalid URL.
            with suppress(ValueError):
                return base if is_http(base := urljoin(url, href.strip(BLANKS))) else url
            break
    return url


def with_absolute_links(markup: str, base: str) -> str:
    """Return HTML with absolute URLs, given the URL that relative ones refer to."""
    if "<" not in markup:
        return markup
    try:
        first, *parts = ["", *lxml.html.fragments_fromstring(markup)]
    except (etree.ParserError, ValueError):
        return markup
    if parts and isinstance(parts[0], str):
        first = escape(parts.pop(0), quote=False)
    for part in parts:
        make_absolute(part, base)
    return first + "".join(lxml.html.tostring(part, encoding="unicode") for part in parts)


def make_absolute(element: lxml.html.HtmlElement, base: str) -> None:
    """Make the URLs in an element and below it absolute; invalid ones stay as they are."""
    element.make_links_absolute(base, resolve_base_href=False, handle_failures="ignore")
    for node in element.iter(etree.Element):
        for name, value in node.items():
            if SRCSET_ATTRIBUTE.fullmatch(name):
                node.set(name, absolute_srcset(value, base))
            elif URL_ATTRIBUTE.fullmatch(name) or (
                OFTEN_URL_ATTRIBUTE.fullmatch(name) and URL_LIKE.fullmatch(value.strip(BLANKS))
            ):
                node.set(name, _joined(base, value))


def absolute_srcset(value: str, base: str) -> str:
    """Return the value of a `srcset` attribute with absolute URLs.

    The value is a list of URLs, each with an optional width or density: `a.png 1x, b.png 2x`. A
    comma ends a URL only before a space.
    """
    images: list[list[str]] = []
    words, begins = deque(value.split()), True
    while words:
        word = words.popleft()
        if begins:
            if url := word.strip(","):
                images.append([_joined(base, url)])
                begins = word.endswith(",")
            continue
        size, comma, rest = word.partition(",")
        images[-1] += [size] if size else []
        begins = bool(comma)
        if rest:
            words.appendleft(rest)
    return ", ".join(map(" ".join, images))


def _joined(base: str, url: str) -> str:
    if not url.strip(BLANKS):
        return url
    try:
        return urljoin(base, url.strip(BLANKS))
    except ValueError:
        return url
