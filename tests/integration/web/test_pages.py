"""`scrapy dashboards`: built from the cell store, served and updated when cells change."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import httpx
import pytest
from pymongo import MongoClient

from crawler.config import Config
from crawler.storage.embedded import EmbeddedServer
from crawler.web.options import WebOptions
from tests.integration.harness import Db, Freshet, Row
from tests.integration.inside import in_json, run
from tests.integration.pushing import PATIENCE_SECONDS, ask, wait_for
from tests.integration.web.browser import Browser, Browsers, browsers_of

NOW = datetime.now(UTC)


def put(db: Db, name: str, content: Row | None, spider: str = "market", **more: Any) -> None:
    """Store a cell as a crawl does."""
    seen = NOW if content else None
    key = {"_id": f"{spider} cell:{name}", "spider": spider, "name": name, "group": "dynamic"}
    state = {
        "period_seconds": 3600.0, "execution_seconds": 0.1, "requested": 1, "refreshed": 1,
        "refreshed_at": seen, "changed_at": seen, "error": None, "content": content,
        "content_hash": str(content) if content else None,
    }  # fmt: skip
    db.cells.replace_one({"_id": key["_id"]}, key | state | more, upsert=True)


@pytest.fixture
def cells(freshet: Freshet, database: Db) -> Db:
    """Return a database with some cells."""
    assert run(freshet, "feeds", "list").code == 0
    put(database, "rate", {"value": {"amount": 1.25, "currency": "EUR"}})
    put(database, "table", {"columns": ["a"], "rows": [{"a": "<script>x</script>"}]})
    put(database, "teaser", {"html": "<b>new</b><script>x</script>"}, "news")
    return database


@pytest.fixture
def templates(tmp_path: Path) -> Path:
    folder = tmp_path / "templates"
    folder.mkdir()
    (folder / "_head.html").write_text("<h1>Rates</h1>", encoding="utf-8")
    text = '{% include "_head.html" %}{{ show("rate") }}'
    (folder / "rates.html").write_text(text, encoding="utf-8")
    (folder / "news.html").write_text('{{ cell("news/teaser").html }}', encoding="utf-8")
    return folder


class Serve:
    """Run `scrapy web --dashboards`."""

    def __init__(self, freshet: Freshet, *words: object, **env: object) -> None:
        args = ("web", "--port", 0, "--dashboards", *words)
        self.process = freshet.start(*args, **env)
        self.url, self.err = "", ""

    def __enter__(self) -> Self:
        stderr = self.process.stderr
        assert stderr
        while not (match := re.search(r"http://127\.0\.0\.1:\d+/", line := stderr.readline())):
            assert line, "the process ended before it served"
        self.url = f"{match[0]}dashboards/"
        wait_for(lambda: '"path"' in ask(f"{match[0]}api/v1/dashboards")[1])
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        _, self.err = self.process.communicate(timeout=PATIENCE_SECONDS)
        if exception[0] is None:
            assert (self.process.returncode, "Traceback" in self.err) == (0, False), self.err

    def get(self, path: str = "", **headers: str) -> tuple[int, str]:
        return ask(self.url + path, headers=headers)


@pytest.fixture
def serving(freshet: Freshet, cells: Db, templates: Path, tmp_path: Path) -> Iterator[Serve]:
    with Serve(freshet, templates, "--dashboards-out", tmp_path / "out") as serve:
        yield serve


def test_default_dashboard_shows_all_cells(freshet: Freshet, cells: Db, tmp_path: Path) -> None:
    done = in_json(freshet, "dashboards", "build")
    out = tmp_path / "data/dashboards"
    assert done == {"pages": {"index.html": "written"}, "out": str(out)}
    page = (out / "index.html").read_text(encoding="utf-8")
    assert "1.25 EUR" in page
    assert "<b>new</b>" in page
    assert "&lt;script&gt;x&lt;/script&gt;" in page
    assert "<script>" not in page
    assert run(freshet, "dashboards", "build").out == f"1 page: 1 unchanged -> {out}\n"


def test_only_pages_whose_cells_changed_are_written(
    freshet: Freshet, cells: Db, templates: Path, tmp_path: Path
) -> None:
    words = ("dashboards", "build", templates, "--out", tmp_path / "out")
    assert run(freshet, *words).out == f"2 pages: 2 written -> {tmp_path}/out\n"
    put(cells, "rate", {"value": 2})
    assert in_json(freshet, *words)["pages"] == {"news.html": "unchanged", "rates.html": "written"}
    (templates / "news.html").unlink()
    assert in_json(freshet, *words)["pages"]["news.html"] == "removed"
    states = json.loads((tmp_path / "out/cells.json").read_text(encoding="utf-8"))
    assert datetime.fromisoformat(states["market cell:rate"]["refreshed_at"]).tzinfo
    assert states["market cell:rate"]["stale"] is False
    later = in_json(freshet, *words, hours=3)
    assert later["pages"] == {"rates.html": "written"}
    assert 'class="mark"' in (tmp_path / "out/rates.html").read_text(encoding="utf-8")


def test_failing_template_is_reported_and_others_are_written(
    freshet: Freshet, cells: Db, templates: Path, tmp_path: Path
) -> None:
    put(cells, "rate", {"value": 2}, "bank")
    done = run(freshet, "dashboards", "build", templates, "--out", tmp_path / "out")
    assert (done.code, done.complaint) == (
        1,
        f"scrapy dashboards: {templates}/rates.html, line 1: "
        "several spiders have a cell 'rate'. Use bank/rate or market/rate",
    )
    assert done.out == f"2 pages: 1 written, 1 failed -> {tmp_path}/out\n"
    assert {path.name for path in (tmp_path / "out").glob("*.html")} == {"news.html"}


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("build", "none"), "template folder not found"),
        (("build", "{t}", "--out", "{t}/out"), "the template and output folders must not"),
        (("build", "{t}/sub", "--out", "{t}"), "the template and output folders must not"),
    ],
)
def test_invalid_folders_are_one_line_errors(
    freshet: Freshet, templates: Path, words: tuple[str, ...], complaint: str
) -> None:
    done = run(freshet, "dashboards", *(word.replace("{t}", str(templates)) for word in words))
    assert done.code == 1
    assert complaint in done.complaint
    assert not (templates.parent / "data/dashboards").exists()


def test_app_does_not_start_with_an_invalid_folder(freshet: Freshet, templates: Path) -> None:
    done = run(freshet, "web", "--port", 0, "--dashboards", "none")
    assert (done.code, "template folder not found" in done.complaint) == (1, True)
    out = ("--dashboards-out", templates / "out")
    done = run(freshet, "web", "--port", 0, "--dashboards", templates, *out)
    assert done.code == 1
    assert "--dashboards-out" in done.complaint
    assert "must not overlap" in done.complaint


@pytest.mark.soak
def test_served_dashboards_are_updated(serving: Serve, cells: Db, templates: Path) -> None:
    status, page = serving.get("rates.html")
    assert (status, "1.25 EUR" in page) == (200, True)
    put(cells, "rate", {"value": "up"})
    wait_for(lambda: "up" in serving.get("rates.html")[1])
    put(cells, "rate", {"value": "up"}, error="status 500")
    wait_for(lambda: "last read failed: status 500" in serving.get("rates.html")[1])
    wait_for(lambda: json.loads(serving.get("cells.json")[1])["market cell:rate"]["stale"] is True)
    later = NOW + timedelta(seconds=5)
    put(cells, "teaser", {"html": "<b>new</b><script>x</script>"}, "news", refreshed_at=later)
    wait_for(lambda: later.isoformat()[:19] in serving.get("cells.json")[1])
    (templates / "more.html").write_text("more", encoding="utf-8")
    wait_for(lambda: serving.get("more.html") == (200, "more"))
    (templates / "more.html").write_text("{{", encoding="utf-8")
    time.sleep(2.5)
    assert serving.get("more.html") == (200, "more")
    listed = json.loads(ask(serving.url.replace("/dashboards/", "/api/v1/dashboards"))[1])
    states = {each["path"]: each["failed"] for each in listed["dashboards"]}
    assert states == {"more.html": True, "news.html": False, "rates.html": False}
    (templates / "bad.html").write_text("{{", encoding="utf-8")
    wait_for(lambda: "bad.html" in ask(serving.url.removesuffix("/"))[1])
    page = ask(serving.url.removesuffix("/"))[1]
    assert "dashboards/more.html" in page
    assert "dashboards/bad.html" not in page, "a dashboard without a file is linked"
    serving.__exit__(None)
    assert serving.err.count("more.html, line 1") == 1, serving.err


def test_dashboards_have_their_own_security_policy(serving: Serve) -> None:
    answer = httpx.get(f"{serving.url}rates.html")
    assert answer.headers["content-security-policy"].startswith("default-src 'self'; img-src *")
    assert "form-action 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    again = httpx.get(answer.url, headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert serving.get("rates.html", Host="evil.example")[0] == 421
    assert serving.get(".freshet-pages.json")[0] == 404
    assert serving.get("%2e%2e/secret")[0] == 404
    assert ask(f"{serving.url}rates.html", method="HEAD") == (200, "")
    assert ask(f"{serving.url}rates.html", method="PUT")[0] == 405
    listed = httpx.get(serving.url, follow_redirects=True)
    assert listed.url.path == "/dashboards", "without index.html, the list is shown"
    assert 'href="/dashboards/rates.html"' in listed.text


def test_dashboards_require_sign_in(browsers: Browsers, vic: Browser) -> None:
    assert browsers().get("/dashboards/index.html").status_code == 303
    assert browsers().get("/api/v1/dashboards").status_code == 401
    assert vic.get("/dashboards").status_code == 200


def test_built_files_are_served_without_updates(
    freshet: Freshet, cells: Db, stored: tuple[Db, str], tmp_path: Path
) -> None:
    options = WebOptions(dashboards=tmp_path / "data/dashboards")
    with browsers_of(stored[1], options) as make:
        browser = make(address="127.0.0.1")
        assert "No dashboards yet" in browser.get("/dashboards").text
        assert browser.get("/dashboards/").headers["location"] == "/dashboards"
        assert run(freshet, "dashboards", "build").code == 0
        page = browser.get("/dashboards")
        assert "scrapy web --dashboards" in page.text
        assert "1.25 EUR" in browser.get("/dashboards/").text
        (listed,) = browser.get("/api/v1/dashboards").json()["dashboards"]
    assert listed == {"path": "index.html", "cells": 3, "written": True, "failed": False}


@pytest.fixture
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """Start a separate MongoDB server that the test can stop and restart."""
    folder = tmp_path_factory.mktemp("m")
    config = Config.load(data_dir=folder, mongo_cache_gb=0.25, mongo_uri=None)
    server = EmbeddedServer.of(config)
    server.start()
    yield server
    server.stop()


@pytest.mark.soak
@pytest.mark.usefixtures("mongo")
def test_unavailable_database_is_logged_once(freshet: Freshet, own_server: EmbeddedServer) -> None:
    env = {"MONGO_URI": own_server.uri, "FRESHET_MONGO_TIMEOUT_SECONDS": 1}
    with Serve(freshet, **env) as serve:
        own_server.stop()
        # Each request waits for the database as long as an update, so that two updates fail.
        for _ in range(5):
            assert serve.get()[0] == 503, "users cannot be checked without the database"
        own_server.start()
        with MongoClient[Row](own_server.uri, tz_aware=True) as client:
            put(client.get_default_database(), "rate", {"value": "back"})
        wait_for(lambda: "back" in serve.get()[1])
    lines = serve.err.splitlines()
    assert len(lines) >= 2, lines
    # On a busy machine, the server may miss the time limit again after it has started.
    for line in lines[::2]:
        assert "updates of dashboards paused until MongoDB is available" in line, lines
    assert set(lines[1::2]) == {"scrapy web: updates of dashboards resumed"}
