"""The practice site of the tutorials: `make site`.

A shop whose pages change, and the feed of a blog, at http://127.0.0.1:8028. An hour of the site
passes in a minute, so a second crawl a few minutes after the first finds changes.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.site.world import START, Visit, World

PORT = 8028
ADDRESS = f"http://127.0.0.1:{PORT}"
# Site hours that pass in an hour.
SPEED = 60.0
# The site begins with a past: some items have come and gone.
BEGIN = START + timedelta(weeks=2, hours=9)
# The tutorial follows one item. By day, it changes about twice in an hour of the shop, so there is
# something to see after a few minutes.
FOLLOWED, FOLLOWED_PER_WEEK = 38, 100.0


class Front(BaseHTTPRequestHandler):
    """Serves the demo site's shop by the paths of the tutorials, and its blog as a feed."""

    protocol_version = "HTTP/1.1"
    world = World(per_week={FOLLOWED: FOLLOWED_PER_WEEK})
    # The one that changes most often is item 1.
    items = sorted(world.items, key=lambda item: (item.ends is not None, item.appears > START,
                                                  -item.per_week, item.number))  # fmt: skip
    now: Callable[[], datetime]

    def do_GET(self) -> None:
        """Answer a request with the page as it is now."""
        now = type(self).now()
        address = f"http://{self.headers.get('Host', '')}"
        if self.path == "/feed":
            self.reply(200, {"Content-Type": "application/rss+xml"}, self.feed(address, now))
            return
        page = self.world.page(self.renamed(self.path), now, Visit(address))
        if page is None:
            self.reply(404, {"Content-Type": "text/plain"}, b"No such page\n")
            return
        headers = {
            "Content-Type": page.content_type,
            "ETag": f'"{page.digest}"',
            "Last-Modified": format_datetime(page.last_modified, usegmt=True),
        }
        is_known = self.headers.get("If-None-Match") == headers["ETag"]
        self.reply(304 if is_known else 200, headers, self.rewritten(page.html))

    def reply(self, status: int, headers: dict[str, str], body: bytes) -> None:
        """Send a whole response."""
        self.send_response(status)
        body = b"" if status == 304 else body
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def renamed(self, path: str) -> str:
        """Return the demo site's path of a tutorial's path."""
        if match := re.fullmatch(r"/item/(\d{1,6})", path):
            number = int(match[1])
            return self.items[number - 1].path if 0 < number <= len(self.items) else "/none"
        if path in ("/sitemap.xml", "/robots.txt"):
            return f"/nothing{path}"
        return path.replace("/category/", "/shop/")

    def rewritten(self, text: str) -> bytes:
        """Return a page whose links have the tutorial's paths."""
        for number, item in enumerate(self.items, start=1):
            text = text.replace(item.path, f"/item/{number}")
        return text.replace("/shop/", "/category/").encode()

    def feed(self, address: str, now: datetime) -> bytes:
        """Return the newest posts of the demo site's blog as RSS."""
        posts = [post for post in self.world.posts if post.published <= now][:10]
        items = "".join(
            f"<item><title>{post.title}</title><link>{address}{post.path}</link>"
            f"<guid>{post.path}</guid><pubDate>{format_datetime(post.published)}</pubDate>"
            f"<description>{' '.join(post.body(now))}</description></item>"
            for post in posts
        )
        head = f"<title>Millrace</title><link>{address}/</link><description>Notes</description>"
        return f'<rss version="2.0"><channel>{head}{items}</channel></rss>'.encode()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def main() -> int:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(prog="make site", description=__doc__)
    parser.add_argument("--port", type=int, default=PORT, help=f"port (default: {PORT})")
    parser.add_argument(
        "--speed", type=float, default=SPEED, help=f"site hours in an hour (default: {SPEED:g})"
    )
    args = parser.parse_args()
    began = time.monotonic()
    Front.now = lambda: BEGIN + timedelta(seconds=(time.monotonic() - began) * args.speed)
    try:
        server = ThreadingHTTPServer(("127.0.0.1", args.port), Front)
    except OSError as error:
        print(f"make site: port {args.port}: {error.strerror}. Choose another: ARGS=--port=8030",
              file=sys.stderr)  # fmt: skip
        return 1
    address = f"http://127.0.0.1:{server.server_port}/"
    with server:
        print(f"The practice shop is at {address}, the feed of its blog at {address}feed.")
        print(f"An hour of the shop takes {60 / args.speed:g} min. Stop with Ctrl-C.", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
