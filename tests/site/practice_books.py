"""A small bookshop built like books.toscrape.com, with its own texts."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from random import Random

from tests.site.words import paragraph, slug, title

A_PAGE = 20
STARS = ("One", "Two", "Three", "Four", "Five")
CATEGORIES = ("Travel", "Mystery", "Poetry", "Gardening")
# Two dozen books in one category, so that it has a second page.
SIZES = (24, 9, 7, 5)


@dataclass(frozen=True)
class Book:
    """A book; `pence` is its price."""

    number: int
    title: str
    category: int
    pence: int
    stock: int
    stars: str
    description: str
    upc: str

    @property
    def path(self) -> str:
        """The book's URL path."""
        return f"/catalogue/{slug(self.title)}_{self.number}/index.html"


def _make_book(number: int, category: int) -> Book:
    random = Random(f"book/{number}")
    return Book(
        number=number,
        title=title(random).title(),
        category=category,
        pence=random.randrange(1000, 6000),
        stock=random.randint(1, 22),
        stars=random.choice(STARS),
        description=paragraph(random, random.randint(4, 9)),
        upc=f"{random.getrandbits(64):016x}",
    )


def _make_books() -> tuple[Book, ...]:
    categories = [n for n, size in enumerate(SIZES) for _ in range(size)]
    Random("shelf").shuffle(categories)
    return tuple(_make_book(n, category) for n, category in enumerate(categories, start=1))


BOOKS = _make_books()
_BY_PATH = {book.path: book for book in BOOKS}
_ALL = re.compile(r"/catalogue/page-([1-9]\d{0,3})\.html")
_CATEGORY = re.compile(
    r"/catalogue/category/(books(?:/[a-z]+)?_\d+)/(?:index|page-([1-9]\d{0,3}))\.html"
)


def page(path: str) -> str | None:
    """Return the HTML of a page, or None if there is no such page."""
    if path.endswith("/"):
        path += "index.html"
    if path in _BY_PATH:
        return _book_page(_BY_PATH[path])
    if path == "/index.html":
        return _list_page(path, "All products", BOOKS, 1, "/catalogue")
    if match := _ALL.fullmatch(path):
        return _list_page(path, "All products", BOOKS, int(match[1]), "/catalogue")
    if match := _CATEGORY.fullmatch(path):
        return _category_page(path, match[1], int(match[2] or 1))
    return None


def category_path(number: int) -> str:
    """Return the path of a category's first page (0 is the first category)."""
    return f"/catalogue/category/books/{slug(CATEGORIES[number])}_{number + 2}/index.html"


def _category_page(path: str, name: str, number: int) -> str | None:
    folder = f"/catalogue/category/{name}"
    if name == "books_1":
        return _list_page(path, "Books", BOOKS, number, folder)
    for category, heading in enumerate(CATEGORIES):
        if category_path(category) == f"{folder}/index.html":
            books = [book for book in BOOKS if book.category == category]
            return _list_page(path, heading, books, number, folder)
    return None


def _list_page(
    path: str, heading: str, books: Sequence[Book], number: int, folder: str
) -> str | None:
    shown = books[(number - 1) * A_PAGE : number * A_PAGE]
    if not shown:
        return None
    pods = "\n".join(_pod(path, book) for book in shown)
    pages = -(-len(books) // A_PAGE)
    body = f"""<div class="page-header action"><h1>{heading}</h1></div>
<form class="form-horizontal"><strong>{len(books)}</strong> results</form>
<section><div><ol class="row">
{pods}
</ol>
{_pager(path, folder, number, pages)}</div></section>"""
    return _frame(path, heading, body)


def _pager(path: str, folder: str, number: int, pages: int) -> str:
    if pages == 1:
        return ""
    before = folder + ("/index.html" if number == 2 and "category" in folder else "/page-%d.html")
    before = before.replace("%d", str(number - 1))
    after = f"{folder}/page-{number + 1}.html"
    back = f'<li class="previous">{_link(path, before, "previous")}</li>\n' if number > 1 else ""
    more = f'\n<li class="next">{_link(path, after, "next")}</li>' if number < pages else ""
    current = f'<li class="current">Page {number} of {pages}</li>'
    return f'<div><ul class="pager">\n{back}{current}{more}\n</ul></div>\n'


def _link(path: str, target: str, text: str) -> str:
    """Return a link from one path to another, relative as on the original site."""
    place = posixpath.relpath(target, posixpath.dirname(path))
    return f'<a href="{place}">{escape(text)}</a>'


def _pod(path: str, book: Book) -> str:
    place = posixpath.relpath(book.path, posixpath.dirname(path))
    short = book.title if len(book.title) < 22 else f"{book.title[:18]} ..."
    return f"""<li class="col-xs-6 col-sm-4 col-md-3 col-lg-3"><article class="product_pod">
<div class="image_container"><a href="{place}"><img class="thumbnail" alt=""></a></div>
<p class="star-rating {book.stars}"><i class="icon-star"></i></p>
<h3><a href="{place}" title="{escape(book.title)}">{escape(short)}</a></h3>
<div class="product_price"><p class="price_color">{_price(book)}</p>
<p class="instock availability"><i class="icon-ok"></i> In stock</p></div>
</article></li>"""


def _price(book: Book) -> str:
    return f"£{book.pence / 100:.2f}"


def _book_page(book: Book) -> str:
    stock = f"In stock ({book.stock} available)"
    body = f"""<article class="product_page"><div class="row">
<div class="col-sm-6"><div id="product_gallery"><img alt="{escape(book.title)}"></div></div>
<div class="col-sm-6 product_main"><h1>{escape(book.title)}</h1>
<p class="price_color">{_price(book)}</p>
<p class="instock availability"><i class="icon-ok"></i>
    {stock}
</p>
<p class="star-rating {book.stars}"><i class="icon-star"></i></p>
</div></div>
<div id="product_description" class="sub-header"><h2>Product Description</h2></div>
<p>{escape(book.description)}</p>
<div class="sub-header"><h2>Product Information</h2></div>
{_table(book, stock)}
</article>"""
    return _frame(book.path, book.title, body, book)


def _table(book: Book, stock: str) -> str:
    rows = {
        "UPC": book.upc,
        "Product Type": "Books",
        "Price (excl. tax)": _price(book),
        "Price (incl. tax)": _price(book),
        "Tax": "£0.00",
        "Availability": stock,
        "Number of reviews": "0",
    }
    lines = "\n".join(f"<tr><th>{name}</th><td>{text}</td></tr>" for name, text in rows.items())
    return f'<table class="table table-striped">\n{lines}\n</table>'


def _frame(path: str, heading: str, body: str, book: Book | None = None) -> str:
    links = "\n".join(
        f"<li>{_link(path, category_path(n), name)}</li>" for n, name in enumerate(CATEGORIES)
    )
    crumbs = f"<li>{_link(path, '/index.html', 'Home')}</li>"
    if book is not None:
        crumbs += f"<li>{_link(path, '/catalogue/category/books_1/index.html', 'Books')}</li>"
        name = CATEGORIES[book.category]
        crumbs += f"<li>{_link(path, category_path(book.category), name)}</li>"
    return f"""<!DOCTYPE html>
<html lang="en-us"><head><title>{escape(heading)} | Practice books</title>
<meta charset="utf-8"></head>
<body id="default" class="default">
<header class="header container-fluid"><div class="page_inner">Practice books</div></header>
<div class="container-fluid page"><div class="page_inner">
<ul class="breadcrumb">{crumbs}<li class="active">{escape(heading)}</li></ul>
<div class="row"><aside class="sidebar col-sm-4 col-md-3"><div class="side_categories">
<ul class="nav nav-list"><li>{_link(path, "/catalogue/category/books_1/index.html", "Books")}
<ul>
{links}
</ul></li></ul></div></aside>
<div class="col-sm-8 col-md-9">
{body}
</div></div></div></div>
</body></html>
"""
