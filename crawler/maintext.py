"""Title and main text of a page without a wrapper's fields."""

from __future__ import annotations

from typing import Any

from lxml import etree
from parsel import SelectorList
from scrapy.http import TextResponse

from crawler.fields import node_text
from crawler.normalization import normalized
from crawler.plaintext import UNSEEN, text_below
from crawler.shortposts import ARTICLE_CHARACTERS, SHORT_CHARACTERS, short_post

LONGEST_CHARACTERS = 1_000_000
# So many long paragraphs are an article, and not worth the search for a short post.
LONG_PARAGRAPHS = 5
# How a page marks its post, the surest first.
POSTS = (
    "[itemprop~=articleBody]",
    ".entry-content, .post-content, .post-body, .article-body, .e-content",
    "article",
)
OG_TITLE = "//meta[@property='og:title']/@content"
FRAME = UNSEEN | {"nav", "header", "footer"}


def main_text(response: TextResponse) -> dict[str, Any]:
    """{"title", "main_text"} of a page; values are None where nothing was found.

    trafilatura (`fast`) was the best of the measured extractors; where it finds nothing, as on
    pages without prose, the body's text outside of the frame stands in. Of short posts in one frame
    it makes texts that are alike, as it believes that it has missed something and adds what else
    the page says. So it is shown no more than the post where the page marks it, and what it adds
    is left out where the post can be told by names and headings.
    """
    marked = _marked(response)
    short = 0 < _length(marked) < SHORT_CHARACTERS
    text = (short and (_extracted(marked.get() or "") or _said(marked))) or _found(response, marked)
    return {"title": page_title(response), "main_text": text[:LONGEST_CHARACTERS] or None}


def load() -> None:
    """Load the extractor: a second of imports, for wrappers without fields alone."""
    import trafilatura  # noqa: F401


def page_title(response: TextResponse) -> str | None:
    """The page's own title: og:title, else the first h1, else <title>."""
    for query in (OG_TITLE, "//h1", "//title"):
        if (found := response.xpath(query)) and (title := node_text(found[0])):
            return title[:1000]
    return None


def _marked(response: TextResponse) -> SelectorList[Any]:
    """The one element that is marked as the post and says something; else none."""
    for query in POSTS:
        found = response.css(query)
        if len(found) == 1 and _length(found):
            return found
    return SelectorList()


def _length(found: SelectorList[Any]) -> int:
    return len(node_text(found[0])) if found else 0


def _found(response: TextResponse, marked: SelectorList[Any]) -> str:
    """What trafilatura finds, or the short post in it of a page without marks."""
    text = _extracted(response.text)
    post = "" if marked or _is_long(text) else _guessed(response)
    shorter = post and (not text or len(post) < len(text))
    return post if shorter else text or _said(response.xpath("//body"))


def _is_long(text: str) -> bool:
    long = sum(len(paragraph) >= ARTICLE_CHARACTERS for paragraph in text.split("\n"))
    return long >= LONG_PARAGRAPHS


def _guessed(response: TextResponse) -> str:
    titles = [response.xpath(query).get() or "" for query in (OG_TITLE, "string(//title)")]
    bodies = response.xpath("//body")
    return short_post(bodies[0].root, titles) if bodies else ""


def _extracted(html: str) -> str:
    import trafilatura  # slow, see `load`
    from trafilatura.xml import xmltotxt

    try:
        # `extract` would sort the combining marks of the text in quadratic time.
        found = trafilatura.bare_extraction(
            html, fast=True, include_comments=False, output_format="txt"
        )
        body = getattr(found, "body", None)
        return "" if body is None else normalized("NFC", xmltotxt(body, False).strip())
    except (etree.LxmlError, RecursionError, ValueError):
        return ""


def _said(elements: SelectorList[Any]) -> str:
    """What elements say outside of the frame."""
    return " ".join(text_below(element.root, FRAME) for element in elements)
