"""Hostile values in every query parameter, form field and JSON member of every route."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from fastapi import FastAPI

from crawler.utils.urls import target_id
from crawler.web.middleware import SAFE_METHODS
from crawler.web.pages import TEMPLATES
from tests.integration.harness import Db
from tests.integration.web.browser import Browser
from tests.integration.web.test_web_feeds import put_feed, put_post
from tests.integration.web.test_web_security import routes
from tests.integration.web.test_web_setup import put as put_site
from tests.integration.web.test_web_targets import URL, put_target, put_version

pytestmark = pytest.mark.soak
FEED = "feeds https://a.example/feed"
# Each value breaks some parser, MongoDB query, regular expression or header.
VALUES = ("%00", "%ED%A0%80", "%0D%0AX-Evil:%201", "9" * 400, "%5B")
CURSORS = (
    [], [None], [True], [1e308], [10**30], ["\ud800"], ["\0"], [{"t": 10**18}], [{"$gt": ""}],
    [{"o": "0" * 24}], ["a"] * 900, [{"t": 0}, {"o": "0" * 24}], [{"t": 0}] * 2, [1, "a"],
    [{"t": 0}, {"t": 0}, {"o": "0" * 24}],
)  # fmt: skip
NOT_CURSORS = ("é", "W", "====", "W10" * 1000, "WzFd" * 900)
TEXTS = ("\0", "\r\nX-Evil: 1", "9" * 5000, "nan", "(?=", "a," * 5000)
JSON = (
    '"\\ud800"', '"\\u0000"', "1e999", "NaN", "1" * 4400, '{"$gt": ""}', '[{"$gt": ""}]',
    '"2026"', '["' + 'x","' * 9000 + '"]',
)  # fmt: skip
LARGE_JSON = ("[" * 900_000, '{"a":' * 300_000, "[" + "1," * 900_000 + "1]")
MAX_BYTES, MAX_SECONDS = 400_000, 3.0
# These routes start background jobs, or their response does not end.
LEFT_OUT = {
    "/budget", "/api/v1/budget", "/api/v1/budget/forecast", "/api/v1/budget/simulate",
    "/budget/feeds", "/api/v1/budget/feeds", "/api/v1/budget/feeds/forecast",
    "/api/v1/runs/events", "/sites/{name:path}/run", "/api/v1/sites/{name:path}/run",
}  # fmt: skip
FORM_FIELDS = frozenset(
    name
    for template in TEMPLATES.rglob("*.html")
    for name in re.findall(r'name="([a-z_]+)"', template.read_text(encoding="utf-8"))
) - {"csrf"}


@pytest.fixture
def filled(local: Browser, database: Db) -> Browser:
    """Return a browser of an app with a site, a page with two versions, and a post of a feed."""
    put_site(database, None, {"name": "shop", "start_urls": [URL], "item_pages": "x"})
    put_target(database)
    for name, hours_ago in (("new", 1), ("old", 2)):
        put_version(database, name, hours_ago, {"title": name, "fields": {"price": hours_ago}})
    put_feed(database, FEED)
    put_post(database, FEED, "one")
    return local


def routes_to_test(app: FastAPI, *, is_write: bool) -> Iterator[tuple[str, str, Any]]:
    """Yield method, path with the stored target and site, and dependencies of routes."""
    for route in routes(app):
        path = route.path.replace("{target_id}", target_id(f"shop {URL}"))
        for method in route.methods - {"HEAD", "OPTIONS"}:
            if (method not in SAFE_METHODS) == is_write and route.path not in LEFT_OUT:
                yield method, path.replace("{name:path}", "shop"), route.dependant


def parameters(dependant: Any) -> set[str]:
    """Return the names of the query parameters of a route and its dependencies."""
    own = {each.alias for each in dependant.query_params}
    return own.union(*map(parameters, dependant.dependencies))


def send(browser: Browser, method: str, path: str, **options: Any) -> httpx.Response:
    """Send a request; fail on server errors, and on slow or large responses."""
    began = time.process_time()
    answer = browser.request(method, path, **options)
    what = method, path[:200], str(options)[:200]
    assert answer.status_code < 500, what
    assert len(answer.content) < MAX_BYTES, what
    assert time.process_time() - began < MAX_SECONDS, what
    assert "x-evil" not in answer.headers, what
    assert not answer.headers.get("location", "/").startswith("//"), what
    return answer


def test_hostile_query_parameters_cause_no_server_error(filled: Browser) -> None:
    sent = 0
    for method, path, dependant in routes_to_test(filled.app, is_write=False):
        for value in VALUES:
            for name in parameters(dependant):
                send(filled, method, f"{path}?{name}={value}")
                sent += 1
            if "{" in path:
                send(filled, method, re.sub(r"\{.*?\}", value, path))
    assert sent > 400


def test_forged_cursors_cause_no_server_error(filled: Browser) -> None:
    forged = [
        base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")
        for values in CURSORS
    ]
    lists = [
        path
        for _, path, dependant in routes_to_test(filled.app, is_write=False)
        if "cursor" in parameters(dependant)
    ]
    assert len(lists) > 10
    for path in lists:
        for cursor in (*forged, *NOT_CURSORS):
            send(filled, "GET", f"{path}?cursor={quote(cursor)}")


def test_hostile_form_fields_cause_no_server_error(filled: Browser) -> None:
    token = filled.token("/feeds/add")
    stored = {"csrf": token, "id": FEED, "feed": FEED, "post": f"{FEED} one", "a": FEED}
    forms = [
        path
        for _, path, _ in routes_to_test(filled.app, is_write=True)
        if not path.startswith("/api/")
    ]
    assert len(forms) > 20
    assert {"url", "here", "back", "next", "title_before"} <= FORM_FIELDS
    for path in forms:
        # Routes that remove or forget delete the data that the other routes need.
        for text in TEXTS if "remove" not in path and "forget" not in path else TEXTS[:1]:
            form = dict.fromkeys(FORM_FIELDS, text) | (stored if "remove" not in path else {})
            send(filled, "POST", path, data=form | {"csrf": token})


def test_hostile_json_members_cause_no_server_error(filled: Browser) -> None:
    headers = {"Content-Type": "application/json"}
    sent = 0
    for method, path, dependant in routes_to_test(filled.app, is_write=True):
        members = [
            name
            for each in dependant.body_params
            for name in getattr(each.field_info.annotation, "model_fields", ())
        ]
        for number, name in enumerate(members):
            for text in JSON if number else (*JSON, *LARGE_JSON):
                send(filled, method, path, content=f'{{"{name}": {text}}}', headers=headers)
                sent += 1
    assert sent > 100
