"""The quick site: its pages, their changes, its growth, and its log."""

from __future__ import annotations

import socket
import time
from http.client import HTTPConnection, HTTPMessage
from urllib.parse import urlsplit

import pytest
from parsel import Selector

from tests.bench.asking import pages_per_second
from tests.site.big import item_page
from tests.site.quick import Pages
from tests.site.running import RunningQuick


def get(site: RunningQuick, path: str, **headers: str) -> tuple[int, HTTPMessage, bytes]:
    connection = HTTPConnection(urlsplit(site.url).netloc, timeout=10)
    connection.request("GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()})
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, response.headers, body


def links(body: bytes) -> list[str]:
    return Selector(body.decode()).css("main a::attr(href)").getall()


def test_all_pages_are_linked() -> None:
    with RunningQuick(450) as site:
        lists = links(get(site, "/")[2])
        items = [path for list_page in lists for path in links(get(site, list_page)[2])]
        assert ["/", *lists, *items] == list(Pages(450).paths())
        assert get(site, items[-1])[0] == 200
        assert [get(site, path)[0] for path in ("/item/451.html", "/list/4/", "/x")] == [404] * 3


def test_log_has_user_agent_path_and_times() -> None:
    with RunningQuick(5, "--delay-ms", "100") as site:
        status, headers, _ = get(site, "/item/1.html", User_Agent="worker-3")
        assert status == 200
        again = get(site, "/item/1.html", If_None_Match=headers["ETag"])
        assert (again[0], again[2]) == (304, b"")
        first, second = site.requests()
        assert site.answers() == 2
    assert (first["agent"], first["path"], first["complete"]) == ("worker-3", "/item/1.html", True)
    assert first["answered"] - first["at"] >= 0.05
    assert second["status"] == 304


def test_abandoned_request_is_logged_as_incomplete() -> None:
    with RunningQuick(5, "--delay-ms", "1000") as site:
        address = urlsplit(site.url)
        with socket.create_connection((address.hostname, address.port)) as connection:
            connection.sendall(b"GET /item/1.html HTTP/1.1\r\n\r\n")
        deadline = time.monotonic() + 10
        while not site.answers() and time.monotonic() < deadline:
            time.sleep(0.01)
        (row,) = site.requests()
        assert (row["complete"], row["status"]) == (False, 0)
        site.clear_log()
        assert site.answers() == 0


def test_pages_change_and_grow_over_time() -> None:
    pages = Pages(200, changes_seconds=60, arrivals_seconds=5)
    early, late = ({n: pages.page(b"/item/%d.html" % n, at) for n in range(1, 5)} for at in (0, 70))
    assert [n for n in early if early[n] != late[n]] == [4]
    at = 70 * 4
    assert pages.page(b"/item/1.html", at) != early[1]
    assert pages.page(b"/item/3.html", at * 1000) == early[3], "every fourth item never changes"
    assert pages.page(b"/item/201.html", 4.9) is None
    assert pages.page(b"/item/201.html", 5.0) is not None
    assert pages.page(b"/", 0) != pages.page(b"/", 5.0), "a new item changes the list"


@pytest.mark.parametrize("path", [b"/item/0.html", b"/item/01.html", b"/list/0/", b"/item/.html"])
def test_numbers_have_one_notation(path: bytes) -> None:
    assert Pages(10).page(path, 0) is None


def test_rewritten_items_rotate_texts_of_other_items() -> None:
    pages = Pages(200, changes_seconds=60, rewrites=True)
    versions = [pages.page(b"/item/4.html", seconds) for seconds in (0, 60, 120, 180)]
    text_numbers = [4, 45, 86, 4]
    assert versions == [(item_page(item, n), n) for n, item in enumerate(text_numbers)]


def test_measures_pages_per_second() -> None:
    with RunningQuick(100) as site:
        assert pages_per_second(site.url, 100) > 0
        assert site.answers() == 100
