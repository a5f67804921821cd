"""The web app's pages, fragments, errors, JSON API and helpers."""

from __future__ import annotations

import gc
import hashlib
import re
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId
from pydantic import BaseModel, Field

from crawler.config import Config
from crawler.storage.paging import read_page
from crawler.storage.store import opened
from crawler.web import pages
from crawler.web.dependencies import PAUSE_SECONDS, cursor_of, key_of
from crawler.web.options import WebOptions
from crawler.web.pages import STATIC, TEMPLATES, Form
from crawler.web.passwords import MAX_FAILURES, WAIT_SECONDS, FailureLimit
from tests.integration.harness import Db
from tests.integration.second_mongod import second_mongod
from tests.integration.web.browser import NOW, Browser, browsers_of

HOSTILE = "<script>alert(1)</script>\"'&"


def put_site(db: Db, name: str, **more: Any) -> None:
    past, future = datetime(2026, 1, 1, tzinfo=UTC), datetime(2099, 1, 1, tzinfo=UTC)
    for number, (due, errors) in enumerate(((past, 0), (past, 2), (future, 0))):
        db.targets.insert_one(
            {"_id": f"{name} u{number}", "spider": name, "url": f"u{number}", "kind": "item",
             "first_seen": past, "next_visit": due, "consecutive_errors": errors}
        )  # fmt: skip
    db.runs.insert_one(
        {"spider": name, "started": past, "finished": past, "reason": "finished"} | more
    )


def test_the_board_shows_each_site(local: Browser, database: Db) -> None:
    empty = local.get("/")
    assert "No sites yet" in empty.text
    assert "scrapy crawl site" in empty.text, "the next step is missing"
    put_site(database, "shop")
    put_site(database, HOSTILE, reason=HOSTILE)
    page = local.get("/").text
    assert ">shop</bdi>" in page
    assert HOSTILE not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    sites = local.get("/api/v1/sites").json()["sites"]
    assert [site["name"] for site in sites] == sorted(["shop", HOSTILE])
    (shop,) = (site for site in sites if site["name"] == "shop")
    assert shop["kind"] == "site"
    assert shop["next_visit"] == "2026-01-01T00:00:00Z"
    assert shop["last_reason"] == "finished"


def test_htmx_request_returns_only_the_fragment(local: Browser, database: Db) -> None:
    put_site(database, "shop")
    # Otherwise, the numbers may be missing in the first answer of a busy machine.
    local.app.state.figures.patience_seconds = 30.0
    whole = local.get("/").text
    part = local.get("/", headers={"HX-Request": "true", "HX-Request-Type": "partial"})
    assert part.text.strip().startswith('<div id="sites"')
    assert part.text.strip() in whole
    assert "HX-Request" in part.headers["vary"]
    full = local.get("/", headers={"HX-Request": "true", "HX-Request-Type": "full"})
    assert "<html" in full.text


def test_error_format_depends_on_the_client(local: Browser) -> None:
    page = local.get("/nope")
    assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "Go to the first page" in page.text
    for path in ("/api/v1/nope", "/api/nope"):
        problem = local.get(path)
        assert problem.headers["content-type"] == "application/problem+json"
        assert problem.json()["status"] == 404
    invalid = local.get("/api/v1/audit?limit=1000")
    assert invalid.status_code == 422
    assert invalid.json()["detail"].startswith("limit: ")
    assert invalid.json()["errors"][0]["field"] == "limit"
    alert = local.get("/nope", headers={"HX-Request": "true", "HX-Request-Type": "partial"})
    assert alert.headers["hx-retarget"] == "#notices"
    assert "<html" not in alert.text
    assert local.request("DELETE", "/").status_code in (403, 405)


@pytest.mark.parametrize("cursor", ["x", "e30", "W10", "eyJ0IjoxfQ", "W3siJGd0IjoxfV0", "é", "[]"])
def test_forged_cursor_is_refused(local: Browser, cursor: str) -> None:
    answer = local.request("GET", "/api/v1/audit", params={"cursor": cursor})
    assert answer.status_code == 422
    assert "cursor" in answer.json()["detail"]


def test_fields_of_reports_are_described(local: Browser) -> None:
    schemas = local.get("/api/openapi.json").json()["components"]["schemas"]
    for report in ("BoardSite", "TokenRow", "Entry", "FeedState"):
        for name, field in schemas[report]["properties"].items():
            assert "description" in field or "$ref" in field, (report, name)


def test_openapi_schema_and_docs_list_all_paths(local: Browser) -> None:
    schema = local.get("/api/openapi.json").json()
    assert {"/api/v1/sites", "/api/v1/me", "/api/v1/audit"} <= schema["paths"].keys()
    assert all(path.startswith("/api/v1/") for path in schema["paths"])
    page = local.get("/api/docs").text
    for path in schema["paths"]:
        assert path in page
    assert local.get("/api/v1/me").json() == {"name": "local", "role": "editor", "can_write": True}


def test_app_works_below_a_root_path(stored: tuple[Db, str]) -> None:
    with browsers_of(stored[1], WebOptions(root_path="/freshet")) as make:
        browser = make(address="127.0.0.1")
        for path in ("/freshet/", "/"):  # the proxy keeps the prefix, or removes it
            page = browser.get(path).text
            links = re.findall(r'(?:href|src|action)="(/[^"]*)"', page)
            assert links
            assert all(link.startswith("/freshet/") for link in links)
            for link in links:
                assert browser.get(link).status_code == 200, link
        assert "Path=/freshet" in browser.get("/sign-in").headers.get("set-cookie", "Path=/freshet")


# PyMongo does not close the socket of a connection that is cancelled while it opens.
@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_app_recovers_after_a_database_outage() -> None:
    run_database_outage()
    # Collect the sockets while their warnings are ignored and nothing references the app.
    gc.collect()


def run_database_outage() -> None:
    options = WebOptions()
    with (
        second_mongod() as (client, uri),
        browsers_of(f"{uri}/web", options, mongo_timeout_seconds=0.5) as make,
    ):
        browser = make(address="127.0.0.1")
        assert browser.get("/").status_code == 200
        client.admin.command(
            "configureFailPoint", "failCommand", mode="alwaysOn",
            data={"failCommands": ["find", "aggregate", "distinct", "ping", "insert"],
                  "closeConnection": True, "failInternalCommands": True},
        )  # fmt: skip
        page = browser.get("/")
        assert page.status_code == 503
        assert "MongoDB" in page.text
        assert page.headers["retry-after"]
        assert browser.get("/api/v1/sites").json()["status"] == 503
        assert browser.get("/health").status_code == 503
        began = time.monotonic()
        assert browser.get("/").status_code == 503
        assert time.monotonic() - began < 0.5, "waits for the database again"
        client.admin.command("configureFailPoint", "failCommand", mode="off")
        time.sleep(PAUSE_SECONDS + 0.1)
        assert browser.get("/").status_code == 200
        assert browser.get("/health").json() == {"status": "ok"}


# PyMongo does not close the socket of a connection that is cancelled while it opens.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_the_app_starts_without_a_database() -> None:
    start_without_a_database()
    gc.collect()


def start_without_a_database() -> None:
    unreachable = "mongodb://127.0.0.1:1/none"
    with browsers_of(unreachable, WebOptions(), mongo_timeout_seconds=0.2) as make:
        browser = make(address="127.0.0.1")
        page = browser.get("/")
        assert page.status_code == 503
        assert "no response within" in page.text
        assert browser.get("/static/freshet.css").status_code == 200
        assert browser.get("/health").json() == {"status": "database unavailable"}


def test_vendored_files_match_their_checksums() -> None:
    folder = STATIC / "vendor"
    lines = (folder / "CHECKSUMS").read_text(encoding="ascii").splitlines()
    listed = dict(reversed(line.split("  ")) for line in lines)
    files = {path.name for path in folder.iterdir()} - {"CHECKSUMS", "VERSIONS.md"}
    assert files == listed.keys()
    for name, digest in listed.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, name


def test_templates_have_no_external_or_inline_resources() -> None:
    for path in TEMPLATES.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r'(?:src|href|action)="(?:https?:)?//', text), path
        assert not re.search(r"<style|\sstyle=|\son\w+=|hx-on|\|\s*safe", text), path
        assert not re.search(r"<script(?! src=)", text), path


def test_only_versioned_static_files_are_cached(local: Browser) -> None:
    link = re.search(r'href="(/static/freshet\.css\?v=[0-9a-f]+)"', local.get("/").text)
    assert link
    assert "immutable" in local.get(link[1]).headers["cache-control"]
    assert local.get("/static/freshet.css").headers["cache-control"] == "no-cache"


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)", "JAVASCRIPT:alert(1)", " javascript:alert(1)", "data:text/html,x",
        "vbscript:x", "//evil.example", "http:evil", "http://[::1", "cell:name", "", None, 5,
        "\x01javascript:alert(1)", "java\nscript:alert(1)", "https://a/" + "x" * 3000,
    ],
)  # fmt: skip
def test_only_http_urls_become_links(url: Any) -> None:
    assert "<a" not in pages.outside(url)
    assert "href" not in pages.outside(url, "text")


def test_external_links_send_no_referrer() -> None:
    shown = pages.outside('https://a.example/?q="><script>')
    assert 'rel="noopener noreferrer nofollow"' in shown
    assert "<script>" not in shown


def test_long_texts_are_truncated_in_templates() -> None:
    from crawler.web.pages import environment

    made = environment().from_string("<b>{{ title }}</b>").render(title="x" * 1_000_000)
    assert len(made) < 2100
    assert pages.cut("a\ud800b") == "a\ufffdb"
    assert environment().from_string("{{ x }}").render(x=HOSTILE).count("<") == 0


def test_times_are_rendered_in_utc() -> None:
    at = datetime(2026, 11, 23, 8, 5, 7, tzinfo=UTC)
    assert pages.time_of(at) == (
        '<time datetime="2026-11-23T08:05:07Z" title="2026-11-23 08:05:07 UTC">'
        "23 Nov 2026, 08:05 UTC</time>"
    )
    assert "3 h ago" in pages.ago(at, at + timedelta(hours=3.2))
    assert ">7 days ago<" in pages.ago(at, at + timedelta(days=7))
    assert pages.ago(at, at + timedelta(days=7.1)) == (
        '<time datetime="2026-11-23T08:05:07Z" title="2026-11-23 08:05:07 UTC" data-day>'
        "23 Nov 2026</time>"
    )
    assert "in 12 days" in pages.ago(at + timedelta(days=12), at)
    assert "in 3 h" in pages.ago(at + timedelta(hours=3), at)
    assert "none" in pages.time_of(None)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("2026-11-20", "20 Nov 2026"),
        ("2026-11-20T00:00:00Z", "20 Nov 2026"),
        ("2026-11-20T08:05:00Z", "20 Nov 2026, 08:05 UTC"),
        ("2026-11-20T08:05:00+02:00", "20 Nov 2026, 06:05 UTC"),
    ],
)
def test_dates_of_items_are_read_as_dates(text: str, shown: str) -> None:
    made = pages.dated(text)
    assert made.startswith('<time datetime="2026-11-20')
    assert made.endswith(f">{shown}</time>")


@pytest.mark.parametrize(
    "text",
    [
        "2026-13-20",
        "2026-11-20T08:05",
        "20261120",
        "2026-11-20 x",
        "0000-00-00",
        HOSTILE,
        "x" * 9000,
    ],
)
def test_other_values_of_items_stay_as_they_are(text: str) -> None:
    assert pages.dated(text) is text


def test_cursor_round_trip() -> None:
    key = (datetime(2026, 1, 1, 0, 0, 0, 1000, tzinfo=UTC), ObjectId(), "a b", 1.5, 3, None, True)
    cursor = cursor_of(key)
    assert cursor is not None
    assert re.fullmatch(r"[\w-]+", cursor)
    assert key_of(cursor) == key
    assert cursor_of(None) is None


@pytest.mark.parametrize("direction", [1, -1])
def test_pagination_handles_equal_and_missing_values(
    stored: tuple[Db, str], direction: int
) -> None:
    import asyncio

    db, uri = stored
    rows = [{"_id": n, "at": [None, NOW, NOW + timedelta(days=1)][n % 3]} for n in range(20)]
    rows.append({"_id": 20})
    db.things.insert_many(rows)
    order = (("at", direction), ("_id", direction))

    async def pages() -> list[int]:
        seen, after = [], None
        async with opened(Config.load(mongo_uri=uri)) as store:
            while True:
                page = await read_page(store.things, {}, order, 4, after)
                seen += [row["_id"] for row in page.rows]
                if page.last is None:
                    return seen
                after = page.last

    expected = [row["_id"] for row in db.things.find().sort(list(order))]
    assert asyncio.run(pages()) == expected


def test_rejected_form_keeps_values_and_reports_each_problem() -> None:
    class Limits(BaseModel):
        minimum: float = Field(gt=0)
        name: str
        tags: list[str] = Field(default_factory=list)

    form = Form.of({"minimum": "-1", "new_password": "secret"})
    assert form.parse(Limits) is None
    assert form.problems == {"minimum": "must be greater than 0, not '-1'", "name": "is missing"}
    assert (form["minimum"], form["new_password"], form["absent"]) == ("-1", "", "")
    good = Form({"minimum": "2", "name": "n", "tags": "a"}, {"tags": ["a", "b"]})
    parsed = good.parse(Limits)
    assert parsed == Limits(minimum=2, name="n", tags=["a", "b"])


def test_failures_expire_after_the_wait() -> None:
    now = 0.0
    limit = FailureLimit(lambda: now)
    for _ in range(MAX_FAILURES):
        assert limit.begin("user a", "address b") == 0
    assert limit.begin("user a", "address c") == WAIT_SECONDS
    assert limit.begin("user d", "address b") == WAIT_SECONDS
    assert limit.begin("user d", "address e") == 0, "a refused attempt was counted"
    now = WAIT_SECONDS
    assert limit.begin("user a", "address b") == 0
    limit.succeeded("user a", "address b")
    assert limit.begin("user a") == 0
