"""Traces of feeds: accepted rows, skipped rows, and error messages."""

from __future__ import annotations

import gzip
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from crawler.errors import TraceError
from crawler.planning.traces import FeedTrace, read_feed_trace

POSTS = """\
feed_id,posted_at_utc,title
b,2024-01-02T00:00:00Z,second
b,2024-01-01T06:00:01Z,first
a,2024-01-01T12:00:00+02:00,
b,2024-01-01T06:00:01Z,at once
x,2024-01-01T00:00:00Z,of a feed without a window
y,2024-01-01T00:00:00Z,of a feed that is not listed
"""
FEEDS = """\
feed_id,kind,window_size_S,weight
a,blog,15,
b,news,20.0,2.5
c,silent,1,1
x,blog,,
"""
NEW_YEAR = datetime(2024, 1, 1, tzinfo=UTC).timestamp() / 3600


def trace_of(folder: Path, posts: str | bytes = POSTS, feeds: str | bytes = FEEDS) -> FeedTrace:
    """Return the trace in files with these contents."""
    for name, content in (("posts.csv", posts), ("feeds.csv", feeds)):
        data = content.encode() if isinstance(content, str) else content
        (folder / name).write_bytes(data)
    return read_feed_trace(folder / "posts.csv")


def error_of(folder: Path, posts: str | bytes = POSTS, feeds: str | bytes = FEEDS) -> str:
    """Return the error message for files with these contents, without the path of their folder."""
    with pytest.raises(TraceError) as caught:
        trace_of(folder, posts, feeds)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(f"{folder}/", "")


def hours_of(trace: FeedTrace, feed: str) -> list[float]:
    """Return the times of a feed's posts in hours since New Year."""
    i = trace.ids.index(feed)
    of_feed = slice(trace.posts.first[i], trace.posts.first[i + 1])
    return [float(at) - NEW_YEAR for at in trace.posts.at[of_feed]]


def test_posts_may_be_unsorted_and_simultaneous(tmp_path: Path) -> None:
    trace = trace_of(tmp_path)
    second = 1 / 3600
    assert hours_of(trace, "b") == pytest.approx([6 + second, 6 + second, 24], abs=1e-9)
    assert hours_of(trace, "a") == [10]


def test_feeds_without_size_are_skipped(tmp_path: Path) -> None:
    trace = trace_of(tmp_path)
    assert trace.ids == ("a", "b", "c")
    assert hours_of(trace, "c") == []
    assert (trace.windowless, trace.unlisted) == (1, 1)


def test_sizes_are_integers_and_weights_default_to_1(tmp_path: Path) -> None:
    trace = trace_of(tmp_path)
    assert trace.window.tolist() == [15, 20, 1]
    assert trace.weight.tolist() == [1, 2.5, 1]
    plain = trace_of(tmp_path, feeds="window_size_S,feed_id\n3,b\n")
    assert (plain.window.tolist(), plain.weight.tolist()) == ([3], [1])
    assert plain.unlisted == 3


def test_files_may_be_gzip_in_another_place(tmp_path: Path) -> None:
    plain = trace_of(tmp_path)
    for name, content in (("posts.csv.gz", POSTS), ("others.csv.gz", FEEDS)):
        (tmp_path / name).write_bytes(gzip.compress(content.encode()))
    (tmp_path / "feeds.csv").unlink()
    trace = read_feed_trace(tmp_path / "posts.csv.gz", tmp_path / "others.csv.gz")
    assert trace.posts.at.tolist() == plain.posts.at.tolist()


def with_post(row: str) -> str:
    """Return the posts with the second row replaced."""
    rows = POSTS.splitlines()
    rows[2] = row
    return "\n".join(rows)


@pytest.mark.parametrize(
    ("posts", "message"),
    [
        ("", "posts.csv: empty file. Required columns: feed_id, posted_at_utc"),
        ("feed_id,posted_at_utc\n", "posts.csv: no rows below the header"),
        ("feed,posted_at_utc\nb,2024-01-01T00:00:00Z\n",
         "posts.csv, line 1: column not found: feed_id. Rename one of 'feed, posted_at_utc'"),
        (with_post("b,2024-01-01T06:00:01,"),
         "posts.csv, line 3: posted_at_utc '2024-01-01T06:00:01' has no time zone. "
         "Append Z for UTC"),
        (with_post("b,yesterday,"),
         "posts.csv, line 3: posted_at_utc 'yesterday' is not a valid time"),
        (with_post("y,yesterday,"),
         "posts.csv, line 3: posted_at_utc 'yesterday' is not a valid time"),
        (with_post(",2024-01-01T06:00:01Z,"), "posts.csv, line 3: feed_id is empty"),
        (with_post("b,2024-01-01T06:00:01Z"), "posts.csv, line 3: 2 values for 3 columns"),
        (with_post('b,"2024'), "posts.csv, after line 2: not CSV"),
    ],
)  # fmt: skip
def test_rejects_invalid_posts(tmp_path: Path, posts: str, message: str) -> None:
    assert message in error_of(tmp_path, posts)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("b,news,10,", "feeds.csv, line 6: feed 'b' is listed twice. Remove one row"),
        ("x,news,10,", "feeds.csv, line 6: feed 'x' is listed twice. Remove one row"),
        (",news,10,", "feeds.csv, line 6: feed_id is empty"),
        *(
            (f"d,news,{window},",
             f"feeds.csv, line 6: window_size_S '{window}' is not a valid size. "
             "Use a whole number of 1 or more, or leave it empty")
            for window in ("0", "-3", "2.5", "many", "nan", "inf", "1e12")
        ),
        *(
            (f"d,news,10,{weight}",
             f"feeds.csv, line 6: weight '{weight}' is not in (0, 1,000,000]. "
             "Use a number in that range, or leave it empty")
            for weight in ("0", "-1", "much", "nan", "inf")
        ),
    ],
)  # fmt: skip
def test_rejects_invalid_feed_rows(tmp_path: Path, row: str, message: str) -> None:
    assert error_of(tmp_path, feeds=f"{FEEDS}{row}\n") == message


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ("", "feeds.csv: empty file. Required columns: feed_id, window_size_S"),
        ("feed_id\nb\n",
         "feeds.csv, line 1: column not found: window_size_S. Rename one of 'feed_id'"),
        ("feed_id,window_size_S\nb,\n",
         "feeds.csv: no feed has a known size. Fill in window_size_S"),
    ],
)  # fmt: skip
def test_rejects_feeds_without_columns_or_sizes(tmp_path: Path, feeds: str, message: str) -> None:
    assert error_of(tmp_path, feeds=feeds) == message


def test_rejects_missing_files(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=re.escape(f"{tmp_path}/posts.csv: No such file")):
        read_feed_trace(tmp_path / "posts.csv")
    (tmp_path / "posts.csv").write_text(POSTS)
    with pytest.raises(TraceError, match=re.escape(f"{tmp_path}/feeds.csv: No such file")):
        read_feed_trace(tmp_path / "posts.csv")
