"""The Crawl-delay of robots.txt is obeyed up to a limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from statistics import median

import pytest

from tests.integration.harness import Db, Freshet, outcomes

DELAY_SECONDS = 0.4
ITEMS = 3
ROBOTS = f"User-agent: *\nCrawl-delay: {DELAY_SECONDS}\n"


class Site(BaseHTTPRequestHandler):
    """A site that notes the time and path of each request."""

    asked: list[tuple[float, str]] = []
    robots = ROBOTS

    def do_GET(self) -> None:
        self.asked.append((time.monotonic(), self.path))
        links = "".join(f"<a href=/item/{n}>{n}</a>" for n in range(ITEMS))
        text = self.robots if self.path == "/robots.txt" else f"<h1>{self.path}</h1>{links}"
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    Site.asked, Site.robots = [], ROBOTS
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def gaps(*, with_robots: bool) -> list[float]:
    times = sorted(at for at, path in Site.asked if with_robots or path != "/robots.txt")
    return [later - earlier for earlier, later in pairwise(times)]


@pytest.mark.parametrize("throttle", [False, True])
def test_crawl_delay_is_obeyed(freshet: Freshet, database: Db, url: str, throttle: bool) -> None:
    keys = {"start_urls": [f"{url}/list"], "item_pages": "/item/", "throttle": throttle}
    result = freshet.crawl(freshet.wrapper("shop", **keys))
    assert outcomes(database) == {"new": 1 + ITEMS}
    # A request that a busy machine answers late shortens the next gap.
    between = gaps(with_robots=True)
    assert median(between) > 0.9 * DELAY_SECONDS
    assert sum(between) > 0.8 * DELAY_SECONDS * len(between)
    assert min(between) > 0.25 * DELAY_SECONDS
    line = "Host 127.0.0.1 gets a request every 0.4 s, so at most 216,000 requests a day: "
    assert result.err.count(line) == 1


@pytest.mark.soak
def test_crawl_delay_is_obeyed_across_workers(
    freshet: Freshet, database: Db, url: str, redis: str
) -> None:
    definition = freshet.wrapper("shop", start_urls=[f"{url}/list"], item_pages="/item/")
    words = ("crawl", "site", "-a", f"wrapper={definition}")
    workers = [freshet.start(*words, REDIS_URL=redis) for _ in range(2)]
    for worker in workers:
        worker.communicate(timeout=60)
    assert outcomes(database) == {"new": 1 + ITEMS}
    # A worker that joins knows the delay only when it has read robots.txt.
    assert min(gaps(with_robots=False)) > 0.6 * DELAY_SECONDS


@pytest.mark.parametrize(
    ("keys", "settings"),
    [
        ({"robots": False}, {}),
        ({}, {"FRESHET_CRAWL_DELAY_SECONDS": 0}),
        ({}, {"FRESHET_CRAWL_DELAY_SECONDS": 0.05}),
    ],
)
def test_crawl_delay_is_limited(
    freshet: Freshet, database: Db, url: str, keys: dict[str, object], settings: dict[str, object]
) -> None:
    Site.robots = "User-agent: *\nCrawl-delay: 1000\n"
    start = {"start_urls": [f"{url}/list"], "item_pages": "/item/"}
    result = freshet.crawl(freshet.wrapper("shop", **start | keys), **settings)
    assert outcomes(database) == {"new": 1 + ITEMS}
    limited = "every 0.05 s (FRESHET_CRAWL_DELAY_SECONDS), so at most 1,728,000 requests a day"
    assert (limited in result.err) == (settings.get("FRESHET_CRAWL_DELAY_SECONDS") == 0.05)


@pytest.mark.parametrize("value", ["nan", "-1", "soon", ""])
def test_invalid_crawl_delay_is_ignored(
    freshet: Freshet, database: Db, url: str, value: str
) -> None:
    Site.robots = f"User-agent: *\nCrawl-delay: {value}\n"
    freshet.crawl(freshet.wrapper("shop", start_urls=[f"{url}/list"], item_pages="/item/"))
    assert outcomes(database) == {"new": 1 + ITEMS}
