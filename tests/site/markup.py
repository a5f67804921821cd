"""The HTML of the shop and the blog: the changing boilerplate and the content inside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape

from tests.site.blog import TAGS, Post
from tests.site.shop import CATEGORIES, Item

UTM = "utm_source=newsletter&amp;utm_medium=email"


@dataclass(frozen=True)
class Content:
    """The relevant part of a page: its title and the HTML inside `main`."""

    title: str
    html: str


def link(path: str, text: str) -> str:
    """Return an `a` element; `path` is not escaped."""
    return f'<a href="{path}">{escape(text)}</a>'


def list_items(lines: Sequence[str]) -> str:
    """Return the lines as `li` elements, one per line."""
    return "\n".join(f"<li>{line}</li>" for line in lines)


def frame(content: Content, now: datetime, token: str, related: Sequence[Item] = ()) -> str:
    """Return a whole page; everything outside `main` may differ between two requests."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>{escape(content.title)} - Millrace</title>
<meta name="csrf-token" content="{token}"></head>
<body>
<!-- page made at {now.isoformat()} -->
<header class="site-header"><p class="brand">{link("/", "Millrace")}</p>
<nav class="main-nav"><ul>
{list_items(_nav())}
</ul></nav></header>
<main id="content">
{content.html}
</main>
{_related(related)}<footer class="site-footer"><p>Millrace, goods and notes.
Page made at <span class="made">{now:%Y-%m-%d %H:%M:%S}</span>, visit {token}.</p>
</footer>
</body>
</html>
"""


def _nav() -> list[str]:
    shop = [link(f"/shop/{name}/", title) for name, (title, _) in CATEGORIES.items()]
    rest = [("/blog/", "Blog"), ("/about/", "About"), ("/cart/", "Cart"), ("/login/", "Log in")]
    return [*shop, *(link(path, text) for path, text in rest)]


def _related(items: Sequence[Item]) -> str:
    if not items:
        return ""
    links = list_items([link(item.path, item.title) for item in items])
    return f'<aside class="related"><h2>You may also like</h2><ul>\n{links}\n</ul></aside>\n'


def item_content(item: Item, now: datetime) -> Content:
    """Return the content of an item page."""
    price, stock = _price_and_stock(item, now)
    groups = list_items([link(f"/shop/{c}/", CATEGORIES[c][0]) for c in item.categories])
    html = f"""<article class="item" data-id="{item.number}">
<h1>{escape(item.title)}</h1>
<p class="price">{price}</p>
<p class="stock">{stock}</p>
<p class="rating" data-rating="{item.rating}">{item.rating} out of 5</p>
<p class="added">Added <time datetime="{item.appears:%Y-%m-%d}">{item.appears:%d %B %Y}</time></p>
<div class="description"><p>{escape(item.description)}</p></div>
<ul class="categories">
{groups}
</ul>
</article>"""
    return Content(item.title, html)


def post_content(post: Post, now: datetime, item: Item | None) -> Content:
    """Return the content of a post; `item`, if given, is linked with a campaign parameter."""
    body = "\n".join(f"<p>{escape(text)}</p>" for text in post.body(now))
    tags = list_items([f'<a rel="tag" href="/blog/tag/{tag}/">{tag}</a>' for tag in post.tags])
    offer = ""
    if item is not None:
        place = link(f"{item.path}?utm_source=blog", item.title)
        offer = f'\n<p class="mention">From the shop: {place}</p>'
    html = f"""<article class="post">
<h1>{escape(post.title)}</h1>
<p class="byline">Published <time datetime="{post.published.isoformat()}">\
{post.published:%d %B %Y}</time></p>
<div class="body">
{body}
</div>{offer}
<ul class="tags">
{tags}
</ul>
</article>"""
    return Content(post.title, html)


def category_content(
    name: str, items: Sequence[Item], number: int, more: bool, priced: datetime | None = None
) -> Content:
    """Return page `number` of a category; `more` is true if a next page exists.

    priced: time of the prices and stocks to show; None: only names
    """
    lines = "\n".join(
        f'<li class="product">{link(item.path, item.title)}{_offer(item, priced)}</li>'
        for item in items
    )
    return _list(CATEGORIES[name][0], "products", lines, (f"/shop/{name}/", number, more))


def _offer(item: Item, at: datetime | None) -> str:
    """Return price and stock at a time, as an entry of a list shows them; None: nothing."""
    if at is None:
        return ""
    price, stock = _price_and_stock(item, at)
    return f' <span class="price">{price}</span> <span class="stock">{stock}</span>'


def _price_and_stock(item: Item, at: datetime) -> tuple[str, str]:
    offer = item.offer(at)
    stock = f"In stock ({offer.stock} available)" if offer.stock else "Out of stock"
    return f"£{offer.pence / 100:.2f}", stock


def posts_content(
    base: str, heading: str, posts: Sequence[Post], number: int, more: bool
) -> Content:
    """Return page `number` of a list of posts that starts at the path `base`."""
    lines = "\n".join(
        f'<li class="post">{link(post.path, post.title)} '
        f'<time datetime="{post.published.isoformat()}">{post.published:%d %B %Y}</time></li>'
        for post in posts
    )
    return _list(heading, "posts", lines, (base, number, more))


def _list(heading: str, css: str, lines: str, pager: tuple[str, int, bool]) -> Content:
    base, number, more = pager
    links = []
    if number > 1:
        before = base if number == 2 else f"{base}page/{number - 1}/"
        links.append(f'<a class="previous" rel="prev" href="{before}">previous</a>')
    if more:
        links.append(f'<a class="next" rel="next" href="{base}page/{number + 1}/">next</a>')
    html = f"""<h1>{escape(heading)}</h1>
<ul class="{css}">
{lines}
</ul>
<p class="pager">page {number} {" ".join(links)}</p>"""
    return Content(heading, html)


def home_content(featured: Sequence[Item]) -> Content:
    """Return the home page: the categories, the blog, its tags and a few featured items."""
    groups = [link(f"/shop/{name}/", title) for name, (title, _) in CATEGORIES.items()]
    picks = [link(f"{item.path}?{UTM}", item.title) for item in featured]
    tags = [link(f"/blog/tag/{tag}/", tag) for tag in TAGS]
    html = f"""<h1>Goods for the house and notes from the river</h1>
<ul class="categories">
{list_items(groups)}
</ul>
<p>{link("/blog/", "Read the blog")}</p>
<ul class="tags">
{list_items(tags)}
</ul>
<h2>This season</h2>
<ul class="featured">
{list_items(picks)}
</ul>"""
    return Content("Home", html)


def plain_content(heading: str, text: str) -> Content:
    """Return a page with one heading and one paragraph."""
    return Content(heading, f"<h1>{escape(heading)}</h1>\n<p>{escape(text)}</p>")
