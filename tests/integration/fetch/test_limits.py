"""Limits of a run: the next run continues with the remaining targets."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path

import pytest

from tests.integration.harness import Db, Freshet, asked
from tests.site.running import RunningSite

pytestmark = pytest.mark.soak

PAGES = 31  # 30 items and their list


@pytest.fixture
def wrapper(freshet: Freshet, site: RunningSite) -> Path:
    return big_wrapper(freshet, site)


def big_wrapper(freshet: Freshet, site: RunningSite, **keys: object) -> Path:
    return freshet.wrapper(
        "big",
        start_urls=[f"{site.url}/big/{PAGES - 1}/list/1/"],
        item_pages=r"/big/\d+/item/",
        fields={"title": "h1"},
        **keys,
    )


def test_limit_is_obeyed_and_next_runs_continue(
    freshet: Freshet, database: Db, site: RunningSite, wrapper: Path
) -> None:
    for visits in (12, 24, PAGES):
        freshet.crawl(wrapper, "-a", "limit=12")
        assert database.visits.count_documents({}) == visits
    assert asked(site).total() == len(asked(site)) == PAGES, "each page is requested once"


def test_limit_applies_to_full_run(freshet: Freshet, database: Db, wrapper: Path) -> None:
    freshet.crawl(wrapper)
    freshet.crawl(wrapper, "-a", "full=1", "-a", "limit=5", hours=30)
    assert database.targets.count_documents({"requested": 2}) == 5


def test_host_cap_ends_run_and_next_run_continues(
    freshet: Freshet, database: Db, site: RunningSite, wrapper: Path
) -> None:
    visits = 0
    for _ in range(3):
        site.clear_log()
        result = freshet.crawl(wrapper, FRESHET_HOST_REQUESTS=15)
        assert len(site.requests()) <= 15, "robots.txt counts as well"
        assert "Traceback" not in result.err
        assert database.visits.count_documents({}) - visits == asked(site).total()
        visits = database.visits.count_documents({})
    assert visits == database.posts.count_documents({}) + 1 == PAGES


def test_pages_skipped_by_cap_are_not_errors(freshet: Freshet, database: Db, wrapper: Path) -> None:
    freshet.crawl(wrapper, FRESHET_HOST_REQUESTS=10)
    assert set(database.visits.distinct("outcome")) == {"new"}
    assert database.targets.count_documents({"consecutive_errors": {"$gt": 0}}) == 0


def test_site_definition_may_cap_its_host(
    freshet: Freshet, site: RunningSite, database: Db
) -> None:
    wrapper = big_wrapper(freshet, site, host_requests=7)
    freshet.crawl(wrapper, FRESHET_HOST_REQUESTS=20)
    assert len(site.requests()) == 7
    assert database.visits.count_documents({}) == 6


def test_small_batches_store_all_pages(
    freshet: Freshet, database: Db, site: RunningSite, wrapper: Path
) -> None:
    freshet.crawl(wrapper, FRESHET_COMMIT_SIZE=1, FRESHET_COMMIT_MS=0, FRESHET_IN_FLIGHT=1)
    assert database.posts.count_documents({}) == PAGES - 1
    assert asked(site).total() == PAGES


class SlowSite(BaseHTTPRequestHandler):
    """Serve a slow site of one list and twelve items, and count simultaneous requests."""

    active, peak = 0, 0
    lock = threading.Lock()

    def do_GET(self) -> None:
        with self.lock:
            SlowSite.active += 1
            SlowSite.peak = max(SlowSite.peak, SlowSite.active)
        # Long enough for the next requests to arrive on a busy machine.
        time.sleep(0.4)
        body = b"<h1>a</h1>" + b"".join(b"<a href=/item/%d>x</a>" % i for i in range(12))
        self.send_response(200 if "robots" not in self.path else 404)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        with self.lock:
            SlowSite.active -= 1
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Suppress the request log."""


@pytest.mark.parametrize("maximum", [1, 3])
def test_concurrency_of_site_definition_is_obeyed(freshet: Freshet, maximum: int) -> None:
    SlowSite.peak = 0
    with ThreadingHTTPServer(("127.0.0.1", 0), SlowSite) as server:
        threading.Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        keys = {"start_urls": [url], "item_pages": "/item/", "fields": {"title": "h1"}}
        freshet.crawl(freshet.wrapper("narrow", **keys, concurrency=maximum))
        server.shutdown()
    assert SlowSite.peak == maximum


def test_delay_between_requests_is_obeyed(freshet: Freshet, site: RunningSite) -> None:
    wrapper = freshet.wrapper(
        "slow",
        start_urls=[f"{site.url}/big/3/list/1/"],
        item_pages=r"/big/\d+/item/",
        fields={"title": "h1"},
        delay_seconds=2,
        concurrency=1,
    )
    freshet.crawl(wrapper)
    times = [request["at"] for request in site.requests()]
    assert len(times) == 5
    # Scrapy varies the delay between 0.5 and 1.5 times the configured value.
    assert min(after - before for before, after in pairwise(times)) >= 0.95
