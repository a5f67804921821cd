"""Minimal responses, site definitions, and fetches for tests."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from scrapy.http import HtmlResponse

from crawler.extract.site_definition import Wrapper
from crawler.items import Fetched, Kind, Target

SITE = "https://shop.example/"
NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


def page(body: str | bytes, url: str = SITE, **headers: str) -> HtmlResponse:
    """Return an HTML response; a `str` body is sent as UTF-8 with that encoding declared."""
    if isinstance(body, str):
        return HtmlResponse(url, body=body.encode(), encoding="utf-8", headers=headers)
    return HtmlResponse(url, body=body, headers=headers)


def wrapper(**keys: Any) -> Wrapper:
    """Return the site definition of a small shop; `keys` override its defaults."""
    usual = {
        "name": "shop",
        "start_urls": SITE,
        "list_pages": r"/category/(?P<category>[^/]+)/",
        "item_pages": r"/item/",
    }
    return Wrapper.of(usual | keys, "shop.toml")


def target(kind: Kind = Kind.ITEM, **state: Any) -> Target:
    """Return a target of the shop."""
    return Target("shop", f"{SITE}item/1", kind, **state)


def fetched(of: Target | None = None, **seen: Any) -> Fetched:
    """Return a fetch at noon."""
    return Fetched(of or target(), NOON, **({"selector_digest": "s1", "status": 200} | seen))
