"""The service beside the web app crawls without any command, and its state is shown."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

import httpx
import psutil
import pytest

from tests.integration.harness import Db, Freshet, Pages
from tests.integration.web.browser import CSRF
from tests.integration.web.served import Served

PATIENCE_SECONDS = 60.0


def until(condition: Callable[[], Any]) -> Any:
    """Wait until a condition is true, and return its value."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (value := condition()):
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.1)
    return value


def state(app: Served) -> dict[str, Any]:
    """Return the state of the service as the JSON API gives it."""
    return dict(httpx.get(f"{app.url}api/v1/service", timeout=60).json())


@pytest.fixture
def shop(freshet: Freshet, pages: Pages) -> str:
    """Return the URL of a page that is due in a moment, of a site that was crawled once."""
    pages.list("list.html", ["item-a.html"])
    pages.item("item-a.html", "one")
    name = freshet.wrapper(
        "pages",
        start_urls=[f"{pages.url}/list.html"],
        item_pages=r"/item-\w+\.html$",
        fields={"title": "h1"},
        # The shortest interval: the page is due again in a second.
        item_interval_hours=1 / 3600,
    )
    freshet.crawl(name)
    return f"{pages.url}/item-a.html"


def visits(database: Db, url: str) -> int:
    return database.visits.count_documents({"target": url})


def held(database: Db) -> list[str]:
    """Return the leases of services that a process holds."""
    rows = database.leases.find({"_id": {"$regex": "^service"}})
    return [row["_id"] for row in rows if row["holders"]]


def test_app_crawls_what_is_due_and_says_so(freshet: Freshet, database: Db, shop: str) -> None:
    before = visits(database, shop)
    app = Served(freshet, service=True)
    try:
        until(lambda: visits(database, shop) > before)
        shown = state(app)
        assert (shown["running"], shown["can_start"], shown["failure"]) == (True, False, None)
        assert psutil.pid_exists(shown["process"])
        board = httpx.get(app.url, timeout=60).text
        assert "Running since" in board
        assert "Nothing is running" not in board
    finally:
        code, err = app.stop()
    assert code == 0, err
    assert held(database) == []


def test_nothing_runs_until_it_is_started(freshet: Freshet, database: Db, shop: str) -> None:
    before = visits(database, shop)
    app = Served(freshet)
    try:
        assert not state(app)["running"]
        board = httpx.get(app.url, timeout=60).text
        assert "Nothing is running, so no page is checked." in board
        # No next visit is promised: the list is not due yet, or the item is due.
        assert "when it is started" in board or "but nothing runs" in board
        assert held(database) == []
        answer = httpx.post(f"{app.url}api/v1/service/start")
        assert answer.status_code == 202, answer.text
        assert not answer.json()["can_start"]
        until(lambda: visits(database, shop) > before)
    finally:
        app.stop()


@pytest.mark.soak
def test_service_ends_with_a_killed_app(freshet: Freshet, database: Db, shop: str) -> None:
    app = Served(freshet, service=True)
    until(lambda: held(database))
    service = state(app)["process"]
    app.process.kill()
    app.process.communicate()
    until(lambda: not psutil.pid_exists(service))
    assert held(database) == []


@pytest.mark.soak
def test_killed_service_is_started_again(freshet: Freshet, database: Db, shop: str) -> None:
    app = Served(freshet, service=True)
    try:
        until(lambda: state(app)["running"])
        first = state(app)["process"]
        psutil.Process(first).kill()
        again = until(lambda: state(app)["process"] not in (None, first) and state(app))
        assert again["running"]
        before = visits(database, shop)
        until(lambda: visits(database, shop) > before)
    finally:
        app.stop()


@pytest.mark.soak
def test_one_service_runs_beside_another_and_the_next_takes_over(
    freshet: Freshet, database: Db, shop: str
) -> None:
    other = freshet.start("refresh", "run")
    apps = []
    try:
        until(lambda: held(database) == ["service"])
        apps.append(Served(freshet, service=True))
        until(lambda: held(database) == ["service", "service standby"])
        # The second app stands by for the first one.
        apps.append(Served(freshet, service=True))
        assert {state(app)["process"] for app in apps} == {other.pid}
        other.send_signal(signal.SIGTERM)
        other.communicate(timeout=PATIENCE_SECONDS)
        before = visits(database, shop)
        until(lambda: visits(database, shop) > before)
        assert held(database) == ["service standby"]
        (running,) = {state(app)["process"] for app in apps}
        apps.pop(0).stop()
        assert not psutil.pid_exists(running)
        until(lambda: state(apps[0])["process"] not in (None, running))
    finally:
        for app in apps:
            app.stop()
        other.kill()
        other.communicate()


def add_site(client: httpx.Client, pages: Pages) -> str:
    """Add a site in the form of the app; return the text that is shown then."""
    form = {
        "name": "added", "start_urls": f"{pages.url}/list.html", "item_pages": "/item-",
        "timezone": "UTC", "digest": "",
    }  # fmt: skip
    token = CSRF.search(client.get("/setup").text)
    assert token
    headers = {"Origin": str(client.base_url).rstrip("/")}
    answer = client.post("/setup/sites", data=form | {"csrf": token[1]}, headers=headers)
    assert answer.status_code == 303, answer.text
    return client.get(answer.headers["location"]).text


def test_new_site_is_crawled_without_another_click(
    freshet: Freshet, pages: Pages, database: Db
) -> None:
    pages.list("list.html", ["item-a.html"])
    pages.item("item-a.html", "one")
    app = Served(freshet, service=True, FRESHET_PRIVATE_HOSTS=pages.url.partition("//")[2])
    try:
        with httpx.Client(base_url=app.url, timeout=60) as client:
            assert "for the first time now" in add_site(client, pages)
        until(lambda: visits(database, f"{pages.url}/item-a.html"))
    finally:
        app.stop()


def test_new_site_waits_for_a_service_elsewhere(
    freshet: Freshet, pages: Pages, database: Db
) -> None:
    pages.list("list.html", ["item-a.html"])
    pages.item("item-a.html", "one")
    app = Served(freshet, FRESHET_PRIVATE_HOSTS=pages.url.partition("//")[2])
    try:
        with httpx.Client(base_url=app.url, timeout=60) as client:
            assert "Nothing is running, so no page is checked" in add_site(client, pages)
            board = client.get("/").text
            assert "added" in board
            assert "due now" in board
            assert "but nothing runs" in board
    finally:
        app.stop()
    freshet("refresh", "run", "--for", "10s")
    assert visits(database, f"{pages.url}/item-a.html") == 1
