"""The two practice hosts, and the site that answers for each name."""

from __future__ import annotations

from tests.site import practice_books, practice_quotes

HOSTS = {
    "books.toscrape.com": practice_books.page,
    "quotes.toscrape.com": practice_quotes.page,
}


def page(host: str, path: str) -> str | None:
    """Return the HTML of a page, or None if there is no such page."""
    make = HOSTS.get(host)
    return None if make is None else make(path)
