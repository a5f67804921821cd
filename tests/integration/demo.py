"""Site definitions of the demo shop and blog, and the paths of their list pages."""

from __future__ import annotations

from datetime import datetime
from itertools import count
from pathlib import Path

from tests.integration.harness import Freshet
from tests.site.blog import TAGS
from tests.site.running import RunningSite
from tests.site.shop import CATEGORIES
from tests.site.world import World

SHOP_LISTS = r"/shop/(?P<category>[a-z]+)/(page/\d+/)?$"
BLOG_LISTS = r"/blog/(tag/(?P<category>[a-z]+)/)?(page/\d+/)?$"
ITEMS = r"/shop/item/[\w-]+\.html$"
POSTS = r"/blog/\d{4}/\d{2}/[\w-]+\.html$"
FIELDS = {
    "title": "h1",
    "price": {"css": "p.price", "type": "price"},
    "stock": {"css": "p.stock", "type": "number"},
    "added": {"css": "p.added time::attr(datetime)", "type": "date"},
    "body": {"css": "div.body", "type": "text"},
}


def demo_wrapper(freshet: Freshet, site: RunningSite, **keys: object) -> Path:
    """Write a site definition of the whole site, named `mill`."""
    given: dict[str, object] = {
        "start_urls": [f"{site.url}/"],
        "list_pages": [SHOP_LISTS, BLOG_LISTS],
        "item_pages": [ITEMS, POSTS],
        "fields": FIELDS,
    }
    return freshet.wrapper("mill", **given | keys)


def shop_wrapper(freshet: Freshet, site: RunningSite, **keys: object) -> Path:
    """Write a site definition of the shop only, named `shop`."""
    given: dict[str, object] = {
        "start_urls": [f"{site.url}/"],
        "list_pages": SHOP_LISTS,
        "item_pages": ITEMS,
        "fields": FIELDS,
    }
    return freshet.wrapper("shop", **given | keys)


def list_paths(world: World, now: datetime) -> set[str]:
    """Return all list pages that exist: the home page, and all pages of each category and tag."""
    heads = [f"/shop/{name}/" for name in CATEGORIES]
    heads += ["/blog/", *(f"/blog/tag/{tag}/" for tag in TAGS)]
    paths = {"/"}
    for head in heads:
        paths.add(head)
        for number in count(2):
            path = f"{head}page/{number}/"
            if world.content(path, now) is None:
                break
            paths.add(path)
    return paths
