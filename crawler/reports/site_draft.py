"""The first definition of a new site, proposed from a few of its pages, and what was found on them.

The draft selects the likeliest items, the lists that lead to them, the heading of a list as the
category of its items, and the fields that most of the items have in one of the usual places. What
Freshet will not see is said: items that a button loads, pages that scripts draw, documents, pages
behind a sign-in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from urllib.parse import urlsplit

from scrapy import Selector
from typing_extensions import TypedDict

from crawler.extract.fields import FieldType
from crawler.extract.proposals import LinkPage, Proposal, Proposals
from crawler.extract.response import PASSWORD
from crawler.reports.site_setup import (
    CategoryEdit,
    ChosenField,
    DefinitionEdit,
    FieldEdit,
    page_of,
    site_name,
)
from crawler.utils.text import count

# A page with a field for a password and fewer links than this is a sign-in page.
FEW_LINKS = 10
MAX_BUTTONS = 2000
HEADING = "h1"
DOCUMENTS = re.compile(r"\.(pdf|docx?|xlsx?|ods|odt|csv|pptx?)$", re.I)
# What buttons that load more items say.
MORE = re.compile(
    r"^\W*(?:(?:load|show|view|see) (?:\w+ )?more\b|more (?:results|items|products|posts)\b|"
    r"mehr (?:laden|anzeigen)|weitere (?:laden|anzeigen)|(?:voir|charger|afficher) plus|"
    r"(?:cargar|ver|mostrar) m[aá]s|carica altr|mostra altr|meer (?:laden|tonen)|ver mais)",
    re.I,
)
_NOWHERE = ("", "#")
_WORD_SEGMENT = "[^/]+"


class SiteKind(StrEnum):
    """What a site consists of."""

    SHOP = "shop"
    ARTICLES = "articles"
    PAGES = "pages"


class Found(TypedDict):
    """What was found on the first pages of a new site."""

    kind: SiteKind
    """`shop`: most items have a price; `articles`: a date or an author; else `pages`."""
    pages: int
    """Number of pages that were read."""
    items: int
    """Number of items that these pages link to."""
    categories: list[str]
    """Categories of these items, most frequent first."""
    remarks: list[str]
    """What Freshet does not see on this site, and what to do."""


def draft(url: str, proposals: Proposals) -> DefinitionEdit:
    """Return a definition with the likeliest items and the lists that lead to them."""
    edit = DefinitionEdit(name=site_name(url), start_urls=[url])
    if not proposals.items:
        return edit
    best = proposals.items[0]
    wanted = dict.fromkeys([best.pattern, *best.alike])
    others = [each for each in proposals.lists if each.pattern not in wanted]
    lists = [each for each in others if wanted.keys() & set(each.leads)] or others[:1]
    edit.item_pages = list(wanted)
    excluded = [each.exclude for each in proposals.items if each.pattern in wanted and each.exclude]
    edit.not_item_pages = list(dict.fromkeys(excluded))
    edit.list_pages = [each.pattern for each in lists]
    edit.category = _category_in(lists)
    return edit


def _category_in(lists: Sequence[Proposal]) -> CategoryEdit | None:
    """Return the word in the URL of a list as the category; None if lists have none or several."""
    patterns = [each.pattern for each in lists if each.pattern.count(_WORD_SEGMENT) == 2]
    if len(lists) != 1 or not patterns:
        return None
    # The first of the two is the host of the pattern.
    head, _, tail = patterns[0].removeprefix("^https?://[^/]+/").partition(_WORD_SEGMENT)
    return CategoryEdit(by="pattern", value=f"^https?://[^/]+/{head}({_WORD_SEGMENT}){tail}")


def heading_category(
    pages: Sequence[tuple[str, str]], names: Mapping[str, str]
) -> CategoryEdit | None:
    """Return the heading of list pages as the category, if it is the text of the links to them.

    pages: HTML and URL of list pages
    names: text of a link by URL
    """
    headings: set[str] = set()
    for html, url in pages:
        texts = page_of(html, url).css(HEADING).xpath("normalize-space()").getall()
        heading = texts[0].casefold() if len(texts) == 1 else ""
        if heading and heading == " ".join(names.get(url, "").split()).casefold():
            headings.add(heading)
    return CategoryEdit(by="css", value=HEADING) if len(headings) > 1 else None


def with_fields(edit: DefinitionEdit, usual: Sequence[ChosenField]) -> SiteKind:
    """Set the fields of a draft from those that most items have; return the kind of the site.

    Of articles, title and main text are stored anyway.
    """
    names = {field["name"] for field in usual}
    if "price" in names:
        edit.fields = [
            FieldEdit(name=each["name"], selector=each["selector"], type=FieldType(each["type"]))
            for each in usual
            if each["name"] in ("title", "price", "stock")
        ]
        return SiteKind.SHOP
    # Also beside fields that are added later.
    edit.main_text = True
    return SiteKind.ARTICLES if names & {"date", "author"} else SiteKind.PAGES


def remarks(
    first: tuple[str, str] | None,
    lists: Sequence[tuple[str, str]],
    pages: Sequence[LinkPage],
    unread: tuple[str, str] | None,
) -> list[str]:
    """Return what Freshet does not see on a site, and what to do; empty if nothing is unusual.

    first:  HTML and URL of the page that the user named; None if it was not fetched
    lists:  HTML and URL of list pages
    pages:  links of all fetched pages
    unread: URL and problem of an item that cannot be read; None without one
    """
    found = []
    if first is not None and (remark := _of_first_page(*first, pages)):
        found.append(remark)
    for html, url in lists:
        if button := _more_button(page_of(html, url).selector):
            found.append(
                f"The list {url} loads more items when “{button}” is clicked. Freshet does not "
                "click. It follows links to further pages, if there are any; else, add a sitemap "
                "of the site, or lists that show everything, under Advanced"
            )
            break
    if unread is not None:
        found.append(f"{unread[0]} cannot be read: {unread[1]}")
    documents = {
        anchor.url
        for page in pages
        for anchor in page.anchors
        if DOCUMENTS.search(urlsplit(anchor.url).path)
    }
    if documents:
        found.append(
            f"These pages link to {count(len(documents), 'document')}, such as a PDF. Documents "
            "are not watched"
        )
    return found


def _of_first_page(html: str, url: str, pages: Sequence[LinkPage]) -> str | None:
    links = next((page.anchors for page in pages if page.url == url), ())
    if len(links) < FEW_LINKS and PASSWORD.search(html.encode()):
        return (
            f"{url} asks for a password. Freshet does not sign in: it sees only what everybody "
            "sees. Choose a page that is open to all"
        )
    if not links:
        return (
            "This page has no links to its own site in its HTML. If a browser shows some, they "
            "are drawn by scripts, which Freshet does not run. Try the site's sitemap as start "
            "URL, or its RSS feed on the page Feeds"
        )
    return None


def _more_button(page: Selector) -> str | None:
    """Return the text of a button that loads more items; None without one."""
    for node in page.css("button, a, [role=button]")[:MAX_BUTTONS]:
        href = (node.attrib.get("href") or "").strip()
        if href in _NOWHERE or href.startswith(("#", "javascript:")):
            text = " ".join(node.xpath("string()").get("")[:200].split())
            if MORE.search(text):
                return text[:40]
    return None
