"""A shop and a blog as a pure function of time: the same seed gives the same history."""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from random import Random
from types import MappingProxyType

from tests.site import markup
from tests.site.blog import TAGS, make_posts
from tests.site.markup import Content
from tests.site.shop import CATEGORIES, Item, make_items
from tests.site.weekly_profile import between

START = datetime(2026, 1, 5, tzinfo=UTC)
ITEMS_A_PAGE = 20
POSTS_A_PAGE = 10
HTML = "text/html; charset=utf-8"
XML = "application/xml; charset=utf-8"
TEXT = "text/plain; charset=utf-8"

_CATEGORY = re.compile(r"/shop/([a-z]+)/(?:page/([1-9]\d{0,3})/)?")
_POSTS = re.compile(r"/blog/(?:tag/([a-z]+)/)?(?:page/([1-9]\d{0,3})/)?")
_FIXED = {
    "/about/": ("About", "Millrace sells useful things and keeps a diary of one small river."),
    "/cart/": ("Cart", "There is nothing in the cart."),
    "/login/": ("Log in", "Please type the name and the word you were given."),
}


@dataclass(frozen=True)
class Visit:
    """The properties of a request: the site's address, a token, the count of edits."""

    base: str = "http://site.test"
    token: str = "0"
    edits: int = 0


@dataclass(frozen=True)
class Page:
    """A page as served: `digest` is a hash of the content only, without the boilerplate."""

    html: str
    last_modified: datetime
    content_type: str
    digest: str


class World:
    """The whole site.

    start: a Monday 00:00 UTC
    items: includes later arrivals
    per_week: changes a week of some items, by number, in place of random rates
    priced: whether the lists of the shop show prices and stocks
    """

    def __init__(
        self, seed: int = 7, start: datetime = START, items: int = 200,
        per_week: Mapping[int, float] = MappingProxyType({}), *, priced: bool = False,
    ) -> None:  # fmt: skip
        self.seed, self.priced = seed, priced
        self.start = start
        self.items = [
            replace(item, per_week=per_week.get(item.number, item.per_week))
            for item in make_items(seed, start, items)
        ]
        self.posts = make_posts(seed, start)
        self._items = {item.path: item for item in self.items}
        self._posts = {post.path: post for post in self.posts}
        self._featured = [i for i in self.items if i.live(start) and i.ends is None][:4]
        self._times: dict[str, tuple[datetime, ...]] = {}

    def page(self, path: str, now: datetime, visit: Visit = Visit()) -> Page | None:
        """Return the page at `path` (its query is ignored) at `now`, or None for a 404."""
        path = path.partition("?")[0]
        if path == "/robots.txt":
            return self._robots(visit)
        content = self.content(path, now)
        if content is None:
            return None
        modified = self._modified(path, now)
        if path == "/sitemap.xml":
            text = content.html.replace("<loc>", f"<loc>{visit.base}")
            return Page(text, modified, XML, _digest(content.html))
        if visit.edits:
            note = f'\n<p class="edited">This page was edited {visit.edits} times.</p>'
            content = replace(content, html=content.html + note)
        html = markup.frame(content, now, visit.token, self._related(path, now, visit.token))
        return Page(html, modified, HTML, _digest(content.html))

    def content(self, path: str, now: datetime) -> Content | None:
        """Return the content of the page at `path`, or None if there is no such page."""
        if path in self._items:
            item = self._items[path]
            return markup.item_content(item, now) if item.live(now) else None
        if path in self._posts:
            return self._post(path, now)
        if match := _CATEGORY.fullmatch(path):
            return self._category(match[1], match[2], now)
        if match := _POSTS.fullmatch(path):
            return self._post_list(match[1], match[2], now)
        if path == "/":
            return markup.home_content(self._featured)
        if path == "/sitemap.xml":
            return self._sitemap(now)
        return markup.plain_content(*_FIXED[path]) if path in _FIXED else None

    def changes(self, path: str, since: datetime, until: datetime) -> list[datetime]:
        """Return the times at which the content at `path` changed (since < time <= until), sorted.

        The appearance and the end of a page count as changes.
        """
        return between(self._change_times(path), since, until)

    def paths(self, now: datetime) -> list[str]:
        """Return the paths of all items and posts that exist at `now`."""
        items = [item.path for item in self.items if item.live(now)]
        return items + [post.path for post in self.posts if post.published <= now]

    def _change_times(self, path: str) -> tuple[datetime, ...]:
        if path not in self._times:
            self._times[path] = tuple(self._find_times(path))
        return self._times[path]

    def _find_times(self, path: str) -> list[datetime]:
        if path in self._items:
            return self._items[path].times()
        if path in self._posts:
            return self._posts[path].times()
        if path == "/sitemap.xml":
            return sorted(self._all_times())
        times = sorted(self._list_times(path))
        second = timedelta(seconds=1)
        return [at for at in times if self.content(path, at) != self.content(path, at - second)]

    def _list_times(self, path: str) -> set[datetime]:
        """Return the times at which a list page may change."""
        if match := _CATEGORY.fullmatch(path):
            members = [item for item in self.items if match[1] in item.categories]
            ends = {item.ends for item in members if item.ends is not None}
            offers = {at for item in members for at in item.times()} if self.priced else set()
            return {item.appears for item in members} | ends | offers
        if match := _POSTS.fullmatch(path):
            return {post.published for post in self.posts if match[1] in (None, *post.tags)}
        return set()

    def _all_times(self) -> set[datetime]:
        shop = {at for item in self.items for at in item.times()}
        return shop | {at for post in self.posts for at in post.times()}

    def _modified(self, path: str, now: datetime) -> datetime:
        times = self._change_times(path)
        index = bisect_right(times, now)
        return times[index - 1] if index else self.start - timedelta(days=365)

    def _post(self, path: str, now: datetime) -> Content | None:
        post = self._posts[path]
        if now < post.published:
            return None
        item = self._featured[post.number % 4] if post.number % 5 == 0 and self._featured else None
        return markup.post_content(post, now, item)

    def _category(self, name: str, number: str | None, now: datetime) -> Content | None:
        if name not in CATEGORIES or number == "1":
            return None
        live = [item for item in self.items if name in item.categories and item.live(now)]
        live.sort(key=lambda item: (item.appears, item.number), reverse=True)
        place = _Slice(int(number or 1), ITEMS_A_PAGE, len(live))
        if not place.exists:
            return None
        shown = live[place.first : place.last]
        priced = now if self.priced else None
        return markup.category_content(name, shown, place.number, place.more, priced)

    def _post_list(self, tag: str | None, number: str | None, now: datetime) -> Content | None:
        if number == "1" or (tag is not None and tag not in TAGS):
            return None
        live = [p for p in self.posts if p.published <= now and tag in (None, *p.tags)]
        place = _Slice(int(number or 1), POSTS_A_PAGE, len(live))
        if not place.exists:
            return None
        base = "/blog/" if tag is None else f"/blog/tag/{tag}/"
        heading = "Blog" if tag is None else f"Posts about {tag}"
        shown = live[place.first : place.last]
        return markup.posts_content(base, heading, shown, place.number, place.more)

    def _sitemap(self, now: datetime) -> Content:
        rows = [
            f"<url><loc>{path}</loc>"
            f"<lastmod>{self._modified(path, now):%Y-%m-%dT%H:%M:%SZ}</lastmod></url>"
            for path in self.paths(now)
        ]
        head = '<?xml version="1.0" encoding="UTF-8"?>\n'
        space = "http://www.sitemaps.org/schemas/sitemap/0.9"
        body = "\n".join(rows)
        return Content("sitemap", f'{head}<urlset xmlns="{space}">\n{body}\n</urlset>\n')

    def _robots(self, visit: Visit) -> Page:
        text = f"User-agent: *\nDisallow: /cart/\nSitemap: {visit.base}/sitemap.xml\n"
        return Page(text, self.start - timedelta(days=365), TEXT, _digest(text))

    def _related(self, path: str, now: datetime, token: str) -> list[Item]:
        if path not in self._items:
            return []
        others = [item for item in self.items if item.live(now) and item.path != path]
        random = Random(f"{self.seed}/{path}/{now.isoformat()}/{token}")
        return random.sample(others, min(2, len(others)))


@dataclass(frozen=True)
class _Slice:
    """Page `number` of `total` entries with `size` entries per page."""

    number: int
    size: int
    total: int

    @property
    def first(self) -> int:
        return (self.number - 1) * self.size

    @property
    def last(self) -> int:
        return self.first + self.size

    @property
    def more(self) -> bool:
        return self.last < self.total

    @property
    def exists(self) -> bool:
        return self.number == 1 or self.first < self.total


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]
