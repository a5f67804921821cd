"""Atom documents (RFC 4287) of changes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from xml.etree import ElementTree

from crawler.reports.inbox import FeedEntry
from crawler.web.filters import is_linked

ATOM = "http://www.w3.org/2005/Atom"
MEDIA_TYPE = "application/atom+xml; charset=utf-8"
# Characters that XML 1.0 does not allow.
INVALID = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
MAX_TITLE, MAX_TEXT, MAX_URL = 300, 4000, 2000
WORDS = {"new": "New", "changed": "Changed", "gone": "Gone", "back": "Back"}


def atom_feed(
    entries: Sequence[FeedEntry], *, feed_id: str, address: str, site: str, updated: datetime
) -> bytes:
    """Return a feed with all texts as plain text.

    feed_id:  id that stays the same, in the form of a URI without the last part of entries
    address:  URL of the document itself
    site:     URL of the page with the changes
    updated:  time to state if there are no entries
    """
    feed = ElementTree.Element("feed", {"xmlns": ATOM})
    _add(feed, "id", feed_id)
    _add(feed, "title", "Changes in Freshet")
    _add(feed, "updated", _time(max((each["at"] for _, each in entries), default=updated)))
    _add(ElementTree.SubElement(feed, "author"), "name", "Freshet")
    ElementTree.SubElement(
        feed, "link", {"rel": "self", "type": "application/atom+xml", "href": address}
    )
    ElementTree.SubElement(feed, "link", {"rel": "alternate", "type": "text/html", "href": site})
    for entry_id, each in entries:
        item = ElementTree.SubElement(feed, "entry")
        _add(item, "id", f"{feed_id}:{entry_id}")
        _add(item, "title", _title(each["title"] or each["url"], each["kind"], each["page_count"]))
        _add(item, "updated", _time(each["at"]))
        url = each["url"]
        href = url if is_linked(url) and len(url) <= MAX_URL else site
        ElementTree.SubElement(item, "link", {"rel": "alternate", "href": _clean(href)})
        ElementTree.SubElement(item, "category", {"term": _clean(each["site"])})
        ElementTree.SubElement(item, "category", {"term": each["kind"]})
        lines = [each["summary"], f"Removed: {each['removed']}" if each["removed"] else ""]
        lines += [f"Added: {each['added']}" if each["added"] else ""]
        lines += [page["url"][:MAX_URL] for page in each["pages"]] if each["page_count"] > 1 else []
        text = "\n".join(filter(None, lines)) or WORDS[each["kind"]]
        ElementTree.SubElement(item, "content", {"type": "text"}).text = _clean(text[:MAX_TEXT])
    document: bytes = ElementTree.tostring(feed, encoding="utf-8", xml_declaration=True)
    return document


def _title(name: str, kind: str, pages: int) -> str:
    more = f" and {pages - 1:,} more" if pages > 1 else ""
    return f"{WORDS[kind]}: {' '.join(name[:MAX_TITLE].split())}{more}"


def _add(parent: ElementTree.Element, name: str, text: str) -> None:
    ElementTree.SubElement(parent, name).text = _clean(text)


def _clean(text: str) -> str:
    return INVALID.sub("\ufffd", text)


def _time(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}Z"
