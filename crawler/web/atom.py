"""Atom feeds with all texts as plain text, at addresses with a secret."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, TypeVar
from xml.etree import ElementTree

from fastapi import HTTPException, Query
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from crawler.storage import users
from crawler.storage.store import Store
from crawler.utils.time import iso
from crawler.web.auth import LOCAL, own_origin
from crawler.web.pages import is_linked, path_to

Source = TypeVar("Source")
ATOM = "http://www.w3.org/2005/Atom"
MEDIA_TYPE = "application/atom+xml; charset=utf-8"
# Characters that XML does not allow, and the control characters that it discourages.
INVALID = re.compile("[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
MAX_TITLE, MAX_TEXT, MAX_URL = 300, 4000, 2000
FEED_ENTRIES = 50
# The secret in an address; any real one is much shorter.
SecretQuery = Annotated[str, Query(alias="token", max_length=100)]


@dataclass(frozen=True, slots=True)
class AtomEntry:
    """An entry. id: permanent, in the feed; url: linked if it is safe and short."""

    id: str
    title: str
    updated: datetime
    url: str | None
    categories: tuple[str, ...]
    text: str


class FeedAddress(BaseModel):
    """The address of an Atom feed, which is shown only once."""

    url: str

    @classmethod
    def of(cls, request: Request, route: str, secret: str) -> FeedAddress:
        """Return the address of the feed of a route."""
        return cls(url=f"{own_origin(request)}{path_to(request, route)}?token={secret}")


def atom_response(
    request: Request, entries: Sequence[AtomEntry], *,
    title: str, name: str, address: FeedAddress, page: str, updated: datetime,
) -> Response:  # fmt: skip
    """Return the response with a feed, or 304 if the client has it.

    name:    permanent, for the ids of the feed and its entries; feed readers show and share ids, so
             it must not contain the secret
    page:    path of the page with the same entries
    updated: time to state if there are no entries
    """
    document = _document(
        entries, title, f"tag:freshet,2026:{name}", address.url, own_origin(request) + page, updated
    )
    etag = f'"{hashlib.sha256(document).hexdigest()[:32]}"'
    headers = {"ETag": etag, "Cache-Control": "private, no-cache"}
    given = request.headers.get("if-none-match", "")
    if etag in [each.strip().removeprefix("W/") for each in given.split(",")]:
        return Response(status_code=304, headers=headers)
    return Response(document, headers=headers, media_type=MEDIA_TYPE)


def _document(
    entries: Sequence[AtomEntry], title: str, feed_id: str, address: str, site: str,
    updated: datetime,
) -> bytes:  # fmt: skip
    feed = ElementTree.Element("feed", {"xmlns": ATOM})
    _add(feed, "id", feed_id)
    _add(feed, "title", title)
    _add(feed, "updated", iso(max((each.updated for each in entries), default=updated)))
    _add(ElementTree.SubElement(feed, "author"), "name", "Freshet")
    ElementTree.SubElement(
        feed, "link", {"rel": "self", "type": "application/atom+xml", "href": address}
    )
    ElementTree.SubElement(feed, "link", {"rel": "alternate", "type": "text/html", "href": site})
    for each in entries:
        item = ElementTree.SubElement(feed, "entry")
        _add(item, "id", f"{feed_id}:{each.id}")
        _add(item, "title", each.title)
        _add(item, "updated", iso(each.updated))
        url = each.url or ""
        href = url if is_linked(url) and len(url) <= MAX_URL else site
        ElementTree.SubElement(item, "link", {"rel": "alternate", "href": _clean(href)})
        for term in each.categories:
            ElementTree.SubElement(item, "category", {"term": _clean(term)})
        content = ElementTree.SubElement(item, "content", {"type": "text"})
        content.text = _clean(each.text[:MAX_TEXT])
    document: bytes = ElementTree.tostring(feed, encoding="utf-8", xml_declaration=True)
    return document


def _add(parent: ElementTree.Element, name: str, text: str) -> None:
    ElementTree.SubElement(parent, name).text = _clean(text)


def _clean(text: str) -> str:
    return INVALID.sub("\ufffd", text)


async def allowed(
    request: Request, store: Store, found: Source | None, user_of: Callable[[Source], str]
) -> Source:
    """Return the source of a feed; raises 404 if its user may no longer see the entries.

    found:   None: no feed has the secret
    user_of: returns the name of the user of a source
    """
    if found is None or not await _may_read(request, store, user_of(found)):
        raise HTTPException(404, "This feed no longer exists. Create a new address in Freshet")
    return found


async def _may_read(request: Request, store: Store, user: str) -> bool:
    if user == LOCAL:
        is_private = request.app.state.options.is_private and not request.state.was_forwarded
        return is_private and not await users.any_exists(store.db)
    return await users.find(store.db, user) is not None
