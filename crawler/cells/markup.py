"""Markup that leaves its page."""

from __future__ import annotations

import lxml.html
from lxml import etree


def with_whole_links(markup: str, base_url: str) -> str:
    """A part of a page whose links and pictures lead to where they led on it."""
    try:
        part = lxml.html.fragment_fromstring(markup, create_parent=False)
        part.make_links_absolute(base_url, resolve_base_href=False, handle_failures="ignore")
    except (etree.ParserError, ValueError):
        return markup
    whole: str = lxml.html.tostring(part, encoding="unicode", with_tail=False)
    return whole
