"""Dashboards of the web app: pages of cells as they are now."""

from __future__ import annotations

import json
import re
import signal
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
from tests.integration.inside import run
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
    """Run `scrapy web`."""

    def __init__(self, freshet: Freshet, *words: object, **env: object) -> None:
        self.process = freshet.start("web", "--port", 0, "--no-service", *words, **env)
        self.url, self.err = "", ""

    def __enter__(self) -> Self:
        stderr = self.process.stderr
        assert stderr
        while not (match := re.search(r"http://127\.0\.0\.1:\d+/", line := stderr.readline())):
            assert line, "the process ended before it served"
        self.url = f"{match[0]}dashboards/"
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        _, self.err = self.process.communicate(timeout=PATIENCE_SECONDS)
        if exception[0] is None:
            assert (self.process.returncode, "Traceback" in self.err) == (0, False), self.err

    def get(self, path: str = "", **headers: str) -> tuple[int, str]:
        return ask(self.url + path, headers=headers)


@pytest.fixture
def serving(freshet: Freshet, cells: Db, templates: Path) -> Iterator[Serve]:
    with Serve(freshet, "--dashboards", templates) as serve:
        yield serve


def test_default_dashboard_shows_all_cells(cells: Db, stored: tuple[Db, str]) -> None:
    with browsers_of(stored[1], WebOptions()) as make:
        browser = make(address="127.0.0.1")
        listed = browser.get("/dashboards")
        assert 'href="/dashboards/index.html"' in listed.text
        assert "scrapy web --dashboards templates" in listed.text
        assert browser.get("/api/v1/dashboards").json() == {"dashboards": [{"path": "index.html"}]}
        page = browser.get("/dashboards/").text
        assert "1.25 EUR" in page
        assert "<b>new</b>" in page
        assert "&lt;script&gt;x&lt;/script&gt;" in page
        assert "<script>" not in page
        for name in ("freshet.css", "freshet.js", "cells.json"):
            assert browser.get(f"/dashboards/{name}").status_code == 200


@pytest.mark.parametrize(
    ("folder", "complaint"),
    [("none", "template folder not found"), ("empty", "no pages found. Add an .html file")],
)
def test_app_does_not_start_with_an_invalid_folder(
    freshet: Freshet, tmp_path: Path, folder: str, complaint: str
) -> None:
    (tmp_path / "empty").mkdir()
    done = run(freshet, "web", "--port", 0, "--dashboards", tmp_path / folder)
    assert (done.code, complaint in done.complaint) == (1, True)


def test_dashboards_show_cells_and_templates_of_each_request(
    serving: Serve, cells: Db, templates: Path
) -> None:
    status, page = serving.get("rates.html")
    assert (status, "1.25 EUR" in page) == (200, True)
    put(cells, "rate", {"value": "up"})
    assert "up" in serving.get("rates.html")[1]
    put(cells, "rate", {"value": "up"}, error="status 500")
    assert "last read failed: status 500" in serving.get("rates.html")[1]
    assert json.loads(serving.get("cells.json")[1])["market cell:rate"]["stale"] is True
    later = NOW + timedelta(seconds=5)
    put(cells, "teaser", {"html": "<b>new</b><script>x</script>"}, "news", refreshed_at=later)
    assert later.isoformat()[:19] in serving.get("cells.json")[1]
    (templates / "sub").mkdir()
    (templates / "sub/index.html").write_text("more", encoding="utf-8")
    assert serving.get("sub/") == (200, "more")
    moved = httpx.get(f"{serving.url}sub")
    assert (moved.status_code, moved.headers["location"]) == (301, "sub/")
    listed = json.loads(ask(serving.url.replace("/dashboards/", "/api/v1/dashboards"))[1])
    assert [each["path"] for each in listed["dashboards"]] == [
        "news.html", "rates.html", "sub/index.html",
    ]  # fmt: skip


def test_failing_template_names_its_problem_and_others_are_shown(
    serving: Serve, cells: Db, templates: Path
) -> None:
    (templates / "bad.html").write_text('\n{{ cell("<b>").value }}', encoding="utf-8")
    status, page = serving.get("bad.html")
    assert status == 500
    assert "bad.html, line 2: cell not found: &#39;&lt;b&gt;&#39;" in page
    assert str(templates) not in page
    put(cells, "rate", {"value": 1}, "bank")
    assert "several spiders have a cell &#39;rate&#39;" in serving.get("rates.html")[1]
    assert serving.get("news.html")[0] == 200
    (templates / "bad.html").write_text("good", encoding="utf-8")
    assert serving.get("bad.html") == (200, "good")
    serving.__exit__(None)
    assert "scrapy web: dashboards: bad.html, line 2: cell not found: '<b>'" in serving.err


def test_dashboards_have_their_own_security_policy(serving: Serve) -> None:
    answer = httpx.get(f"{serving.url}rates.html")
    assert answer.headers["content-security-policy"].startswith("default-src 'self'; img-src *")
    assert "form-action 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    script = httpx.get(f"{serving.url}freshet.js")
    assert script.headers["content-type"].endswith("; charset=utf-8")
    again = httpx.get(script.url, headers={"If-None-Match": script.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert serving.get("rates.html", Host="evil.example")[0] == 421
    for path in ("_head.html", ".hidden", "none.html", "rates.html/", "sub/"):
        assert serving.get(path)[0] == 404, path
    assert ask(f"{serving.url}rates.html", method="HEAD") == (200, "")
    assert ask(f"{serving.url}rates.html", method="PUT")[0] == 405
    listed = httpx.get(serving.url, follow_redirects=True)
    assert listed.url.path == "/dashboards", "without index.html, the list is shown"
    assert 'href="/dashboards/rates.html"' in listed.text


def test_dashboards_require_sign_in(browsers: Browsers, vic: Browser) -> None:
    assert browsers().get("/dashboards/index.html").status_code == 303
    assert browsers().get("/api/v1/dashboards").status_code == 401
    assert vic.get("/dashboards").status_code == 200


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
def test_dashboards_return_after_an_outage(freshet: Freshet, own_server: EmbeddedServer) -> None:
    env = {"MONGO_URI": own_server.uri, "FRESHET_MONGO_TIMEOUT_SECONDS": 1}
    with Serve(freshet, **env) as serve:
        assert serve.get()[0] == 200
        own_server.stop()
        assert serve.get()[0] == 503
        own_server.start()
        with MongoClient[Row](own_server.uri, tz_aware=True) as client:
            put(client.get_default_database(), "rate", {"value": "back"})
        wait_for(lambda: "back" in serve.get()[1])
