"""Output of commands at the width of a terminal, and without a terminal."""

from __future__ import annotations

import os
import pty
import re
import struct
import subprocess
import termios
from contextlib import suppress
from fcntl import ioctl
from pathlib import Path
from typing import IO

import pytest

from tests.integration.harness import ROOT, Freshet, Pages, _clean
from tests.integration.inside import run
from tests.site import running

WIDTH = 80
LONG = "https://www.a-rather-long-host-name.example/blog/category/technology/feed"
FEEDS = [f"{LONG}-{n}/atom.xml?format=full&language=en" for n in range(5)]
FIELDS = [f"a_field_with_a_rather_long_name_{n}" for n in range(3)]
REASON = f"none of the fields found: {', '.join(FIELDS)}"


@pytest.fixture
def feeds(freshet: Freshet) -> Freshet:
    """Import some feeds that were never fetched."""
    path = freshet.folder / "feeds.txt"
    path.write_text("\n".join(FEEDS), encoding="utf-8")
    assert run(freshet, "feeds", "import", path).code == 0
    return freshet


@pytest.fixture
def failed(freshet: Freshet, pages: Pages) -> str:
    """Return the URL of a page whose visit has a long reason."""
    pages.list("index.html", ["/item/1.html"])
    pages.item("item/1.html", "One")
    freshet.crawl(
        freshet.wrapper(
            "wide",
            start_urls=[f"{pages.url}/"],
            item_pages="/item/",
            fields=dict.fromkeys(FIELDS, "h6"),
        ),
        code=1,
    )
    return f"{pages.url}/item/1.html"


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset the terminal width."""
    monkeypatch.delenv("COLUMNS", raising=False)


def test_feed_rows_fit_on_one_line(feeds: Freshet) -> None:
    lines = run(feeds, "feeds", "list", COLUMNS=WIDTH).out.splitlines()
    rows = [line for line in lines if "http" in line]
    assert len(rows) == len(FEEDS)
    assert all("…" in row for row in rows)
    assert max(map(len, lines)) <= WIDTH
    assert "next" in lines[1]


@pytest.mark.parametrize("columns", [40, 60])
def test_narrow_terminal_shows_feeds_without_figures(feeds: Freshet, columns: int) -> None:
    lines = run(feeds, "feeds", "list", COLUMNS=columns).out.splitlines()
    assert lines[1].split() == ["feed", "next", "state"]
    rows = [line for line in lines if "http" in line]
    assert len(rows) == len(FEEDS)
    assert all(" due " in row for row in rows)
    assert max(map(len, lines)) <= columns


def test_feed_urls_are_not_truncated_without_terminal(feeds: Freshet, piped: None) -> None:
    lines = feeds("feeds", "list").out.splitlines()
    assert [url for url in FEEDS if any(url in line for line in lines)] == FEEDS
    assert "…" not in "".join(lines)


def test_visit_row_fits_on_one_line(freshet: Freshet, failed: str) -> None:
    lines = run(freshet, "history", failed, COLUMNS=WIDTH).out.splitlines()
    (row,) = [line for line in lines if "│ error" in line]
    assert "…" in row
    assert "a_field" not in "".join(lines[lines.index(row) + 1 :])
    # The figures are not truncated.
    assert re.match(r"│ \d{4}-\d\d-\d\d \d\d:\d\d:\d\d │ error +│ 200 ", row)


def test_narrow_terminal_shows_outcomes_and_reasons(freshet: Freshet, failed: str) -> None:
    lines = run(freshet, "history", failed, COLUMNS=60).out.splitlines()
    assert max(map(len, lines)) <= 60
    (row,) = [line for line in lines if "│ error" in line]
    assert re.match(r"│ \d{4}-\d\d-\d\d \d\d:\d\d │ error +│ none of the fields f", row)


def test_reason_is_not_truncated_without_terminal(
    freshet: Freshet, failed: str, piped: None
) -> None:
    assert REASON in freshet("history", failed).out


@pytest.mark.soak
def test_log_lines_appear_above_progress_bar(freshet: Freshet, pages: Pages) -> None:
    """Start each log line at the left edge, with no remnants of the bar between lines."""
    items = [f"/item/{n}.html" for n in range(40)]
    pages.list("index.html", items)
    for item in items:
        pages.item(item, "One")
    wrapper = freshet.wrapper(
        "bar",
        start_urls=[f"{pages.url}/"],
        item_pages="/item/",
        fields={"price": "h6"},
        concurrency=1,
        delay_seconds=0.05,
    )
    screen = on_a_terminal(freshet, "crawl", "site", "-a", f"wrapper={wrapper}", code=1)
    # Final content of each line: the text after it was last erased.
    lines = [line.rpartition("\x1b[2K")[2] for line in re.split(r"\r?\n", screen)]
    warnings = [line for line in lines if "fields found" in line]
    assert len(warnings) == 10
    form = re.compile(r"\d{4}-\d\d-\d\d .*fields found: price( \(no more are logged; .*\))?\s*$")
    assert all(map(form.match, warnings)), warnings
    assert "━" in screen
    assert "━" not in "".join(warnings)


def on_a_terminal(freshet: Freshet, *words: str, code: int = 0) -> str:
    """Return all output of a command whose stderr is a terminal."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, WIDTH, 0, 0))
    with subprocess.Popen(
        [running.PYTHON, "-m", "scrapy", *words],
        cwd=ROOT,
        env=_clean() | {"TERM": "xterm"} | freshet.env,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        read = []
        # On Linux, reading fails once no process has the terminal open.
        with suppress(OSError):
            while part := os.read(ours, 65536):
                read.append(part)
        os.close(ours)
    screen = b"".join(read).decode()
    assert process.returncode == code, screen
    return screen


@pytest.mark.soak
def test_characters_that_the_locale_lacks_are_escaped(feeds: Freshet) -> None:
    ours = feeds.env | {"COLUMNS": str(WIDTH), "PYTHONIOENCODING": "latin-1"}
    result = listed_by_process(ours, subprocess.PIPE)
    assert (result.returncode, result.stderr) == (0, "")
    assert r"\u2026" in result.stdout


@pytest.mark.soak
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_closed_pipe_is_no_failure(feeds: Freshet, options: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    result = listed_by_process(feeds.env, writing, *options)
    os.close(writing)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.soak
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_full_disk_is_one_line(feeds: Freshet, options: list[str]) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        result = listed_by_process(feeds.env, full, *options)
    assert result.returncode == 1
    assert result.stderr == "scrapy feeds: standard output: No space left on device\n"


def listed_by_process(
    env: dict[str, str], out: IO[str] | int, *options: str
) -> subprocess.CompletedProcess[str]:
    """Run `scrapy feeds list` in a new process, whose standard output is set up from scratch."""
    return subprocess.run(
        [running.PYTHON, "-m", "scrapy", "feeds", "list", *options],
        cwd=ROOT,
        env=_clean() | env,
        stdout=out,
        stderr=subprocess.PIPE,
        encoding="latin-1",
        check=False,
    )
