"""Targets due in the next run: failed ones, and those with a changed site definition."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from tests.integration.databases import base, read_cells
from tests.integration.harness import Db, Freshet, Row, outcomes, target
from tests.integration.pushing import free_port
from tests.integration.raw_server import RawServer, page

pytestmark = pytest.mark.soak
ITEMS = 12
RSS = (
    b"<?xml version='1.0'?><rss version='2.0'><channel><title>A blog</title>"
    b"<item><guid>a</guid><title>A</title></item></channel></rss>"
)


class Flaky(BaseHTTPRequestHandler):
    """A list and items with a title and a price; a test sets the status of each path.

    Every page keeps the same ETag, so that a 304 would hide content that was not read before.
    """

    statuses: ClassVar[dict[str, int]] = {}
    headers_of: ClassVar[dict[str, str]] = {}
    asked: ClassVar[Counter[str]] = Counter()

    def do_GET(self) -> None:
        Flaky.asked[self.path] += self.path != "/robots.txt"
        status = self.statuses.get(self.path, 404 if self.path == "/robots.txt" else 200)
        if status == 200 and self.headers.get("If-None-Match"):
            status = 304
        body = b"" if status == 304 else self._body()
        self.send_response(status)
        for name, value in {"Content-Type": "text/html", "ETag": '"1"', **self.headers_of}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _body(self) -> bytes:
        if self.path.endswith(".xml"):
            return RSS
        if not self.path.startswith("/item/"):
            return b"<h1>list</h1>" + b"".join(b"<a href=/item/%d>x</a>" % i for i in range(ITEMS))
        return b"<h1>Item %s</h1><p class=price>5</p>" % self.path[6:].encode()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def flaky() -> Iterator[str]:
    """Run the server and yield its URL; every request gets a 200 at first."""
    Flaky.statuses.clear()
    Flaky.headers_of.clear()
    Flaky.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Flaky) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_pages_that_no_pattern_selects_any_more_are_retired(
    freshet: Freshet, database: Db, flaky: str
) -> None:
    kept = {f"/item/{n}": 1 for n in range(6, ITEMS)}
    freshet.crawl(shop(freshet, flaky))
    asked()
    edited = shop(freshet, flaky, not_item_pages=r"/item/[0-5]$")
    line = "no pattern selects 6 pages any more, so they are retired; 0 pages are selected again"
    assert line in freshet.crawl(edited, "-a", "full=1", hours=30).err
    assert asked() == kept | {"/list": 1}
    row = target(database, f"{flaky}/item/0")
    assert (row["retired"], row["gone"], row["requested"]) == (True, True, 1)
    assert "retired" not in freshet.crawl(edited, hours=60).err
    assert not {f"/item/{n}" for n in range(6)} & asked().keys()
    said = freshet("explain", f"{flaky}/item/0", COLUMNS="300").out
    assert "Retired: this URL is matched by no pattern of the site definition" in said
    assert database.posts.count_documents({"url": f"{flaky}/item/0"}) == 1
    line = "no pattern selects 0 pages any more, so they are retired; 6 pages are selected again"
    assert line in freshet.crawl(shop(freshet, flaky), hours=61).err
    assert {f"/item/{n}" for n in range(6)} <= asked().keys()
    assert "retired" not in target(database, f"{flaky}/item/0")


def test_former_start_urls_and_other_hosts_are_retired(
    freshet: Freshet, database: Db, flaky: str
) -> None:
    starts = [f"{flaky}/list", f"{flaky}/old", f"{flaky}/item/1"]
    freshet.crawl(shop(freshet, flaky, start_urls=starts))
    asked()
    edited = shop(freshet, flaky, start_urls=[f"{flaky}/list"])
    assert "no pattern selects 1 page any more, so it is retired" in freshet.crawl(edited).err
    freshet.crawl(edited, "-a", "full=1", hours=1)
    assert "/old" not in asked()
    assert "retired" not in target(database, f"{flaky}/item/1")


class Private(BaseHTTPRequestHandler):
    """A site that shows a login page without its cookie; every page keeps the same ETag."""

    asked: ClassVar[Counter[str]] = Counter()

    def do_GET(self) -> None:
        Private.asked[self.path] += 1
        is_in = "sid=s3cret" in (self.headers.get("Cookie") or "")
        is_in = is_in or self.headers.get("Authorization") == "Bearer s3cret"
        status = 304 if self.headers.get("If-None-Match") else 200
        if self.path == "/robots.txt":
            status = 404
        elif self.path.startswith("/home/") and not is_in:
            status = 302
        body = b"<title>Our shop</title><h1>Hello</h1><input type=password name=p><p>Who are you?"
        if is_in and self.path == "/list":
            body = b"<h1>list</h1><a href=/item/1>1</a><a href=/item/2>2</a>"
        elif is_in:
            body = b"<h1>Tea</h1><p>A cup of tea from the mountains, freshly brewed today.</p>"
        elif self.path == "/open/1":
            body = b"<h1>Open</h1><p>Everybody may read this page about tea and coffee.</p>"
        body = b"" if status == 304 else body
        self.send_response(status)
        login = "/" if self.path == "/home/1" else "/sign-in"
        for name, value in {"Content-Type": "text/html", "ETag": '"1"', "Location": login}.items():
            if name != "Location" or status == 302:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def private() -> Iterator[str]:
    """Run the private site and yield its URL."""
    Private.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Private) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    "keys", [{"cookies": {"sid": "${SID}"}}, {"headers": {"Authorization": "Bearer ${SID}"}}]
)
def test_pages_read_as_login_pages_are_due_after_a_cookie_is_added(
    freshet: Freshet, database: Db, private: str, keys: dict[str, object]
) -> None:
    # Pages that redirect to one login page seem to be one page.
    paths = ("/list", "/item/1", "/open/1", "/home/1", "/home/2", "/home/3")
    given: dict[str, object] = {
        "start_urls": [f"{private}{path}" for path in paths], "list_pages": "/list",
        "item_pages": "/(?:item|open|home)/", "cells": {
            "greeting": {"url": f"{private}/cell", "css": "h1"},
        },
    }  # fmt: skip

    def crawl(keys: dict[str, object]) -> str:
        wrapper = freshet.wrapper("shop", **keys)
        return freshet("crawl", "site", "-a", f"wrapper={wrapper}", SID="s3cret").err

    crawl(given)
    assert target(database, f"{private}/item/1")["outcome"] == "new", "not read as a page"
    Private.asked.clear()
    assert "nothing was due" in crawl(given)
    edited = given | keys
    crawl(edited)
    read = {path for path in Private.asked if path != "/robots.txt"}
    home = {"/home/1", "/home/2", "/home/3"}
    assert read == {"/list", "/item/1", "/item/2", "/cell"} | home
    for path in ("/item/1", "/item/2", *home):
        (post,) = database.posts.find({"url": f"{private}{path}"})
        assert "mountains" in str(post), post
    Private.asked.clear()
    assert "nothing was due" in crawl(edited)
    crawl(edited | {"robots": False})
    assert not Private.asked, "pages without doubt are due again"


def shop(freshet: Freshet, url: str, **keys: object) -> Path:
    given: dict[str, object] = {
        "start_urls": [f"{url}/list"], "item_pages": "/item/", "fields": {"title": "h1"},
    }  # fmt: skip
    return freshet.wrapper("shop", **given | keys)


def asked() -> dict[str, int]:
    """Return the number of requests by path since the last call."""
    counts = dict(+Flaky.asked)
    Flaky.asked.clear()
    return counts


def closing(err: str, name: str = "shop") -> str:
    """Return the closing line of a run."""
    (line,) = [
        line.partition(f"{name}: ")[2]
        for line in err.splitlines()
        if re.search(rf"(?:INFO|WARNING): {name}: (\d+ visited|nothing visited)", line)
    ]
    return line


def failing(count: int, status: int = 500) -> None:
    """Answer the first `count` items with this status from now on."""
    Flaky.statuses.update({f"/item/{i}": status for i in range(count)})


NO_RETRY = ("-s", "RETRY_ENABLED=0")


# Failed targets.


def test_failed_pages_are_retried_in_two_runs_and_then_wait(
    freshet: Freshet, database: Db, flaky: str
) -> None:
    wrapper = shop(freshet, flaky)
    failing(3)
    first = closing(freshet.crawl(wrapper, *NO_RETRY).err)
    assert "13 visited: 10 new" in first
    assert "; 3 failed and will be retried in the next run" in first
    assert "accuracy" not in first, "13 pages are too few"
    asked()
    for again in (True, True, False):
        line = closing(freshet.crawl(wrapper, *NO_RETRY).err)
        expected = {f"/item/{i}": 1 for i in range(3)} if again else {}
        assert asked() == expected
        assert ("3 failed and will be retried in the next run" in line) == (
            again and target(database, f"{flaky}/item/0")["consecutive_errors"] < 3
        )
    assert line.startswith("nothing visited: nothing was due; 13 of 13 targets not due until ")
    assert "; to fetch them all now, add -a full=1" in line
    assert re.search(r"; 3 of these failed before and are retried from .* UTC \(in \d+ min\)", line)
    Flaky.statuses.clear()
    freshet.crawl(wrapper, *NO_RETRY, hours=1.1)
    assert asked() == {f"/item/{i}": 1 for i in range(3)}


def test_a_server_that_is_down_is_given_up_for_the_run(
    freshet: Freshet, database: Db, flaky: str
) -> None:
    port = free_port()
    urls = [f"http://127.0.0.1:{port}/item/{i}" for i in range(60)]
    wrapper = freshet.wrapper("shop", start_urls=urls, item_pages="/item/", concurrency=4)
    down = freshet.crawl(wrapper, "-s", "RETRY_TIMES=1", code=1)
    (warning,) = [line for line in down.err.splitlines() if " WARNING: Host " in line]
    assert "Host 127.0.0.1 is unreachable, so this run visits no more of its pages: " in warning
    assert not re.search(r"WARNING: http\S+/item/\d+: error", down.err)
    failed = database.targets.count_documents({"outcome": "error"})
    assert 0 < failed < 40
    assert f"; {60 - failed} still due because their hosts were unavailable" in closing(down.err)
    reason = database.targets.find_one({"outcome": "error"})["last_visit"]["reason"]
    assert "refused" in reason or "cannot be reached" in reason

    with ThreadingHTTPServer(("127.0.0.1", port), Flaky) as server:
        threading.Thread(target=server.serve_forever).start()
        assert closing(freshet.crawl(wrapper).err).startswith("60 visited: 60 new")
        server.shutdown()


@pytest.mark.parametrize("status", [403, 429])
def test_blocked_page_is_not_retried_in_the_next_run(
    freshet: Freshet, database: Db, flaky: str, status: int
) -> None:
    wrapper = shop(freshet, flaky)
    failing(1, status)
    line = closing(freshet.crawl(wrapper).err)
    assert "1 blocked" in line
    assert "due at the next run" not in line
    asked()
    line = closing(freshet.crawl(wrapper).err)
    assert asked() == {}
    assert "1 of these failed before and are retried from" in line


def test_a_feed_that_failed_is_due_at_the_next_run(
    freshet: Freshet, database: Db, flaky: str
) -> None:
    assert freshet("feeds", "add", f"{flaky}/feed.xml").code == 0
    asked()
    Flaky.statuses["/feed.xml"] = 500
    crawl = ("crawl", "feeds", "-s", "DOWNLOAD_DELAY=0", *NO_RETRY)
    assert "1 failed and will be retried" in closing(freshet(*crawl).err, "feeds")
    Flaky.statuses.clear()
    assert "1 visited: 1 new" in closing(freshet(*crawl).err, "feeds")
    assert asked() == {"/feed.xml": 2}
    assert "nothing visited: nothing was due; 1 of 1 target" in closing(
        freshet(*crawl).err, "feeds"
    )


def test_a_cell_that_failed_is_due_at_the_next_run(
    freshet: Freshet, database: Db, flaky: str
) -> None:
    cell = f'[cells.one]\nurl = "{flaky}/item/1"\ncss = "h1"\nevery = "2h"\n'
    failing(2)
    read_cells(freshet, cell, *NO_RETRY, code=1)
    Flaky.statuses.clear()
    read_cells(freshet, cell)
    assert asked() == {"/item/1": 2}
    assert base(database)["one"]["content"] == {"value": "Item 1"}


# Changed site definitions.


def test_edit_of_fields_makes_items_due_but_not_lists(
    freshet: Freshet, database: Db, flaky: str
) -> None:
    freshet.crawl(shop(freshet, flaky))
    asked()
    edited = shop(freshet, flaky, fields={"title": "h1", "price": "p.price"})
    log = freshet.crawl(edited).err
    assert "site definition changed since the last run" in log
    assert asked() == {f"/item/{i}": 1 for i in range(ITEMS)}
    assert database.posts.distinct("fields.price") == ["5"], "a 304 does not hide the new field"
    assert "nothing was due" in closing(freshet.crawl(edited).err)
    assert asked() == {}


def test_edit_makes_repeatedly_failed_pages_due(freshet: Freshet, database: Db, flaky: str) -> None:
    wrong = shop(freshet, flaky, fields={"title": "h7"})
    for _ in range(3):
        freshet.crawl(wrong, code=1)
    assert outcomes(database)["error"] == 3 * ITEMS
    assert "nothing was due" in closing(freshet.crawl(wrong).err)
    log = freshet.crawl(shop(freshet, flaky)).err
    assert f"due again: {ITEMS} targets that failed and 0 others" in log
    assert f"{ITEMS} visited: {ITEMS} new" in closing(log)


def test_edit_of_patterns_makes_lists_due(freshet: Freshet, flaky: str) -> None:
    freshet.crawl(shop(freshet, flaky, item_pages=r"/item/\d$"))
    asked()
    freshet.crawl(shop(freshet, flaky, item_pages=r"/item/\d+$"))
    assert asked() == {"/list": 1, "/item/10": 1, "/item/11": 1}


def test_edit_of_headers_makes_only_failed_pages_due(freshet: Freshet, flaky: str) -> None:
    failing(2, 403)
    freshet.crawl(shop(freshet, flaky))
    asked()
    Flaky.statuses.clear()
    freshet.crawl(shop(freshet, flaky, headers={"Accept-Language": "en"}))
    assert asked() == {"/item/0": 1, "/item/1": 1}


@pytest.mark.parametrize(
    "keys", [{"weight": 2.0}, {"item_interval_hours": 5}, {"delay_seconds": 0.001}]
)
def test_edit_of_other_keys_makes_nothing_due(freshet: Freshet, flaky: str, keys: Row) -> None:
    failing(1, 403)
    freshet.crawl(shop(freshet, flaky))
    asked()
    freshet.crawl(shop(freshet, flaky, **keys))
    assert asked() == {}


def test_edit_does_not_shorten_retry_after(freshet: Freshet, database: Db, flaky: str) -> None:
    Flaky.headers_of["Retry-After"] = "7200"
    failing(ITEMS, 429)
    freshet.crawl(shop(freshet, flaky))
    asked()
    log = freshet.crawl(shop(freshet, flaky, fields={"title": "h2"})).err
    assert asked() == {}
    line = closing(log)
    held = r"nothing visited: \d+ targets are still due because 127.0.0.1 is paused until .* UTC"
    assert re.match(rf"{held} \(in (2|1\.9) h\)", line)


def test_edit_does_not_make_missing_pages_due(freshet: Freshet, database: Db, flaky: str) -> None:
    failing(1, 404)
    freshet.crawl(shop(freshet, flaky))
    asked()
    freshet.crawl(shop(freshet, flaky, fields={"price": "p.price"}))
    assert "/item/0" not in asked()


def test_changed_arguments_are_an_edit_of_the_definition(freshet: Freshet, flaky: str) -> None:
    words = ("-a", "name=shop", "-a", f"start_urls={flaky}/list", "-s", "AUTOTHROTTLE_ENABLED=0")
    assert freshet("crawl", "site", *words, "-a", r"item_pages=/item/\d$").code == 0
    asked()
    assert freshet("crawl", "site", *words, "-a", r"item_pages=/item/\d+$").code == 0
    assert asked() == {"/list": 1, "/item/10": 1, "/item/11": 1}


SPIDER = """
from crawler.extract.fields import text
from spiders.wrapper import WrapperSpider

class Shop(WrapperSpider):
    name = "shop"
    start_urls = ["{url}/list"]
    item_pages = "/item/"
    throttle = False
    fields = {{"title": text("{selector}")}}

    def read_item(self, response):
        return super().read_item(response) | {{"more": "{more}"}}
"""


def test_edit_of_spider_class_makes_items_due(freshet: Freshet, database: Db, flaky: str) -> None:
    for selector, more in (("h1", "a"), ("h1", "b"), (".price", "b")):
        asked()
        code = SPIDER.format(url=flaky, selector=selector, more=more)
        freshet.crawl_spider(code, "shop")
        assert len([path for path in asked() if path.startswith("/item/")]) == ITEMS
        assert database.posts.distinct("fields.more") == [more]
    assert database.posts.distinct("fields.title") == ["5"]
    assert "nothing was due" in closing(freshet.crawl_spider(code, "shop").err)
    assert outcomes(database)["changed"] == 0, "an edit is not a change of a page"


def test_edit_of_cell_makes_only_this_cell_due(freshet: Freshet, database: Db, flaky: str) -> None:
    cell = '[cells.{}]\nurl = "{}/item/{}"\ncss = "{}"\n'
    other = cell.format("other", flaky, 2, "h1")
    read_cells(freshet, cell.format("one", flaky, 1, "h1") + other)
    asked()
    read_cells(freshet, cell.format("one", flaky, 1, "p.price") + other)
    assert asked() == {"/item/1": 1}
    assert base(database)["one"]["content"] == {"value": "5"}


# Several workers.


def workers(freshet: Freshet, wrapper: Path, redis: str, *args: str) -> list[str]:
    """Run two workers of one run and return their logs."""
    words = ("crawl", "site", "-a", f"wrapper={wrapper}", *NO_RETRY, *args)
    started = [freshet.start(*words, REDIS_URL=redis) for _ in range(2)]
    logs = [worker.communicate(timeout=60)[1] for worker in started]
    assert [worker.returncode for worker in started] == [0, 0], logs
    return logs


def test_workers_of_shared_run_fetch_failed_and_edited_targets(
    freshet: Freshet, database: Db, flaky: str, redis: str
) -> None:
    failing(3)
    workers(freshet, shop(freshet, flaky), redis)
    asked()
    Flaky.statuses.clear()
    workers(freshet, shop(freshet, flaky), redis)
    assert asked() == {f"/item/{i}": 1 for i in range(3)}
    workers(freshet, shop(freshet, flaky, fields={"price": "p.price"}), redis)
    assert asked() == {f"/item/{i}": 1 for i in range(ITEMS)}
    assert database.posts.distinct("fields.price") == ["5"]


def test_a_full_run_of_several_workers_ignores_the_caps(
    freshet: Freshet, database: Db, flaky: str, redis: str
) -> None:
    wrapper = shop(freshet, flaky)
    freshet.crawl(wrapper)
    at = database.runs.find_one()["started"]
    plan = {"at": at, "state": "active", "spiders": ["shop"], "daily_cap": 2, "hourly_cap": 1}
    database.plans.insert_one(plan)
    asked()
    log = "".join(workers(freshet, wrapper, redis, "-a", "full=1"))
    assert len(asked()) == 1 + ITEMS
    ignored = "full run: the plan's cap of 2 requests a day and 1 request an hour was ignored"
    # A worker that starts late begins a run of its own.
    runs = database.runs.count_documents({"full": True})
    assert log.count(ignored) == runs >= 1
    assert "-a full=1 is ignored" not in log
    assert database.runs.find_one(sort=[("started", -1)])["full"] is True


def test_worker_that_joins_a_run_logs_that_full_is_ignored(
    freshet: Freshet, database: Db, flaky: str, redis: str
) -> None:
    wrapper = shop(freshet, flaky, delay_seconds=0.3, concurrency=1)
    words = ("crawl", "site", "-a", f"wrapper={wrapper}")
    first = freshet.start(*words, REDIS_URL=redis)
    while not database.visits.count_documents({}):
        assert first.returncode is None
        time.sleep(0.02)
    second = freshet(*words, "-a", "full=1", REDIS_URL=redis)
    assert "-a full=1 ignored, because this worker joined a run in progress" in second.err
    first.communicate(timeout=60)


# The closing line.


def test_accuracy_is_logged_only_after_enough_fetches(freshet: Freshet, flaky: str) -> None:
    two = "/(item|more)/"
    starts = [f"{flaky}/list", *(f"{flaky}/list/{i}" for i in range(10))]
    failing(3)
    wrapper = shop(freshet, flaky, start_urls=starts, item_pages=two)
    log = freshet.crawl(wrapper, *NO_RETRY).err
    assert (
        "; accuracy 86.96% (20 of the 23 could be read; the others failed, were blocked or "
        "are gone)"
    ) in closing(log)
    assert "'freshet/accuracy': 0.869" in log
    log = freshet.crawl(wrapper, *NO_RETRY).err
    assert "accuracy" not in log


@pytest.mark.parametrize(
    ("args", "keys", "why"),
    [
        (
            ("-a", "limit=5"), {},
            "-a limit=5 was reached (run again to continue, or omit the limit)",
        ),
        (
            (), {"host_requests": 5, "robots": False},
            "a host gets at most 5 requests in a run (host_requests in the site definition, or "
            "FRESHET_HOST_REQUESTS)",
        ),
        (
            ("-s", "CLOSESPIDER_PAGECOUNT=2"), {"concurrency": 1, "delay_seconds": 0.2},
            "the run ended early (CLOSESPIDER_PAGECOUNT=2)",
        ),
    ],
    ids=["limit", "host", "ended"],
)  # fmt: skip
def test_closing_line_explains_why_targets_are_still_due(
    freshet: Freshet, flaky: str, args: tuple[str, ...], keys: Row, why: str
) -> None:
    line = closing(freshet.crawl(shop(freshet, flaky, **keys), *args).err)
    assert re.search(rf"; \d+ still due because {re.escape(why)}$", line), line


def test_closing_line_shows_when_site_opens(freshet: Freshet, flaky: str) -> None:
    now = datetime.now(UTC)
    hour = (now + timedelta(hours=2)).hour
    window = f"{hour:02}:00-{(hour + 1) % 24 or 24:02}:00"
    line = closing(freshet.crawl(shop(freshet, flaky, visiting_hours=[window])).err)
    opens = (now + timedelta(hours=2)).strftime("%Y-%m-%d %H:00 UTC")
    assert line.startswith(
        "nothing visited: 1 target is still due because visiting_hours or blackout of the site "
        f"allow no visits until {opens}"
    )
    assert asked() == {}


def test_a_site_whose_pages_are_all_gone_has_nothing_to_fetch(freshet: Freshet, flaky: str) -> None:
    Flaky.statuses["/list"] = 404
    wrapper = shop(freshet, flaky)
    freshet.crawl(wrapper, code=1, FRESHET_GONE_CONFIRMATIONS=1)
    line = closing(freshet.crawl(wrapper).err)
    assert line == (
        "nothing visited: no targets, or all are gone (scrapy targets --urls lists them; to fetch "
        "them all now, add -a full=1)"
    )


@pytest.mark.parametrize(("status", "is_given_up"), [(503, True), (500, False)])
def test_a_host_without_a_server_is_given_up_for_the_run(
    freshet: Freshet, database: Db, status: int, is_given_up: bool
) -> None:
    with RawServer() as server:
        urls = [f"{server.url}/item/{i}" for i in range(40)]
        server.answers = {f"/item/{i}": page("", status=f"{status} Down") for i in range(40)}
        wrapper = freshet.wrapper(
            "shop", start_urls=urls, item_pages="/item/", concurrency=2, robots=False
        )
        freshet.crawl(wrapper, "-s", "RETRY_TIMES=1", code=1)
        assert (len(server.asked) < 20) is is_given_up
    waiting = database.targets.count_documents({"requested": 0})
    assert (waiting > 20) is is_given_up, "targets that were not requested stay due"
