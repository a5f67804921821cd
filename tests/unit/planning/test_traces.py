"""Traces and visit files: accepted rows, and error messages."""

from __future__ import annotations

import csv
import gzip
import math
import os
import re
from dataclasses import astuple
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from crawler.errors import TraceError
from crawler.planning.traces import Trace, read_trace, whole_seconds, write_visits
from schedules.evaluation.score import score
from schedules.history import Times

# A folder with pages/changes.csv.gz and pages/pages.csv, the trace of a real population.
EVAL_DATA = os.environ.get("EVAL_DATA")

CHANGES = """\
page_id,commit_time_utc,size_bytes,content_sha1_12
b,2024-01-01T00:00:00Z,10,aaa
b,2024-01-01T06:00:01Z,11,bbb
b,2024-01-02T00:00:00Z,,
a,2024-01-01T12:00:00Z,12,ccc
"""
PAGES = """\
page_id,source_id,url_or_path,until_utc
a,news,/a,2024-03-04T00:00:00Z
b,shop,/b,
c,news,/c,
"""
NEW_YEAR = datetime(2024, 1, 1, tzinfo=UTC).timestamp() / 3600


def trace_of(folder: Path, changes: str | bytes = CHANGES, pages: str | bytes = PAGES) -> Trace:
    """Return the trace in files with these contents."""
    for name, content in (("changes.csv", changes), ("pages.csv", pages)):
        data = content.encode() if isinstance(content, str) else content
        (folder / name).write_bytes(data)
    return read_trace(folder / "changes.csv")


def error_of(folder: Path, changes: str | bytes = CHANGES, pages: str | bytes = PAGES) -> str:
    """Return the error message for files with these contents, without the path of their folder."""
    with pytest.raises(TraceError) as caught:
        trace_of(folder, changes, pages)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(f"{folder}/", "")


def hours_of(trace: Trace, page: str) -> list[float]:
    """Return the times of a page's changes in hours since New Year."""
    i = trace.ids.index(page)
    of_page = slice(trace.changes.first[i], trace.changes.first[i + 1])
    return [float(at) - NEW_YEAR for at in trace.changes.at[of_page]]


def test_first_row_of_page_is_not_a_change(tmp_path: Path) -> None:
    trace = trace_of(tmp_path)
    assert trace.ids == ("a", "b", "c")
    assert hours_of(trace, "a") == []
    assert hours_of(trace, "b") == pytest.approx([6 + 1 / 3600, 24], abs=1e-9)
    assert (trace.began - NEW_YEAR).tolist() == pytest.approx([12, 0, math.nan], nan_ok=True)


def test_pages_have_sources_and_may_end(tmp_path: Path) -> None:
    trace = trace_of(tmp_path)
    assert trace.sources == ("news", "shop")
    assert trace.source.tolist() == [0, 1, 0]
    assert (trace.ends - NEW_YEAR).tolist() == [63 * 24, math.inf, math.inf]


def test_times_are_exact_to_the_second(tmp_path: Path) -> None:
    trace = trace_of(tmp_path)
    assert (whole_seconds(trace.changes.at) == trace.changes.at).all()


@pytest.mark.parametrize("name", ["changes.csv.gz", "changes.csv", "changes"])
def test_gzip_is_detected_by_content(tmp_path: Path, name: str) -> None:
    plain = trace_of(tmp_path)
    (tmp_path / name).write_bytes(gzip.compress(CHANGES.encode()))
    assert read_trace(tmp_path / name).changes.at.tolist() == plain.changes.at.tolist()


def test_the_pages_file_may_be_elsewhere(tmp_path: Path) -> None:
    plain = trace_of(tmp_path)
    (tmp_path / "others.csv.gz").write_bytes(gzip.compress(PAGES.encode()))
    (tmp_path / "pages.csv").unlink()
    trace = read_trace(tmp_path / "changes.csv", tmp_path / "others.csv.gz")
    assert trace.ids == plain.ids


def test_columns_may_be_reordered_and_optional_ones_missing(tmp_path: Path) -> None:
    changes = "commit_time_utc,x,page_id\n2024-01-01T00:00Z,,b\n2024-01-01T03:00:00+02:00,,b\n"
    trace = trace_of(tmp_path, changes, "source_id,page_id\nshop,b\n")
    assert hours_of(trace, "b") == [1]
    assert trace.ends.tolist() == [math.inf]


def test_accepts_byte_order_mark_and_crlf(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, b"\xef\xbb\xbf" + CHANGES.replace("\n", "\r\n").encode() + b"\r\n")
    assert len(hours_of(trace, "b")) == 2


def test_rows_of_pages_may_be_interleaved(tmp_path: Path) -> None:
    header, *rows = CHANGES.splitlines(keepends=True)
    by_time = sorted(rows, key=lambda row: row.split(",")[1])
    assert by_time != rows
    trace = trace_of(tmp_path, header + "".join(by_time))
    assert trace.changes.at.tolist() == trace_of(tmp_path).changes.at.tolist()


def test_two_contents_in_one_second_are_two_changes(tmp_path: Path) -> None:
    again = CHANGES + "a,2024-01-01T12:00:00Z,12,ddd\n"
    assert hours_of(trace_of(tmp_path, again), "a") == [12]


def test_reading_writes_no_files(tmp_path: Path) -> None:
    trace_of(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"changes.csv", "pages.csv"}


def changed(number: int, row: str) -> str:
    """Return the changes with row `number` replaced."""
    rows = CHANGES.splitlines()
    rows[number - 1] = row
    return "\n".join(rows)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("", "changes.csv: empty file. Required columns: page_id, commit_time_utc"),
        ("page_id,commit_time_utc\n", "changes.csv: no rows below the header"),
        ("page,commit_time_utc\nb,2024-01-01T00:00:00Z\n",
         "changes.csv, line 1: column not found: page_id. Rename one of 'page, commit_time_utc'"),
        ("page_id\nb\n",
         "changes.csv, line 1: column not found: commit_time_utc. Rename one of 'page_id'"),
        (changed(3, "b,2024-01-01T06:00:01,11,bbb"),
         "changes.csv, line 3: commit_time_utc '2024-01-01T06:00:01' has no time zone. "
         "Append Z for UTC"),
        (changed(3, "b,2024-01-02,11,bbb"), "has no time zone. Append Z for UTC"),
        (changed(3, "b,yesterday,11,bbb"),
         "changes.csv, line 3: commit_time_utc 'yesterday' is not a valid time. "
         "Use a format such as 2024-01-31T08:00:00Z"),
        (changed(3, "b,2024-02-30T00:00:00Z,11,bbb"), "'2024-02-30T00:00:00Z' is not a valid time"),
        (changed(3, "b,,11,bbb"), "commit_time_utc '' is not a valid time"),
        (changed(3, "b,1704067200,11,bbb"), "commit_time_utc '1704067200' is not a valid time"),
        (changed(3, "d,2024-01-01T06:00:01Z,11,bbb"),
         "changes.csv, line 3: page 'd' is not in pages.csv. Add it there"),
        (changed(3, "b,2023-12-31T23:59:59Z,11,bbb"),
         "changes.csv, line 3: record of page 'b' at '2023-12-31T23:59:59Z' follows one "
         "at 2024-01-01T00:00:00Z. Sort the rows by page_id and commit_time_utc"),
        (changed(3, "b,2024-01-01T00:00:00Z,10,aaa"),
         "changes.csv, line 3: duplicate record of page 'b' at '2024-01-01T00:00:00Z'. "
         "Remove one"),
        (changed(3, "b,2024-01-01T06:00:01Z"), "changes.csv, line 3: 2 values for 4 columns"),
        (changed(3, 'b,"2024'), "changes.csv, after line 2: not CSV"),
        (changed(3, "d" * 200 + ",2024-01-01T00:00:00Z,,"), f"page '{'d' * 80}…' is not in"),
    ],
)  # fmt: skip
def test_rejects_invalid_changes(tmp_path: Path, changes: str, message: str) -> None:
    assert message in error_of(tmp_path, changes)


@pytest.mark.parametrize(
    ("pages", "message"),
    [
        ("", "pages.csv: empty file. Required columns: page_id, source_id"),
        ("page_id,source_id\n", "pages.csv: no rows below the header"),
        ("page_id\nb\n",
         "pages.csv, line 1: column not found: source_id. Rename one of 'page_id'"),
        (PAGES + "b,shop,/b,\n", "pages.csv, line 5: page 'b' is listed twice. Remove one row"),
        (PAGES + ",shop,/b,\n", "pages.csv, line 5: page_id or source_id is empty"),
        (PAGES + "d,,/b,\n", "pages.csv, line 5: page_id or source_id is empty"),
        (PAGES + "d,shop,/d,soon\n", "pages.csv, line 5: until_utc 'soon' is not a valid time"),
        (PAGES + "d,shop,/d,2024-01-01\n", "until_utc '2024-01-01' has no time zone"),
        (PAGES.replace("2024-03-04T00:00:00Z", "2024-01-01T11:00:00Z"),
         "pages.csv, line 2: page 'a' ends at 2024-01-01T11:00:00Z, before its first record at "
         "2024-01-01T12:00:00Z. Correct until_utc or leave it empty"),
    ],
)  # fmt: skip
def test_rejects_invalid_pages(tmp_path: Path, pages: str, message: str) -> None:
    assert message in error_of(tmp_path, pages=pages)


def test_rejects_files_with_invalid_encoding(tmp_path: Path) -> None:
    latin = CHANGES.encode() + "é,2024-01-01T12:00:00Z,,\n".encode("latin-1")
    assert error_of(tmp_path, latin) == (
        "changes.csv, after line 0: not UTF-8. Save the file as UTF-8"
    )
    cut = gzip.compress(os.urandom(5000).hex().encode())[:-2000]
    assert "invalid gzip data. Download or write the file again" in error_of(tmp_path, cut)
    flipped = bytearray(gzip.compress(CHANGES.encode()))
    flipped[len(flipped) // 2] ^= 0xFF
    assert "changes.csv" in error_of(tmp_path, bytes(flipped))


def test_rejects_missing_files(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=re.escape(f"{tmp_path}/changes.csv: No such file")):
        read_trace(tmp_path / "changes.csv")
    (tmp_path / "changes.csv").write_text(CHANGES)
    with pytest.raises(TraceError, match=re.escape(f"{tmp_path}/pages.csv: No such file")):
        read_trace(tmp_path / "changes.csv")
    (tmp_path / "pages.csv").write_text(PAGES)
    with pytest.raises(TraceError, match=re.escape(f"{tmp_path}: Is a directory")):
        read_trace(tmp_path, tmp_path / "pages.csv")


def test_rejects_uncompressed_file_named_gz(tmp_path: Path) -> None:
    (tmp_path / "pages.csv").write_text(PAGES)
    path = tmp_path / "changes.csv.gz"
    path.write_text(CHANGES)
    with pytest.raises(TraceError, match=r"not gzip\. Compress it, or remove .gz from its name"):
        read_trace(path)


VISITS = Times(np.array([0, 2, 2, 3]), NEW_YEAR + np.array([0, 1.5, 24 + 0.9 / 3600]))


def test_visits_are_written_to_the_second(tmp_path: Path) -> None:
    path = tmp_path / "new" / "uniform_265.csv.gz"
    write_visits(path, ["a", "b", "odd, page"], VISITS)
    with gzip.open(path, "rt", newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert rows == [
        ["target", "at"],
        ["a", "2024-01-01T00:00:00Z"],
        ["a", "2024-01-01T01:30:00Z"],
        ["odd, page", "2024-01-02T00:00:01Z"],
    ]


def test_equal_visits_overwrite_with_equal_files(tmp_path: Path) -> None:
    one, other = tmp_path / "1.csv.gz", tmp_path / "2.csv.gz"
    other.write_text("old")
    for path in (one, other):
        write_visits(path, ["a", "b", "c"], VISITS)
    assert one.read_bytes() == other.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"1.csv.gz", "2.csv.gz"}


def test_failed_write_keeps_existing_file(tmp_path: Path) -> None:
    path = tmp_path / "1.csv.gz"
    path.write_text("old")
    with pytest.raises(IndexError):
        write_visits(path, ["a", "b", "c", "d", "e"], VISITS)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_unwritable_path_is_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "1.csv.gz", tmp_path):
        with pytest.raises(TraceError, match=re.escape(f"{path}: ")):
            write_visits(path, ["a", "b", "c"], VISITS)


# Freshness, age in days, delay and delay of all in hours, missed share; daily visits at noon.
EXPECTED_BY_PAGE = (
    0.9159682570970326, 0.025504040578783214, 8.022701023391813, 10.214238749018453,
    0.47813604240282687,
)  # fmt: skip
EXPECTED_BY_SOURCE = (
    0.7707242791659499, 0.09347879636832168, 8.046305066127417, 11.05593866687295,
    0.4042489631357763,
)  # fmt: skip


@pytest.mark.skipif(not EVAL_DATA, reason="set EVAL_DATA to a folder with the trace of real pages")
def test_score_of_real_pages_matches_independent_scorer() -> None:
    trace = read_trace(Path(str(EVAL_DATA)) / "pages" / "changes.csv.gz")
    start, stop = (datetime(2024, *day, tzinfo=UTC).timestamp() / 3600 for day in ((1, 22), (3, 4)))
    at = np.arange(start + 12, stop, 24)
    n = len(trace)
    visits = Times(np.arange(n + 1) * len(at), np.tile(at, n))
    totals = score(trace.changes, visits, trace.source, trace.ends, start, stop).totals()
    assert (totals.pages, totals.sources, totals.changes, totals.visits) == (916, 17, 13584, 38262)
    assert astuple(totals.by_page) == pytest.approx(EXPECTED_BY_PAGE, abs=1e-9)
    assert astuple(totals.by_source) == pytest.approx(EXPECTED_BY_SOURCE, abs=1e-9)
