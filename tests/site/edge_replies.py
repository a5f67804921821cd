"""Misbehaving resources with a broken status, header or connection."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from urllib.parse import quote

from tests.site.edge_text import latin_item
from tests.site.exchange import Answer, Exchange, http_date

OFFSITE = "http://offsite.invalid/item.html"
FLOOD_HEADERS = 400


class Plain:
    """A well-behaved item page with validators; each edit raises its price by 10 pence."""

    def __init__(self, edits: Callable[[str], int]) -> None:
        self._edits = edits

    def serve(self, exchange: Exchange, rest: str) -> None:
        """Send the page."""
        count = self._edits(exchange.path)
        body = latin_item("plain", f"£{(1250 + 10 * count) / 100:.2f}")
        exchange.send(Answer(body, etag=f"plain-{count}"))


class GoneAfter:
    """An item page until its first edit, 404 from then on."""

    def __init__(self, edits: Callable[[str], int]) -> None:
        self._edits = edits

    def serve(self, exchange: Exchange, rest: str) -> None:
        """Send the page or 404."""
        gone = self._edits(exchange.path) > 0
        exchange.send(_status(404) if gone else Answer(latin_item("gone-after"), etag="here"))


class Status:
    """The status in `status/<code>` (200 to 599), with a short page."""

    def serve(self, exchange: Exchange, rest: str) -> None:
        """Send the status."""
        exchange.send(_status(_number(rest, 200, 599)))


class RetryAfter:
    """Status 429 with Retry-After on the first request for a path, then an item page.

    `<name>/<seconds>` sets the delay (2 by default); `dated` sends it as an HTTP date.
    """

    def __init__(self, dated: bool) -> None:
        self._dated = dated
        self._seen: set[str] = set()

    def serve(self, exchange: Exchange, rest: str) -> None:
        """Send 429 or the page."""
        if exchange.path in self._seen:
            exchange.send(Answer(latin_item("retry-after")))
            return
        seconds = _number(rest or "2", 0, 86400)
        self._seen.add(exchange.path)
        # Real time, not the site's clock: the client sleeps in real time.
        date = http_date(datetime.fromtimestamp(time.time() + seconds, UTC))
        exchange.send(_status(429, ("Retry-After", date if self._dated else str(seconds))))


class Always429:
    """Always status 429, with `Retry-After: 1`."""

    def serve(self, exchange: Exchange, rest: str) -> None:
        """Send 429."""
        exchange.send(_status(429, ("Retry-After", "1")))


class Flaky:
    """Status 503 twice, then an item page, counted per path."""

    def __init__(self) -> None:
        self._count: dict[str, int] = {}

    def serve(self, exchange: Exchange, rest: str) -> None:
        """Send 503 or the page."""
        count = self._count[exchange.path] = self._count.get(exchange.path, 0) + 1
        exchange.send(_status(503) if count <= 2 else Answer(latin_item("flaky")))


class Redirect:
    """A redirect to the path in `redirect/<code>/<target path>` on this site."""

    def serve(self, exchange: Exchange, rest: str) -> None:
        """Send the redirect."""
        code, _, target = rest.partition("/")
        exchange.send(_status(_number(code, 300, 399), ("Location", "/" + quote(target))))


class RedirectLoop:
    """A redirect to `redirect-loop/back`, and from there back to this page."""

    def serve(self, exchange: Exchange, rest: str) -> None:
        """Send the redirect."""
        there = "" if rest else "/back"
        exchange.send(_status(302, ("Location", f"/edge/item/redirect-loop{there}")))


class RedirectOffsite:
    """A redirect to a nonexistent host."""

    def serve(self, exchange: Exchange, rest: str) -> None:
        """Send the redirect."""
        exchange.send(_status(302, ("Location", OFFSITE)))


class HeadersFlood:
    """An item page with 400 headers of 100 bytes."""

    def serve(self, exchange: Exchange, rest: str) -> None:
        """Send the page."""
        flood = [(f"X-Flood-{n}", "x" * 100) for n in range(FLOOD_HEADERS)]
        exchange.send(Answer(latin_item("headers-flood"), headers=flood))


class Close:
    """A connection that is closed without an answer."""

    def serve(self, exchange: Exchange, rest: str) -> None:
        """Close the connection."""
        exchange.drop()


def _status(code: int, *headers: tuple[str, str]) -> Answer:
    body = f"<!DOCTYPE html><title>{code}</title><h2>Status {code}</h2>\n".encode()
    return Answer(body, status=code, headers=headers)


def _number(text: str, least: int, most: int) -> int:
    """Return the number in the text; raise ValueError if it is invalid or out of range."""
    number = int(text)
    if not least <= number <= most:
        raise ValueError(f"{number} is not from {least} to {most}")
    return number
