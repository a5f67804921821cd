"""The demo site as a web server: `python -m tests.site.server`."""

from __future__ import annotations

import argparse
import itertools
import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import unquote

from twisted.web.server import Request

from tests.site import big, edge, practice, serving
from tests.site.clock import FileClock
from tests.site.exchange import Answer, Exchange, RequestLog
from tests.site.world import Visit, World

EDIT = "/-/edit"
NOT_FOUND = Answer(b"<!DOCTYPE html><h1>No such page</h1>\n", status=404)


@dataclass(frozen=True)
class Edit:
    """The number of manual edits of a page, and the time of the last one (site time)."""

    count: int
    at: datetime


class DemoSite:
    """Answer requests for the shop, the blog and the other mounted parts."""

    def __init__(self, world: World, clock: FileClock, quick_big: bool, hosts: bool) -> None:
        self._world = world
        self._clock = clock
        self._edits: dict[str, Edit] = {}
        self._tokens = itertools.count(1)
        self._quick_big = quick_big
        self._hosts = hosts
        self._edge = edge.EdgeSite(self.edits)

    def edits(self, path: str) -> int:
        """Return the number of manual edits of the page."""
        edit = self._edits.get(path)
        return 0 if edit is None else edit.count

    def quick(self, request: Request) -> bytes | None:
        """Answer a /big/ page without a log line, unless big pages are logged."""
        if self._quick_big and request.uri.startswith(b"/big/"):
            return big.answer(request, self.edits)
        return None

    def handle(self, exchange: Exchange) -> None:
        """Answer a request."""
        path = exchange.path
        if self._hosts and exchange.hostname in practice.HOSTS:
            self._practice(exchange)
        elif exchange.method == "POST" and path.startswith(f"{EDIT}/"):
            self._edit(exchange, path.removeprefix(EDIT))
        elif path.startswith("/big/"):
            body = big.answer(exchange.request, self.edits)
            exchange.write(body)
            exchange.finish()
        elif path.startswith("/edge/"):
            self._edge.handle(exchange)
        else:
            self._page(exchange)

    def _page(self, exchange: Exchange) -> None:
        path, now = unquote(exchange.path), self._clock.now()
        edit = self._edits.get(path)
        token = f"{next(self._tokens):08x}"
        base = f"http://{exchange.host}"
        page = self._world.page(path, now, Visit(base, token, edit.count if edit else 0))
        if page is None:
            exchange.send(NOT_FOUND)
            return
        modified = max(page.last_modified, edit.at) if edit else page.last_modified
        body = page.html.encode()
        exchange.send(
            Answer(body, page.content_type, 200, page.digest, last_modified=modified, date=now)
        )

    def _practice(self, exchange: Exchange) -> None:
        html = practice.page(exchange.hostname, unquote(exchange.path))
        exchange.send(NOT_FOUND if html is None else Answer(html.encode()))

    def _edit(self, exchange: Exchange, path: str) -> None:
        now, last = self._clock.now().replace(microsecond=0), self._edits.get(path)
        # The clock may stand still between two edits, but Last-Modified must change.
        at = max(now, last.at + timedelta(seconds=1)) if last else now
        count = self.edits(path) + 1
        self._edits[path] = Edit(count, at)
        text = json.dumps({"path": path, "edits": count})
        exchange.send(Answer(text.encode(), "application/json"))


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    options = argparse.ArgumentParser(prog="python -m tests.site.server", description=__doc__)
    options.add_argument("--port", type=int, default=0, help="port (0: any free port)")
    options.add_argument("--clock", type=Path, help="clock file, with the site's time")
    options.add_argument("--log", type=Path, help="request log, one JSON line per request")
    options.add_argument("--seed", type=int, default=7)
    options.add_argument("--items", type=int, default=200)
    options.add_argument("--priced", action="store_true", help="lists show prices and stocks")
    options.add_argument("--log-big", action="store_true", help="also log /big/ pages (slower)")
    options.add_argument("--practice", action="store_true", help="also serve the practice hosts")
    return options


def main() -> None:
    """Serve until SIGTERM."""
    args = parser().parse_args()
    world = World(seed=args.seed, items=args.items, priced=args.priced)
    clock = FileClock(args.clock, world.start)
    site = DemoSite(world, clock, quick_big=not args.log_big, hosts=args.practice)
    serving.run(site, RequestLog(args.log), args.port)


if __name__ == "__main__":
    main()
