"""A site that answers faster than crawlers request: `python -m tests.site.quick --items 20000`.

`/` links all list pages, `/list/<n>/` links 200 items, `/item/<i>.html` is an item of about 5 kB.
The site can delay its answers, change on its own and grow. It logs each request on one line: the
time of the request and of the answer, the user agent, and whether the answer could be sent.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from tests.site import big

A_PAGE = 200
# How often items change, in units of `changes_seconds`; every fourth item never changes.
PERIODS = (1, 4, 16, 0)
# For rewritten pages: the offset of the item whose text comes next, and the length of the cycle.
STEP, TEXTS = 41, 3
LOG_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND
END = b"\r\n\r\n"
AGENT = re.compile(rb"\r\nuser-agent: *([^\r]*)", re.I)
TAG = re.compile(rb"\r\nif-none-match: *([^\r]*)", re.I)
LIST = re.compile(rb"/list/([1-9]\d{0,6})/")
ITEM = re.compile(rb"/item/([1-9]\d{0,8})\.html")
MISSING = b"<!DOCTYPE html><h1>No such page</h1>\n"


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages of the site after a number of seconds.

    changes_seconds:  seconds between changes of the most frequently changing items; 0: no changes
    arrivals_seconds: seconds between new items; 0: no new items
    rewrites:         each change shows the text of another item, for a while
    """

    items: int
    changes_seconds: float = 0.0
    arrivals_seconds: float = 0.0
    rewrites: bool = False

    def page(self, path: bytes, seconds: float) -> tuple[bytes, int] | None:
        """Return a page and its number of changes; None for a 404."""
        items = self._items(seconds)
        if path == b"/":
            return _links(b"Lists", b"list", range(1, _lists(items) + 1)), _lists(items)
        if (found := LIST.fullmatch(path)) and (number := int(found[1])) <= _lists(items):
            last = min(number * A_PAGE, items)
            numbers = range((number - 1) * A_PAGE + 1, last + 1)
            return _links(b"List %d" % number, b"item", numbers), last
        if (found := ITEM.fullmatch(path)) and (number := int(found[1])) <= items:
            edits = self._edits(number, seconds)
            shown = number + (STEP * (edits % TEXTS) if self.rewrites else 0)
            return big.item_page(shown, edits), edits
        return None

    def paths(self) -> Iterator[str]:
        """Return the paths of all initial pages, the items last."""
        yield "/"
        yield from (f"/list/{n}/" for n in range(1, _lists(self.items) + 1))
        yield from (f"/item/{n}.html" for n in range(1, self.items + 1))

    def _items(self, seconds: float) -> int:
        return self.items + int(self.arrivals_seconds and seconds / self.arrivals_seconds)

    def _edits(self, item: int, seconds: float) -> int:
        period = self.changes_seconds * PERIODS[item % len(PERIODS)]
        # Spread the changes over the period.
        return int(period and (seconds + item % 97 / 97 * period) / period)


def _lists(items: int) -> int:
    return -(-items // A_PAGE)


def _links(name: bytes, kind: bytes, numbers: range) -> bytes:
    end = b".html" if kind == b"item" else b"/"
    links = b"\n".join(
        b'<li class="%s"><a href="/%s/%d%s">%d</a></li>' % (kind, kind, n, end, n) for n in numbers
    )
    return big.framed(name, b"<h2>%s</h2>\n<ul>\n%s\n</ul>" % (name, links))


class Site:
    """Serve the pages and write the log."""

    def __init__(self, pages: Pages, log: Path | None, delay_seconds: float) -> None:
        self.pages, self._delay = pages, delay_seconds
        self._began = time.monotonic()
        self._log = None if log is None else os.open(log, LOG_FLAGS, 0o644)

    def delay(self) -> float:
        """Return the delay of the next answer in seconds: 0.5 to 1.5 times the mean."""
        return self._delay * random.uniform(0.5, 1.5)

    def answer(self, head: bytes) -> tuple[int, bytes]:
        """Return the status and the complete response for a request."""
        path = head.split(b" ", 2)[1]
        if (found := self.pages.page(path, time.monotonic() - self._began)) is None:
            return 404, _response(b"404 Not Found", MISSING)
        body, edits = found
        tag = b'"%08x-%d"' % (crc32(path), edits)
        if (asked := TAG.search(head)) and asked[1] == tag:
            return 304, b"HTTP/1.1 304 Not Modified\r\nETag: %s%s" % (tag, END)
        return 200, _response(b"200 OK", body, b"ETag: %s\r\n" % tag)

    def note(self, head: bytes, asked: float, status: int, *, complete: bool) -> None:
        """Write a line to the log. asked: Unix time of the request in seconds."""
        if self._log is None:
            return
        agent = AGENT.search(head)
        row = {
            "at": asked, "answered": time.time(), "status": status, "complete": complete,
            "path": head.split(b" ", 2)[1].decode("latin-1"),
            "agent": agent[1].decode("latin-1") if agent else "",
        }  # fmt: skip
        os.write(self._log, json.dumps(row).encode() + b"\n")


def _response(status: bytes, body: bytes, more: bytes = b"") -> bytes:
    kind = b"Content-Type: text/html; charset=utf-8\r\n"
    length = b"Content-Length: %d" % len(body)
    return b"HTTP/1.1 %s\r\n%s%s%s%s%s" % (status, kind, more, length, END, body)


class Connection(asyncio.Protocol):
    """A connection, whose requests are answered one after the other."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._data = b""
        self._head: bytes | None = None
        self._asked = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._head is not None:
            self._site.note(self._head, self._asked, 0, complete=False)
            self._head = None

    def data_received(self, data: bytes) -> None:
        self._data += data
        if self._head is None:
            self._next()

    def _next(self) -> None:
        head, end, rest = self._data.partition(END)
        if not end:
            return
        self._head, self._data, self._asked = head, rest, time.time()
        if delay := self._site.delay():
            asyncio.get_running_loop().call_later(delay, self._answer)
        else:
            self._answer()

    def _answer(self) -> None:
        if self._head is None:  # The client has disconnected.
            return
        status, text = self._site.answer(self._head)
        # Log first: a client that has the answer can already read its line in the log.
        self._site.note(self._head, self._asked, status, complete=True)
        self._transport.write(text)
        self._head = None
        self._next()


async def serve(site: Site, port: int) -> None:
    """Listen, print the address on one line, and serve until SIGTERM."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    server = await loop.create_server(lambda: Connection(site), "127.0.0.1", port, backlog=1000)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await ended.wait()


def main() -> None:
    """Serve until SIGTERM."""
    options = argparse.ArgumentParser(prog="python -m tests.site.quick", description=__doc__)
    options.add_argument("--items", type=int, default=20_000)
    options.add_argument("--port", type=int, default=0, help="port (0: any free port)")
    options.add_argument("--log", type=Path, help="request log, one JSON line per request")
    options.add_argument("--delay-ms", type=float, default=0.0, help="mean response time")
    options.add_argument("--changes-seconds", type=float, default=0.0, help="between changes")
    options.add_argument(
        "--arrivals-seconds", type=float, default=0.0, help="seconds between new items"
    )
    options.add_argument(
        "--rewrites", action="store_true", help="each change shows the text of another item"
    )
    args = options.parse_args()
    pages = Pages(args.items, args.changes_seconds, args.arrivals_seconds, args.rewrites)
    asyncio.run(serve(Site(pages, args.log, args.delay_ms / 1000), args.port))


if __name__ == "__main__":
    main()
