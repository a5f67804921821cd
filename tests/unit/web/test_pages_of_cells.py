"""Dashboards of cells: display and escaping, staleness, and the sources of pages."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from crawler.errors import ConfigError
from crawler.fetch.guard import is_local
from crawler.web.dashboards.render import Cells, Rendered, address, age, render, states
from crawler.web.dashboards.sources import find

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
EVIL = '<script>alert("1")</script>'
ESCAPED = "&lt;script&gt;alert(&#34;1&#34;)&lt;/script&gt;"
Row = dict[str, Any]


def cell(name: str, content: Row | None = None, spider: str = "market", **more: Any) -> Row:
    seen = NOW - timedelta(minutes=3) if content else None
    state = {
        "group": "dynamic", "period_seconds": 300.0, "refreshed_at": seen, "changed_at": seen,
        "error": None, "content_hash": _hash(content),
    }  # fmt: skip
    key = {"_id": f"{spider} cell:{name}", "spider": spider, "name": name, "content": content}
    return key | state | more


def _hash(content: Row | None) -> str | None:
    return hashlib.sha256(repr(content).encode()).hexdigest() if content else None


class Folders:
    """A folder of templates, and the cells."""

    def __init__(self, home: Path) -> None:
        self.templates = home / "templates"
        self.templates.mkdir()
        self.cells: list[Row] = []

    def template(self, name: str, text: str) -> None:
        path = self.templates / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def render(
        self, name: str = "index.html", now: datetime = NOW, *, builtin: bool = False
    ) -> Rendered:
        sources = find(None if builtin else self.templates)
        return render(name, sources.pages[name], sources.folder, Cells(self.cells, now))

    def page(self, name: str = "index.html", now: datetime = NOW, *, builtin: bool = False) -> str:
        rendered = self.render(name, now, builtin=builtin)
        assert rendered.problem is None
        return rendered.text

    def rendered(self, text: str, *cells: Row) -> str:
        self.template("index.html", text)
        self.cells = list(cells)
        return self.page()

    def problem(self, text: str, *cells: Row) -> str | None:
        self.template("index.html", text)
        self.cells = list(cells)
        return self.render().problem


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        {"value": EVIL},
        {"value": [EVIL]},
        {"value": {"amount": 3, "currency": EVIL}},
        {"columns": [EVIL], "rows": [{EVIL: 1}]},
        {"columns": ["a"], "rows": [{"a": EVIL}]},
        {"title": EVIL},
        {EVIL: "x", "price": 3},
    ],
)
def test_cell_content_is_escaped(folders: Folders, content: Row) -> None:
    page = folders.rendered('{{ show("c") }}', cell("c", content))
    assert "<script" not in page
    assert ESCAPED in page


def test_names_and_errors_are_escaped(folders: Folders) -> None:
    folders.cells = [cell(EVIL, {"value": 1}, EVIL, error=f'">{EVIL}', content_hash='"><b>')]
    page = folders.page(builtin=True)
    assert "alert" not in page.replace(ESCAPED, "")
    assert '"><b>' not in page


@pytest.mark.parametrize("template", ['{{ show("c") }}', '{{ cell("c").html }}'])
def test_html_of_cells_is_sanitized(folders: Folders, template: str) -> None:
    html = (
        f'<b onclick="x()">bold</b>{EVIL}<a href="https://a.example/">in</a></section>'
        '<a href="javascript:x()">js</a><style>*{}</style><i data-cell="x">i</i><iframe src="x">'
    )
    page = folders.rendered(template, cell("c", {"html": html}))
    assert '<b>bold</b><a href="https://a.example/" rel="noopener noreferrer">in</a>' in page
    for part in ("<script", "onclick", "javascript:", "<style", 'data-cell="x"', "<iframe"):
        assert part not in page


def test_cell_attributes_in_templates(folders: Folders) -> None:
    page = folders.rendered(
        '{% set c = cell("market/rate") %}{{ c.name }} {{ c.spider }} {{ c.group }} {{ c.value }} '
        "{{ c.age_seconds|age }} {{ c.stale }} {{ c.period_seconds }} {{ c.error }}|"
        '{% for row in cell("q").rows %}{{ row.a }};{% endfor %}{{ cell("f").fields.price }}',
        cell("rate", {"value": {"amount": 12.5, "currency": "EUR"}}),
        cell("q", {"columns": ["a"], "rows": [{"a": 1}, {"a": None}]}),
        cell("f", {"price": "3"}),
    )
    assert page == "rate market dynamic 12.50 EUR 3 min ago False 300.0 |1;;3"


def test_show_renders_every_kind_of_content(folders: Folders) -> None:
    page = folders.rendered(
        '{% for name in "tlfnu" %}{{ show(name) }}{% endfor %}',
        cell("t", {"columns": ["a", "b"], "rows": [{"a": 1.5, "b": NOW}]}),
        cell("l", {"value": ["x", "y"]}),
        cell("f", {"title": "T", "price": {"amount": "3.10", "currency": "GBP"}}),
        cell("n"),
        cell("u", {"value": "https://a.example/?a&b"}),
    )
    assert '<th scope="col">a</th><th scope="col">b</th>' in page
    assert '<td class="number">1.5</td><td>2026-05-01 12:00:00 UTC</td>' in page
    assert "<ul><li>x</li><li>y</li></ul>" in page
    assert "<dt>title</dt><dd>T</dd>\n<dt>price</dt><dd>3.10 GBP</dd>" in page
    assert "not read yet" in page
    assert '<a href="https://a.example/?a&amp;b" rel="noopener noreferrer">' in page
    assert '<time datetime="2026-05-01T11:57:00+00:00"' in page
    assert "3 min ago" in page
    assert page.count('class="mark"') == 1
    assert 'data-cell="market cell:l"' in page
    assert 'data-period="300.0"' in page


def test_unread_cell_is_not_an_error(folders: Folders) -> None:
    text = '{{ cell("c").value }}, {{ cell("c").fields.a }}, {{ cell("c").value|default("-") }}'
    loop = '{% for row in cell("c").rows %}row{% endfor %}{{ cell("c").stale }}'
    assert folders.rendered(text + loop, cell("c")) == "not read yet, not read yet, -True"


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({}, None),
        ({"refreshed_at": NOW - timedelta(seconds=600)}, None),
        ({"refreshed_at": NOW - timedelta(seconds=601)}, "last read 10 min ago, period 5 minutes"),
        ({"refreshed_at": NOW - timedelta(days=9), "period_seconds": None}, None),
        ({"error": "status\n500"}, "last read failed: status 500"),
        ({"refreshed_at": None}, "not read yet"),
        ({"refreshed_at": NOW + timedelta(days=1)}, None),
    ],
)
def test_cell_is_stale_if_failed_or_late(more: Row, reason: str | None) -> None:
    named = Cells([cell("c", {"value": 1}, **more)], NOW).named("c")
    assert (named.reason, named.stale) == (reason, reason is not None)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('\n{{ cell("d").value }}', "index.html, line 2: cell not found: 'd'"),
        ('{{ show("b") }}', "index.html, line 1: several spiders have a cell 'b'. Use x/b or y/b"),
        (
            "\n\n{% if %}",
            "index.html, line 3: Expected an expression, got 'end of statement block'",
        ),
        ("{{ nothing }}", "index.html, line 1: 'nothing' is undefined"),
        ('{{ cell("a").rows }}', "index.html, line 1: cell market/a has value, not rows"),
        ("{{ 1 / 0 }}", "index.html, line 1: ZeroDivisionError: division by zero"),
        ('{% include "_x.html" %}', "index.html, line 1: template not found: '_x.html'"),
        ('\n{% include "_p.html" %}', "_p.html, line 2: cell not found: 'e'"),
    ],
)
def test_problem_names_template_line_and_cause(folders: Folders, text: str, problem: str) -> None:
    folders.template("_p.html", '\n{{ cell("e") }}')
    given = (cell("a", {"value": 1}), cell("b", {}, "x"), cell("b", {}, "y"))
    assert folders.problem(text, *given) == problem


def test_binary_template_is_a_problem(folders: Folders) -> None:
    (folders.templates / "index.html").write_bytes(b"\xff")
    assert "UnicodeDecodeError" in (folders.render().problem or "")


def test_page_shows_cells_as_they_are_now(folders: Folders) -> None:
    assert "1" in folders.rendered('{{ show("a") }}', cell("a", {"value": 1}))
    later = folders.page(now=NOW + timedelta(hours=1))
    assert 'title="last read 63 min ago, period 5 minutes"' in later
    folders.cells = [cell("a", {"value": 1}, error="status 500")]
    assert 'title="last read failed: status 500"' in folders.page()


def test_second_cell_with_same_name_fails_the_page(folders: Folders) -> None:
    folders.rendered('{{ cell("a").value }}', cell("a", {"value": 1}))
    folders.cells.append(cell("a", {"value": 1}, "other"))
    assert "several spiders have a cell 'a'" in (folders.render().problem or "")


def test_pages_list_the_cells_that_scripts_compare(folders: Folders) -> None:
    folders.cells = [cell("a", {"value": 1}), cell("b", {"value": 1})]
    every = folders.page(builtin=True)
    assert 'data-count="2"' in every
    text = '{% extends "freshet/base.html" %}{% block content %}{{ cell("a").value }}{% endblock %}'
    folders.template("index.html", text)
    page = folders.page()
    assert "data-count" not in page
    assert f'data-shown="market cell:a" data-hash="{_hash({"value": 1})}"' in page
    assert "market cell:b" not in page


def test_states_of_all_cells(folders: Folders) -> None:
    cells = [cell("a", {"value": 1}), cell("b")]
    assert json.loads(states(Cells(cells, NOW))) == {
        "market cell:a": {
            "refreshed_at": "2026-05-01T11:57:00+00:00", "hash": _hash({"value": 1}), "stale": False
        },
        "market cell:b": {"refreshed_at": None, "hash": None, "stale": True},
    }  # fmt: skip


def test_built_in_page_without_cells(folders: Folders) -> None:
    assert "No cells yet" in folders.page(builtin=True)


def test_sources_are_pages_and_files_but_not_partials(folders: Folders) -> None:
    folders.template("style/a.css", "a {}")
    folders.template("_parts/b.html", "b")
    folders.template(".git/c.html", "c")
    folders.template("d.html~", "d")
    folders.template("freshet.css", "own {}")
    folders.template("deep/er/page.html", '{% extends "freshet/base.html" %}')
    sources = find(folders.templates)
    assert sources.pages == {"deep/er/page.html": "deep/er/page.html"}
    assert sources.files.keys() == {"freshet.css", "freshet.js", "style/a.css"}
    assert sources.files["freshet.css"].read_text() == "own {}"
    assert 'href="../../freshet.css"' in folders.page("deep/er/page.html")


def test_imports_read_the_cells_of_each_request(folders: Folders) -> None:
    folders.template("_m.html", '{% set v = cell("a").value %}{% macro m() %}{{ v }}{% endmacro %}')
    text = '{% import "_m.html" as m %}{{ m.m() }}'
    assert folders.rendered(text, cell("a", {"value": 1})) == "1"
    assert folders.rendered(text, cell("a", {"value": 2})) == "2"


@pytest.mark.parametrize("name", [None, "_only.html", "cells.json"])
def test_rejects_template_folder_without_pages(folders: Folders, name: str | None) -> None:
    if name:
        folders.template(name, "x")
    if name == "cells.json":
        folders.template("index.html", "x")
    with pytest.raises(ConfigError, match="no pages found" if name != "cells.json" else "states"):
        find(folders.templates)
    with pytest.raises(ConfigError, match="template folder not found"):
        find(folders.templates / "none")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "never"), (1, "just now"), (45, "45 s ago"), (180, "3 min ago"), (7200, "2 h ago"),
     (1e6, "12 days ago")],
)  # fmt: skip
def test_ages_use_largest_unit(seconds: float | None, text: str) -> None:
    assert age(seconds) == text


def test_only_web_addresses_are_linked() -> None:
    assert [address(url) for url in ("https://a/", " HTTP://a/", "javascript:x", None)] == [
        "https://a/", "HTTP://a/", "#", "#",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("localhost", True), ("LOCALHOST:8000", True), ("127.0.0.1:1", True), ("[::1]:80", True),
        ("[::1]", True), ("127.0.0.2", True), ("evil.example", False), ("", False),
        ("localhost.evil.example", False), ("127.0.0.1.evil.example:80", False),
        ("192.168.1.1", False), ("localhost:80:80", False), ("::1", False), ("[::2]", False),
    ],
)  # fmt: skip
def test_local_hosts(host: str, local: bool) -> None:
    assert is_local(host) is local
