"""Cards: what a list page says of each item around its link, such as a price, as a digest.

The card of an item is the largest part of the page that links to that item and to no other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from urllib.parse import urldefrag, urljoin

from lxml import etree
from scrapy.http import TextResponse
from scrapy.utils.response import get_base_url

from crawler.plaintext import text_below

Owners = dict[etree._Element, str]
# A part of the page that belongs to several items.
SHARED = ""
DIGEST_BYTES = 8


def cards_of(response: TextResponse, items: Mapping[str, str]) -> dict[str, str]:
    """Digest of each item's card by the item's URL; none for an item that has the page to itself.

    items: the item's URL by the absolute URL of an anchor, without fragment
    """
    owners: Owners = {}
    first: dict[str, etree._Element] = {}
    for anchor, url in _anchors(response):
        if (item := items.get(url)) is not None:
            first.setdefault(item, anchor)
            _claim(anchor, item, owners)
    found = {item: _card(anchor, item, owners) for item, anchor in first.items()}
    return {item: _digest(card) for item, card in found.items() if card is not None}


def _anchors(response: TextResponse) -> Iterator[tuple[etree._Element, str]]:
    base, root = get_base_url(response), response.selector.root
    for anchor in root.iter("a") if isinstance(root, etree._Element) else ():
        try:
            yield anchor, urldefrag(urljoin(base, str(anchor.get("href", "")).strip()))[0]
        except ValueError:
            continue


def _claim(anchor: etree._Element, item: str, owners: Owners) -> None:
    """Say of an anchor and all around it whose they are."""
    node: etree._Element | None = anchor
    while node is not None and owners.get(node) not in (item, SHARED):
        owners[node] = SHARED if node in owners else item
        node = node.getparent()


def _card(anchor: etree._Element, item: str, owners: Owners) -> etree._Element | None:
    node, above = anchor, anchor.getparent()
    while above is not None and owners[above] == item:
        node, above = above, above.getparent()
    return None if above is None else node


def _digest(card: etree._Element) -> str:
    text = text_below(card)
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=DIGEST_BYTES).hexdigest()
