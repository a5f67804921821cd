"""Title and main text of a page without a wrapper's fields."""

from __future__ import annotations

from typing import Any

from lxml import etree
from scrapy.http import TextResponse

from crawler.fields import squeeze

LONGEST_CHARACTERS = 1_000_000
FRAME = "self::script or self::style or self::noscript or self::nav or self::header or self::footer"
BODY_TEXT = f"//body//text()[not(ancestor::*[{FRAME}])]"


def main_text(response: TextResponse) -> dict[str, Any]:
    """{"title", "main_text"} of a page; values are None where nothing was found.

    trafilatura (`fast`) was the best of the measured extractors; where it finds nothing, as on
    pages without prose, the body's text outside of the frame stands in.
    """
    text = _extracted(response) or _outside_frame(response)
    return {"title": page_title(response), "main_text": text[:LONGEST_CHARACTERS] or None}


def page_title(response: TextResponse) -> str | None:
    """The page's own title: og:title, else the first h1, else <title>."""
    for query in ("//meta[@property='og:title']/@content", "string(//h1)", "string(//title)"):
        if found := squeeze(response.xpath(query).get() or ""):
            return found[:1000]
    return None


def _extracted(response: TextResponse) -> str:
    import trafilatura  # a second of imports, for wrappers without fields alone

    try:
        return trafilatura.extract(response.text, fast=True, include_comments=False) or ""
    except (etree.LxmlError, RecursionError, ValueError):
        return ""


def _outside_frame(response: TextResponse) -> str:
    return squeeze(" ".join(response.xpath(BODY_TEXT).getall()))
