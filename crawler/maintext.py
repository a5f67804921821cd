"""Title and main text of a page without a wrapper's fields."""

from __future__ import annotations

from typing import Any

from lxml import etree
from parsel import SelectorList
from scrapy.http import TextResponse

from crawler.fields import squeeze

LONGEST_CHARACTERS = 1_000_000
# How a page marks its post, the surest first.
POSTS = (
    "[itemprop~=articleBody]",
    ".entry-content, .post-content, .post-body, .article-body, .e-content",
    "article",
)
# With less, trafilatura believes that it has missed something and adds what else the page says.
SHORT_CHARACTERS = 400
FRAME = "self::script or self::style or self::noscript or self::nav or self::header or self::footer"
TEXT = f".//text()[not(ancestor::*[{FRAME}])]"


def main_text(response: TextResponse) -> dict[str, Any]:
    """{"title", "main_text"} of a page; values are None where nothing was found.

    trafilatura (`fast`) was the best of the measured extractors; where it finds nothing, as on
    pages without prose, the body's text outside of the frame stands in. Of short posts in one frame
    it makes texts that are alike, so it is shown no more than the post where the page marks it.
    """
    text = _short_post(response) or _extracted(response.text) or _said(response.xpath("//body"))
    return {"title": page_title(response), "main_text": text[:LONGEST_CHARACTERS] or None}


def page_title(response: TextResponse) -> str | None:
    """The page's own title: og:title, else the first h1, else <title>."""
    for query in ("//meta[@property='og:title']/@content", "string(//h1)", "string(//title)"):
        if found := squeeze(response.xpath(query).get() or ""):
            return found[:1000]
    return None


def _short_post(response: TextResponse) -> str:
    """The text of the one element that is marked as the post; empty where it is not short."""
    for query in POSTS:
        found = response.css(query)
        if len(found) == 1 and (text := squeeze(found.xpath("string()").getall()[0])):
            short = len(text) < SHORT_CHARACTERS
            return _extracted(found.getall()[0]) or _said(found) if short else ""
    return ""


def _extracted(html: str) -> str:
    import trafilatura  # a second of imports, for wrappers without fields alone

    try:
        return trafilatura.extract(html, fast=True, include_comments=False) or ""
    except (etree.LxmlError, RecursionError, ValueError):
        return ""


def _said(elements: SelectorList[Any]) -> str:
    """What elements say outside of the frame."""
    return squeeze(" ".join(elements.xpath(TEXT).getall()))
