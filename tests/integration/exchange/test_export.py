"""`scrapy export` writes only new data, complete files, and the same bytes for the same data."""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import resource
import signal
import time
from pathlib import Path

import fsspec
import pyarrow.parquet as pq
import pytest
from bson import ObjectId

from tests.integration.exchange.small_crawl import (
    FORMULA,
    ITEM,
    OTHER,
    TABBED,
    ago,
    fill,
    post,
    version,
    visit,
)
from tests.integration.harness import Db, Freshet
from tests.integration.holding import holding
from tests.integration.inside import in_json, run

MANIFEST = "_freshet_export.json"


@pytest.fixture
def crawled(database: Db) -> Db:
    """Return a database with a small crawl."""
    fill(database)
    return database


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file below a folder by its path, including hidden ones."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def exported(freshet: Freshet, *args: object) -> dict[str, int]:
    """Export a table, and return the numbers of the report."""
    (report,) = in_json(freshet, "export", *args)["tables"]
    return {name: report[name] for name in ("files", "rows", "unchanged", "removed")}


def test_each_day_of_a_site_has_a_file_with_typed_columns(
    freshet: Freshet, crawled: Db, tmp_path: Path
) -> None:
    assert exported(freshet, "visits", tmp_path / "out") == {
        "files": 7, "rows": 10, "unchanged": 0, "removed": 0,
    }  # fmt: skip
    day = f"{ago(6):%Y-%m-%d}"
    table = pq.read_table(
        tmp_path / f"out/visits/spider=shop/day={day}/part-00000.parquet", partitioning=None
    )
    assert table.column("visited_at").to_pylist() == [ago(6, 8), ago(6, 9), ago(6, 10)]
    assert table.column("outcome").to_pylist() == ["new", "new", "error"]
    assert table.column("status").to_pylist() == [200, 200, None]
    assert table.column("event").to_pylist() == [False] * 3
    (first,) = crawled.visits.find({"outcome": "new", "target": ITEM})
    assert table.column("id")[0].as_py() == str(first["_id"])


def test_export_without_new_data_writes_nothing(
    freshet: Freshet, crawled: Db, tmp_path: Path
) -> None:
    for name in ("visits", "versions", "posts", "targets", "feeds", "plans"):
        run(freshet, "export", name, tmp_path / "out")
    before = digests(tmp_path / "out")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("part-*")}
    done = run(freshet, "export", "all", tmp_path / "out")
    newest = f"{ago(2, 11):%Y-%m-%d %H:%M:%S} UTC"
    assert done.code == 0
    assert f"visits: nothing new since {newest}; 7 files in {tmp_path}/out/visits\n" in done.out
    assert "targets: nothing new; 2 files" in done.out
    assert digests(tmp_path / "out") == before
    assert {path: path.stat().st_mtime_ns for path in times} == times


def test_only_days_with_new_rows_are_rewritten(
    freshet: Freshet, crawled: Db, tmp_path: Path
) -> None:
    exported(freshet, "visits", tmp_path / "out")
    before = digests(tmp_path / "out")
    # A visit that recovery adds to the change log days after the visit.
    crawled.visits.insert_one(visit(ago(5, 3), "unchanged"))
    crawled.visits.insert_one(visit(ago(0, 0), "unchanged"))
    assert exported(freshet, "visits", tmp_path / "out") == {
        "files": 2, "rows": 3, "unchanged": 6, "removed": 0,
    }  # fmt: skip
    after = digests(tmp_path / "out")
    changed = {path for path, digest in after.items() if before.get(path) != digest}
    folders = {f"visits/spider=shop/day={ago(days):%Y-%m-%d}" for days in (0, 5)}
    assert changed == {f"visits/{MANIFEST}"} | {f"{name}/part-00000.parquet" for name in folders}


def test_export_keeps_pruned_days_and_removes_forgotten_sites(
    freshet: Freshet, crawled: Db, tmp_path: Path
) -> None:
    run(freshet, "export", "all", tmp_path / "out")
    before = digests(tmp_path / "out")
    crawled.visits.delete_many({"at": {"$lt": ago(4, 0)}})
    crawled.versions.delete_many({})
    assert exported(freshet, "visits", tmp_path / "out")["files"] == 0
    assert run(freshet, "export", "versions", tmp_path / "out").code == 0
    assert digests(tmp_path / "out") == before
    crawled.targets.delete_many({"spider": "feeds"})
    assert exported(freshet, "targets", tmp_path / "out")["removed"] == 1
    assert not list((tmp_path / "out/targets/spider=feeds").iterdir())


@pytest.mark.parametrize(
    "options", [(), ("--format", "jsonl", "--gzip"), ("--format", "csv")], ids=str
)
@pytest.mark.parametrize("days", [1, 3])
def test_rows_pruned_since_the_last_export_stay(
    days: int, options: tuple[str, ...], freshet: Freshet, crawled: Db, tmp_path: Path
) -> None:
    versions = [
        version("k1", ago(days, 3), title=FORMULA, price=10.5, main_text='a "quoted"\r\ntext,\n'),
        version("k2", ago(days, 4), links=["https://shop.example/ä", "b,c"], seen=ago(2)),
        version("k3", ago(days, 4), title="", stock=None, main_text="'"),
        version("k4", ago(days, 5), title=None, tags=[], count=3),
        version("k5", ago(days, 6), title=7),
    ]
    crawled.versions.insert_many(versions[:4])
    exported(freshet, "versions", tmp_path / "out", *options)
    # The newest versions stay, and one is stored after the export.
    crawled.versions.delete_many({"_id": {"$in": [row["_id"] for row in versions[:3]]}})
    crawled.versions.insert_one(versions[4])
    report = exported(freshet, "versions", tmp_path / "out", *options)
    assert (report["files"], report["rows"]) == (1, 5)
    after = digests(tmp_path / "out")
    assert exported(freshet, "versions", tmp_path / "out", *options)["files"] == 0
    crawled.versions.insert_many(versions[:3])
    exported(freshet, "versions", tmp_path / "whole", *options)
    assert digests(tmp_path / "whole") == after, "as if nothing had been pruned"


@pytest.mark.parametrize(
    ("kept", "filling", "options"),
    [(0, b"{", ("jsonl",)), (0, b"\0", ("csv",)), (20, b"\0", ("jsonl", "--gzip"))],
    ids=str,
)
def test_damaged_file_with_pruned_rows_is_reported(
    freshet: Freshet, crawled: Db, tmp_path: Path,
    kept: int, filling: bytes, options: tuple[str, ...],
) -> None:  # fmt: skip
    words = ("export", "versions", tmp_path, "--format", *options)
    crawled.versions.insert_many([version("k1", ago(1, 3)), version("k2", ago(1, 4))])
    exported(freshet, "versions", tmp_path, *words[3:])
    (path,) = tmp_path.rglob(f"day={ago(1):%Y-%m-%d}/part-*")
    content = path.read_bytes()
    path.write_bytes(content[:kept] + filling * (len(content) - kept))
    crawled.versions.delete_one({"content_hash": "k1"})
    done = run(freshet, *words)
    assert done.complaint.endswith(f"{path}: damaged. Delete it to write it again")
    assert not list(tmp_path.rglob("*.draft"))
    path.unlink()
    assert exported(freshet, "versions", tmp_path, *words[3:])["rows"] == 1


def test_since_rewrites_days_with_remaining_rows(
    freshet: Freshet, crawled: Db, tmp_path: Path
) -> None:
    exported(freshet, "visits", tmp_path / "out")
    crawled.visits.delete_many({"target": OTHER})
    since = f"{ago(6):%Y-%m-%dT12:00}"
    # One of three visits of the first day is left out, and the only one of the last day stays.
    assert exported(freshet, "visits", tmp_path / "out", "--since", since) == {
        "files": 1, "rows": 2, "unchanged": 6, "removed": 0,
    }  # fmt: skip


def test_edited_posts_replace_file_of_their_first_day(
    freshet: Freshet, crawled: Db, tmp_path: Path
) -> None:
    crawled.posts.insert_one(post("https://shop.example/item/9", first_seen=ago(3)))
    exported(freshet, "posts", tmp_path / "out")
    crawled.posts.update_one({"url": ITEM}, {"$set": {"title": "Coffee"}})
    assert exported(freshet, "posts", tmp_path / "out") == {
        "files": 1, "rows": 2, "unchanged": 2, "removed": 0,
    }  # fmt: skip
    day = f"{ago(5):%Y-%m-%d}"
    path = tmp_path / f"out/posts/spider=shop/day={day}/part-00000.parquet"
    titles = pq.read_table(path, columns=["title"], partitioning=None).column("title")
    assert titles.to_pylist() == ["Coffee", "Tea"]


def test_missing_or_truncated_file_is_rewritten(
    freshet: Freshet, crawled: Db, tmp_path: Path
) -> None:
    exported(freshet, "visits", tmp_path / "out")
    before = digests(tmp_path / "out")
    first, second = sorted((tmp_path / "out").rglob("*.parquet"))[:2]
    first.unlink()
    second.write_bytes(second.read_bytes()[:-9])
    # Left by an export that was killed.
    (second.parent / ".part-00000.parquet.draft").write_bytes(b"PAR1")
    assert exported(freshet, "visits", tmp_path / "out")["files"] == 2
    assert digests(tmp_path / "out") == before


@pytest.mark.soak
def test_killed_exports_end_with_the_same_bytes(
    freshet: Freshet, crawled: Db, tmp_path: Path
) -> None:
    crawled.visits.insert_many(
        visit(ago(day, hour), "unchanged", _id=ObjectId(), spider=f"site{site}")
        for day in range(2, 42)
        for hour in range(0, 24, 3)
        for site in range(3)
    )
    folder = tmp_path / "killed" / "visits"
    for files in (20, 50, 80):
        process = freshet.start("export", "visits", tmp_path / "killed")
        while len(list(folder.rglob("*.parquet"))) < files:
            assert process.poll() is None, "the export ended too early"
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        for path in folder.rglob("*.parquet"):
            assert pq.ParquetFile(path).metadata.num_rows == 8 or "site" not in str(path)
    exported(freshet, "visits", tmp_path / "killed")
    exported(freshet, "visits", tmp_path / "whole")
    assert digests(tmp_path / "killed") == digests(tmp_path / "whole")
    assert len(digests(tmp_path / "whole")) == 128


def test_no_secret_of_a_subscription_is_exported(
    freshet: Freshet, crawled: Db, tmp_path: Path
) -> None:
    for file_format in ("parquet", "jsonl"):
        run(freshet, "export", "all", tmp_path / file_format, "--format", file_format)
    files = list(tmp_path.rglob("part-*"))
    assert len(files) > 20
    assert pq.read_table(tmp_path / "parquet/feeds", partitioning=None).num_rows == 1
    for path in files:
        assert b"SECRET" not in path.read_bytes()


def test_json_lines_have_an_object_for_each_row(
    freshet: Freshet, crawled: Db, tmp_path: Path
) -> None:
    content = {"title": "Tea", "price": {"amount": 3.5, "currency": "EUR"}, "rating": float("nan")}
    crawled.versions.insert_one(version("n", ago(6, 9), main_text="é\u2028", **content))
    exported(freshet, "versions", tmp_path / "out", "--format", "jsonl")
    path = tmp_path / f"out/versions/spider=shop/day={ago(6):%Y-%m-%d}/part-00000.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    assert [row["fields"] for row in rows] == [
        {"title": "Tea", "price": 10},
        {"title": "Tea", "price": {"amount": 3.5, "currency": "EUR"}, "rating": None},
    ]
    assert rows[1]["main_text"] == "é\u2028"
    assert rows[1]["first_seen"] == f"{ago(6):%Y-%m-%d}T09:00:00.000Z"
    assert rows[1]["visit"] is None


def test_csv_escapes_formulas_and_compresses_reproducibly(
    freshet: Freshet, crawled: Db, tmp_path: Path
) -> None:
    options = ("--format", "csv", "--gzip")
    for name in ("one", "two"):
        exported(freshet, "visits", tmp_path / name, *options)
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    reasons = set()
    for path in (tmp_path / "one").rglob("*.csv.gz"):
        text = gzip.decompress(path.read_bytes()).decode()
        assert text.endswith("\r\n")
        rows = list(csv.DictReader(text.splitlines(keepends=True)))
        assert all(row["changed"] in ("true", "false") for row in rows)
        reasons |= {row["reason"] for row in rows}
    assert reasons == {"", f"'{FORMULA}", f"'{TABBED}"}


def test_destination_can_be_any_fsspec_url(freshet: Freshet, crawled: Db) -> None:
    place = f"memory://{crawled.name}"
    try:
        assert exported(freshet, "visits", place)["files"] == 7
        assert exported(freshet, "visits", place)["files"] == 0
        crawled.visits.insert_one(visit(ago(5, 3), "unchanged"))
        assert exported(freshet, "visits", place)["rows"] == 2
        files = fsspec.filesystem("memory").find(f"/{crawled.name}")
        assert len(files) == 8
        assert not [path for path in files if path.endswith(".draft")]
    finally:
        fsspec.filesystem("memory").rm(f"/{crawled.name}", recursive=True)


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        (
            "s3://key:SECRET@bucket/x",
            "s3://***@bucket/x: the driver of s3:// is missing: Install s3",
        ),
        ("nowhere://bucket/x", "nowhere://bucket/x: Protocol not known: nowhere. Check the URL"),
        ("/proc/nowhere", "/proc/nowhere/visits"),
    ],
)
def test_unwritable_destination_prints_one_line(
    freshet: Freshet, crawled: Db, place: str, problem: str
) -> None:
    done = run(freshet, "export", "visits", place)
    assert done.code == 1
    assert done.complaint.startswith(f"scrapy export: {problem}")
    assert "SECRET" not in done.out + done.err


def test_export_rejects_incompatible_folder(freshet: Freshet, crawled: Db, tmp_path: Path) -> None:
    exported(freshet, "visits", tmp_path)
    before = digests(tmp_path)
    done = run(freshet, "export", "visits", tmp_path, "--format", "csv")
    assert (done.code, digests(tmp_path)) == (1, before)
    assert "this folder has visits as 'parquet'. Export to another folder as 'csv'" in done.err
    (tmp_path / "visits" / MANIFEST).write_text("{", encoding="utf-8")
    done = run(freshet, "export", "visits", tmp_path)
    assert "not valid. Delete it to write all files of visits again" in done.complaint
    file = {"rows": 1, "bytes": 1, "sha256": "", "schema": 99, "newest": None}
    (tmp_path / "kept").write_text("")
    for path in ("../kept", "visits/../../kept", "targets/f"):
        other = {"format": "parquet", "files": {path: file}}
        (tmp_path / "visits" / MANIFEST).write_text(json.dumps(other), encoding="utf-8")
        done = run(freshet, "export", "visits", tmp_path)
        assert "not valid. Delete it to write all files of visits again" in done.complaint
    later = {"format": "parquet", "files": {"visits/f": file}}
    (tmp_path / "visits" / MANIFEST).write_text(json.dumps(later), encoding="utf-8")
    done = run(freshet, "export", "visits", tmp_path)
    assert "written by a later version of Freshet" in done.complaint


def test_dangling_symlink_is_replaced(freshet: Freshet, crawled: Db, tmp_path: Path) -> None:
    exported(freshet, "visits", tmp_path)
    before = digests(tmp_path)
    path = min((tmp_path / "visits").rglob("*.parquet"))
    path.unlink()
    path.symlink_to(tmp_path / "nowhere")
    assert exported(freshet, "visits", tmp_path)["files"] == 1
    assert (digests(tmp_path), path.is_symlink()) == (before, False)


def test_files_of_earlier_schema_are_rewritten(
    freshet: Freshet, crawled: Db, tmp_path: Path
) -> None:
    exported(freshet, "visits", tmp_path)
    before = digests(tmp_path)
    path = tmp_path / "visits" / MANIFEST
    manifest = json.loads(path.read_text(encoding="utf-8"))
    for day in list(manifest["files"])[:2]:
        manifest["files"][day]["schema"] = 0
    path.write_text(json.dumps(manifest), encoding="utf-8")
    assert exported(freshet, "visits", tmp_path)["files"] == 2
    assert digests(tmp_path) == before


def test_full_disk_prints_one_line_and_leaves_no_partial_files(
    freshet: Freshet, crawled: Db, tmp_path: Path
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # No file of this process can be larger, as on a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        done = run(freshet, "export", "visits", tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert done.code == 1
    assert done.complaint.endswith("File too large")
    assert digests(tmp_path / "out") == {}
    assert exported(freshet, "visits", tmp_path / "out")["files"] == 7


def test_value_of_wrong_type_reports_document(
    freshet: Freshet, crawled: Db, tmp_path: Path
) -> None:
    row = visit(ago(5, 3), "unchanged", status="teapot")
    crawled.visits.insert_one(row)
    done = run(freshet, "export", "visits", tmp_path / "out")
    assert done.code == 1
    assert done.complaint == (
        f"scrapy export: document {row['_id']}: status is not of type integer: 'teapot'. Correct "
        "the document, then export again"
    )
    names = {path.name for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert names <= {"part-00000.parquet"}


def test_invalid_options_are_rejected(freshet: Freshet, stored: tuple[Db, str]) -> None:
    db, uri = stored
    done = run(freshet, "export", "visits", "memory://none")
    assert (done.code, "no site has targets yet" in done.err) == (1, True)
    fill(db)
    db.versions.delete_many({})
    assert run(freshet, "export", "versions", "memory://none").out == (
        "versions: no rows to export yet\n"
    )
    for args, problem in {
        ("targets", "x", "--since", "1d"): "--since: targets has no days",
        ("plans", "x", "--spider", "shop"): "--spider: plans can have several spiders",
        ("visits", "x", "--gzip"): "--gzip: Parquet is always compressed",
        ("visits", "x", "--spider", "none"): "no targets of 'none'. Spiders with targets: feeds",
    }.items():
        done = run(freshet, "export", *args)
        assert (done.code, problem in done.complaint) == (1, True), args
    assert run(freshet, "export", "pages", "x").code == 2
    with holding(uri, "export visits"):
        done = run(freshet, "export", "visits", "memory://none")
    assert (done.code, "visits are being exported" in done.complaint) == (1, True)
