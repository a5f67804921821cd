"""Dashboards of cells: display and escaping, staleness, and files written by a build."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from crawler.errors import ConfigError
from crawler.fetch.guard import is_local
from crawler.web.dashboards import sources
from crawler.web.dashboards.build import RECORD, Cells, Done, Record, address, age, build
from crawler.web.routes.dashboards import MAX_FILE_BYTES, file_response

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
    """Templates, the pages built from them, and the cells."""

    def __init__(self, home: Path) -> None:
        self.templates, self.out = home / "templates", home / "out"
        self.templates.mkdir()
        self.cells: list[Row] = []

    def template(self, name: str, text: str) -> None:
        path = self.templates / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def build(self, now: datetime = NOW, retry: bool = True, builtin: bool = False) -> Done:
        templates = sources.find(None if builtin else self.templates)
        return build(Cells(self.cells, now), templates, self.out, retry=retry)

    def page(self, name: str = "index.html") -> str:
        return (self.out / name).read_text(encoding="utf-8")

    def rendered(self, text: str, *cells: Row) -> str:
        self.template("index.html", text)
        self.cells = list(cells)
        done = self.build()
        assert not done.problems, done.problems
        return self.page()

    def problem(self, text: str, *cells: Row) -> str:
        self.template("index.html", text)
        self.cells = list(cells)
        return self.build().problems["index.html"].removeprefix(f"{self.templates}/")


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
    folders.build(builtin=True)
    page = folders.page()
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
    assert not (folders.out / "index.html").exists()


def test_binary_template_is_a_problem(folders: Folders) -> None:
    (folders.templates / "index.html").write_bytes(b"\xff")
    assert "UnicodeDecodeError" in folders.build().problems["index.html"]


def test_failed_page_keeps_its_file(folders: Folders) -> None:
    folders.template("b.html", 'good {{ cell("c").value }}')
    folders.rendered('old {{ cell("c").value }}', cell("c", {"value": 1}))
    folders.cells = [cell("c", {"value": 2})]
    folders.template("index.html", 'new {{ cell("d").value }}')
    done = folders.build()
    assert done.pages == {"b.html": "written", "index.html": "failed"}
    assert (folders.page(), folders.page("b.html")) == ("old 1", "good 2")
    assert folders.build().pages == {"b.html": "unchanged", "index.html": "failed"}
    assert folders.build(retry=False).pages["index.html"] == "unchanged"
    folders.cells.append(cell("d", {"value": 3}))
    assert folders.build(retry=False).pages == {"b.html": "unchanged", "index.html": "written"}
    assert folders.page() == "new 3"


def test_page_is_rebuilt_only_if_its_cells_change(folders: Folders) -> None:
    folders.template("b.html", '{{ cell("b").value }}')
    before = cell("a", {"value": 1}), cell("b", {"value": 1})
    folders.rendered('{{ show("a") }}', *before)
    old_stat = (folders.out / "index.html").stat()
    assert folders.build().pages == {"b.html": "unchanged", "index.html": "unchanged"}
    later = before[0] | {"refreshed_at": NOW, "refreshed": 9}
    folders.cells = [later, cell("b", {"value": 2})]
    assert folders.build().pages == {"b.html": "written", "index.html": "unchanged"}
    assert (folders.out / "index.html").stat().st_mtime_ns == old_stat.st_mtime_ns
    for more in ({"error": "status 500"}, {"error": "status 404"}, {"refreshed_at": None}):
        folders.cells[0] = before[0] | more
        assert folders.build().pages["index.html"] == "written", more
    states = json.loads(folders.page("cells.json"))
    assert states["market cell:b"] == {
        "refreshed_at": "2026-05-01T11:57:00+00:00", "hash": _hash({"value": 2}), "stale": False,
    }  # fmt: skip


def test_page_is_rebuilt_when_its_cells_become_stale(folders: Folders) -> None:
    folders.rendered('{{ show("a") }}', cell("a", {"value": 1}))
    assert folders.build(NOW + timedelta(hours=1)).pages == {"index.html": "written"}
    assert 'title="last read 63 min ago, period 5 minutes"' in folders.page()


def test_second_cell_with_same_name_fails_the_page(folders: Folders) -> None:
    folders.rendered('{{ cell("a").value }}', cell("a", {"value": 1}))
    folders.cells.append(cell("a", {"value": 1}, "other"))
    assert folders.build().pages == {"index.html": "failed"}


def test_page_of_all_cells_is_rebuilt_for_new_cells(folders: Folders) -> None:
    folders.cells = [cell("a", {"value": 1})]
    assert folders.build(builtin=True).pages == {"index.html": "written"}
    assert 'data-count="1"' in folders.page()
    folders.cells.append(cell("b", {"value": 1}))
    assert folders.build(builtin=True).pages == {"index.html": "written"}
    assert folders.build(builtin=True).pages == {"index.html": "unchanged"}


def test_built_in_page_without_cells(folders: Folders) -> None:
    folders.build(builtin=True)
    assert "No cells yet" in folders.page()


def test_missing_or_outdated_output_is_rebuilt(folders: Folders) -> None:
    folders.template("_p", "1")
    folders.rendered("{% include '_p' %}", cell("a", {"value": 1}))
    (folders.out / "index.html").unlink()
    assert folders.build().pages == {"index.html": "written"}
    folders.template("_p", "2")
    assert folders.build().pages == {"index.html": "written"}
    assert folders.page() == "2"
    for broken in ("{", "[]", '{"pages": {"../x": {"cells": {}, "written": true}}}'):
        (folders.out / RECORD).write_text(broken, encoding="utf-8")
        assert folders.build().pages == {"index.html": "written"}
    (folders.out / RECORD).unlink()
    assert folders.build().pages == {"index.html": "written"}
    assert folders.build().pages == {"index.html": "unchanged"}


def test_removed_templates_delete_only_built_files(folders: Folders) -> None:
    folders.template("sub/old.html", "x")
    folders.template("sub/a.css", "x")
    folders.rendered("x")
    (folders.out / "mine.html").write_text("mine", encoding="utf-8")
    (folders.templates / "sub/old.html").unlink()
    (folders.templates / "sub/a.css").unlink()
    assert folders.build().pages == {"index.html": "written", "sub/old.html": "removed"}
    assert not (folders.out / "sub").exists()
    assert (folders.out / "mine.html").exists()
    assert set(Record.read(folders.out).pages) == {"index.html"}


def test_static_files_are_copied_but_not_partials(folders: Folders) -> None:
    folders.template("style/a.css", "a {}")
    folders.template("_parts/b.html", "b")
    folders.template(".git/c.html", "c")
    folders.template("freshet.css", "own {}")
    folders.template("deep/er/page.html", '{% extends "freshet/base.html" %}')
    done = folders.build()
    assert done.pages == {"deep/er/page.html": "written"}
    paths = {str(path.relative_to(folders.out)) for path in folders.out.rglob("*")}
    assert {name for name in paths if (folders.out / name).is_file()} == {
        RECORD, "cells.json", "deep/er/page.html", "freshet.css", "freshet.js", "style/a.css",
    }  # fmt: skip
    assert folders.page("freshet.css") == "own {}"
    assert 'href="../../freshet.css"' in folders.page("deep/er/page.html")
    folders.template("style/a.css", "b {}")
    folders.build()
    assert folders.page("style/a.css") == "b {}"


def test_cells_used_by_imports_are_recorded_per_page(folders: Folders) -> None:
    folders.template("_m.html", '{% set v = cell("a").value %}{% macro m() %}{{ v }}{% endmacro %}')
    for name in ("b.html", "index.html"):
        folders.template(name, '{% import "_m.html" as m %}{{ m.m() }}')
    folders.cells = [cell("a", {"value": 1})]
    folders.build()
    folders.cells = [cell("a", {"value": 2})]
    assert folders.build().pages == {"b.html": "written", "index.html": "written"}


@pytest.mark.parametrize("name", [None, "_only.html", "cells.json"])
def test_rejects_template_folder_without_pages(folders: Folders, name: str | None) -> None:
    if name:
        folders.template(name, "x")
    if name == "cells.json":
        folders.template("index.html", "x")
    with pytest.raises(ConfigError, match="no pages found" if name != "cells.json" else "states"):
        folders.build()
    with pytest.raises(ConfigError, match="template folder not found"):
        sources.find(folders.templates / "none")


def test_unwritable_page_fails_alone(folders: Folders) -> None:
    (folders.out / "index.html" / "x").mkdir(parents=True)
    folders.template("b.html", "b")
    folders.template("index.html", "x")
    done = folders.build()
    assert done.pages == {"b.html": "written", "index.html": "failed"}
    assert done.problems["index.html"].startswith(f"{folders.out}/index.html: ")


def test_rejects_output_folder_that_is_a_file(folders: Folders) -> None:
    folders.template("index.html", "x")
    folders.out.write_text("x", encoding="utf-8")
    with pytest.raises(ConfigError, match="out"):
        folders.build()


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


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "out/sub").mkdir(parents=True)
    for name in ("secret", "out/index.html", "out/.hidden", "out/sub/index.html", "out/a b.css"):
        (tmp_path / name).write_text(name, encoding="utf-8")
    with (tmp_path / "out/big").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    (tmp_path / "out/link").symlink_to(tmp_path / "secret")
    return (tmp_path / "out").resolve()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("", 200), ("index.html", 200), ("sub/", 200), ("sub", 301), ("a b.css", 200),
        ("/sub/", 200), ("none", 404), ("index.html/", 404), (".hidden", 404),
        ("sub/../.hidden", 404), ("../secret", 404), ("link", 404), ("a\0b", 404),
        ("\\..\\secret", 404), ("*", 404), ("http://evil.example/", 404), ("a" * 5000, 404),
        ("big", 404),
    ],
)  # fmt: skip
def test_serves_only_files_of_the_folder(root: Path, path: str, status: int) -> None:
    result = file_response(root, path)
    assert result.status_code == status
    assert "default-src 'self'" in result.headers["Content-Security-Policy"]
    if status == 301:
        assert result.headers["Location"] == "sub/"
    if status == 404:
        assert b"secret" not in result.body


def test_unchanged_file_is_304(root: Path) -> None:
    first = file_response(root, "")
    assert first.headers["Content-Type"] == "text/html; charset=utf-8"
    again = file_response(root, "", first.headers["ETag"])
    assert (again.status_code, again.body) == (304, b"")


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
