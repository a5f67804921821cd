"""`scrapy duplicates check`: duplicates among the lines of a file, independent of the posts."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import pytest

from tests.integration.claiming import edited, text
from tests.integration.harness import Db, Freshet, Result, Row
from tests.integration.inside import in_json, run

DUPLICATES = "characters"

MUSEUM, MARKET, MUSEUM_ZH = (
    text(1),
    text(2),
    "博物馆经过两年的整修之后将于星期一重新开放，欢迎各位市民前来参观。",
)
PATIENCE_SECONDS = 120.0
# More lines than one batch.
MANY = 1100


def check(freshet: Freshet, *args: object, **env: object) -> Result:
    return run(freshet, "duplicates", "check", *args, **env)


def line(id_: object, words: str, created: object = None) -> Row:
    return {"id": id_, "text": words} | ({} if created is None else {"created": created})


def written(folder: Path, *rows: Row | str, name: str = "posts.jsonl") -> Path:
    path = folder / name
    texts = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(f"{row}\n" for row in texts), encoding="utf-8")
    return path


def read(out: str) -> list[Row]:
    return [json.loads(row) for row in out.splitlines()]


def duplicates(out: str) -> dict[Any, Any]:
    """Return the id of the original for each id."""
    return {row["id"]: row["duplicate_of"] for row in read(out)}


def has_no_leftovers(db: Db) -> bool:
    runs = db.meta.count_documents({"_id": {"$regex": "^check-run"}})
    return not runs and not any(name.startswith("check_") for name in db.list_collection_names())


@contextmanager
def piped(freshet: Freshet, folder: Path, *args: object) -> Iterator[tuple[Any, TextIO]]:
    """Start a check that reads lines from a pipe that the test writes."""
    path = folder / "pipe"
    os.mkfifo(path)
    process = freshet.start("duplicates", "check", path, *args)
    with path.open("w", encoding="utf-8", buffering=1) as pipe:
        yield process, pipe


def put(pipe: TextIO, *rows: Row) -> None:
    pipe.write("".join(json.dumps(row) + "\n" for row in rows))
    pipe.flush()


def answers(process: Any, count: int) -> list[Row]:
    """Return `count` lines of output; fail if the next line does not arrive in time."""
    rows: list[str] = []

    def take() -> None:
        while len(rows) < count:
            rows.append(process.stdout.readline())

    taker = threading.Thread(target=take, daemon=True)
    taker.start()
    seen = -1
    while taker.is_alive() and seen < len(rows):
        seen = len(rows)
        taker.join(PATIENCE_SECONDS)
    assert not taker.is_alive(), rows
    return read("".join(rows))


GROUPS = [
    line("m1", MUSEUM),
    line("s1", MARKET),
    line("z1", MUSEUM_ZH),
    line("m2", edited(MUSEUM, 3)),
    line("z2", MUSEUM_ZH.replace("星期一", "星期二")),
    line("alone", text(3)),
    line("m3", edited(MUSEUM, 5, seed=2)),
    line("s2", MARKET.upper()),
]


def test_check_groups_lines_of_file(freshet: Freshet, database: Db, tmp_path: Path) -> None:
    done = check(freshet, written(tmp_path, *GROUPS))
    assert (done.code, done.err) == (0, "")
    assert duplicates(done.out) == {
        "m1": None, "s1": None, "z1": None, "m2": "m1", "z2": "z1", "alone": None, "m3": "m1",
        "s2": "s1",
    }  # fmt: skip
    first, *_, last = read(done.out)
    assert first == {"id": "m1", "duplicate_of": None, "similarity": None}
    assert last == {"id": "s2", "duplicate_of": "s1", "similarity": 1}
    assert has_no_leftovers(database)
    assert database.posts.count_documents({}) == database.signatures.count_documents({}) == 0


@pytest.mark.parametrize(
    ("name", "pack"),
    [("x.jsonl.gz", gzip.compress), ("x.xz", lzma.compress), ("noname", bz2.compress)],
)
def test_check_reads_compressed_file(
    freshet: Freshet, tmp_path: Path, name: str, pack: Callable[[bytes], bytes]
) -> None:
    plain = written(tmp_path, *GROUPS).read_bytes()
    path = tmp_path / name
    # Compressed in two parts, as after appending to such a file; padded, as on a tape.
    path.write_bytes(pack(plain[:300]) + pack(plain[300:]) + bytes(512))
    assert duplicates(check(freshet, path).out)["s2"] == "s1"
    path.write_bytes(pack(plain)[:-20])
    broken = check(freshet, path)
    assert (broken.code, broken.complaint) == (
        1, f"scrapy duplicates: {path}: corrupt data. Download or write the file again"
    )  # fmt: skip


def test_check_reads_stdin_and_writes_output_file(
    freshet: Freshet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = written(tmp_path, *GROUPS).read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    out = tmp_path / "flags.jsonl"
    done = check(freshet, "-", "--output", out, "--json")
    summary = json.loads(done.out)
    assert summary.pop("seconds") > 0
    assert summary == {"texts": 8, "originals": 4, "duplicates": 4, "replacing": 0, "bad_lines": 0}
    assert duplicates(out.read_text())["m3"] == "m1"


def test_late_text_with_earlier_date_is_original(freshet: Freshet, tmp_path: Path) -> None:
    early = line(2, edited(MUSEUM, 2), "2026-03-01T23:59:59+00:00")
    with piped(freshet, tmp_path) as (process, pipe):
        put(pipe, line(1, MUSEUM, "2026-03-02"))
        answers(process, 1)
        put(pipe, early, line(3, MUSEUM, 1772500000))
        one, other = answers(process, 2)
        assert one == {"id": 2, "duplicate_of": None, "similarity": None, "replaces": 1}
        assert other["duplicate_of"] == 2
        put(pipe, early, line(1, MUSEUM))
        again, first = answers(process, 2)
    assert again == {"id": 2, "duplicate_of": None, "similarity": None}
    assert first["duplicate_of"] == 2
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, out, err) == (0, "", "")


def test_undated_lines_keep_their_order_across_batches(freshet: Freshet, tmp_path: Path) -> None:
    same = [line(number, MUSEUM) for number in range(MANY)]
    done = read(check(freshet, written(tmp_path, *same)).out)
    assert [row["id"] for row in done] == list(range(MANY))
    assert [row["duplicate_of"] for row in done] == [None] + [0] * (MANY - 1)
    dated = line("y", MUSEUM, "2020-01-01")
    *_, old = read(check(freshet, written(tmp_path, *same, dated)).out)
    assert old["replaces"] == 0


def test_repeated_id_with_another_text_is_an_edit(freshet: Freshet, tmp_path: Path) -> None:
    rows = [
        line("a", MUSEUM), line("b", edited(MUSEUM, 2)), line("b", MARKET), line("c", MARKET),
        line("a", ""), line("d", MUSEUM), line("a", MUSEUM),
    ]  # fmt: skip
    found = [row["duplicate_of"] for row in read(check(freshet, written(tmp_path, *rows)).out)]
    assert found == [None, "a", None, "b", None, None, "d"], "read in three batches"


def test_ids_keep_their_type_and_empty_texts_match_nothing(
    freshet: Freshet, tmp_path: Path
) -> None:
    rows = (
        '{"id": 1.50, "text": "Same words"}', line("1.50", "same  WORDS"), line(2, ""),
        line(3, " \n"), line(4, "ok"), line(5, "OK"), line("\ud800", "half a pair"),
    )  # fmt: skip
    out = check(freshet, written(tmp_path, *rows)).out
    assert out.splitlines()[1] == '{"id": "1.50", "duplicate_of": 1.50, "similarity": 1}'
    assert [row["duplicate_of"] for row in read(out)] == [None, 1.5, None, None, None, 4, None]


def test_invalid_lines_do_not_affect_other_lines(freshet: Freshet, tmp_path: Path) -> None:
    bad = ["nope", '{"text": "x"}', '{"id": 1, "text": 1}'] + ["{"] * 20
    path = written(tmp_path, GROUPS[0], *bad, "", GROUPS[3])
    done = check(freshet, path)
    assert done.code == 1
    assert duplicates(done.out) == {"m1": None, "m2": "m1"}
    errors = done.err.splitlines()
    assert errors[:3] == [
        f"scrapy duplicates: {path}, line 2: not valid JSON",
        f"scrapy duplicates: {path}, line 3: id is missing",
        f"scrapy duplicates: {path}, line 4: text is not a string",
    ]
    assert errors[20:] == [f"scrapy duplicates: {path}: and 3 more invalid lines"]
    assert in_json(freshet, "duplicates")["posts"] == 0


def test_options_set_scheme_and_threshold(freshet: Freshet, tmp_path: Path) -> None:
    path = written(tmp_path, line("a", MUSEUM), line("b", edited(MUSEUM, 1)))
    found = {
        (scheme, threshold): duplicates(
            check(freshet, path, "--scheme", scheme, "--threshold", threshold).out
        )["b"]
        for scheme, threshold in (("characters", 0.7), ("characters", 0.99), ("words", 0.7))
    }
    assert found == {("characters", 0.7): "a", ("characters", 0.99): None, ("words", 0.7): "a"}
    paper = check(freshet, path, "--scheme", "supershingles", FRESHET_DUPLICATES="off")
    assert (paper.code, len(read(paper.out))) == (0, 2)
    refused = check(freshet, path, "--scheme", "supershingles", "--threshold", "0.5")
    assert refused.complaint == (
        "scrapy duplicates: --threshold: not allowed with supershingles, which has a fixed "
        "threshold"
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xff\xfe{\0", "UTF-16, not UTF-8. Convert it with iconv -f utf-16 -t utf-8 FILE"),
        (
            b"PK\x03\x04...",
            "zip archives are not supported. Run unzip -p FILE | scrapy duplicates check -",
        ),
        (
            b"\x28\xb5\x2f\xfd..",
            "zstd is not supported. Run zstd -dc FILE | scrapy duplicates check -",
        ),
    ],
)
def test_unsupported_file_formats_are_reported(
    freshet: Freshet, tmp_path: Path, data: bytes, message: str
) -> None:
    path = tmp_path / "x"
    path.write_bytes(data)
    done = check(freshet, path)
    assert (done.code, done.complaint) == (1, f"scrapy duplicates: {path}: {message}")


def test_unreadable_and_unwritable_files_are_reported(freshet: Freshet, tmp_path: Path) -> None:
    path = written(tmp_path, *GROUPS)
    for words, message in (
        ((tmp_path / "none",), f"{tmp_path}/none: No such file or directory"),
        ((tmp_path,), f"{tmp_path}: Is a directory"),
        ((path, "--output", tmp_path), f"{tmp_path}: Is a directory"),
        ((path, "--output", path), f"--output {path}: this is the input file. Give another file"),
    ):  # fmt: skip
        done = check(freshet, *words)
        assert (done.code, done.complaint) == (1, f"scrapy duplicates: {message}")
    assert len(path.read_text().splitlines()) == len(GROUPS)


def test_empty_file_prints_nothing(freshet: Freshet, tmp_path: Path) -> None:
    for data in (b"", b"\n", b"\xef\xbb\xbf"):
        (tmp_path / "x").write_bytes(data)
        done = check(freshet, tmp_path / "x")
        assert (done.code, done.out, done.err) == (0, "", "")


def test_slow_input_is_answered_immediately(freshet: Freshet, tmp_path: Path) -> None:
    with piped(freshet, tmp_path) as (process, pipe):
        put(pipe, GROUPS[0])
        assert answers(process, 1)[0]["duplicate_of"] is None
        put(pipe, GROUPS[3], GROUPS[6])
        assert [row["duplicate_of"] for row in answers(process, 2)] == ["m1", "m1"]
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, out, err) == (0, "", "")


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_deletes_temporary_index(
    freshet: Freshet, database: Db, tmp_path: Path, end: signal.Signals
) -> None:
    with piped(freshet, tmp_path) as (process, pipe):
        put(pipe, *GROUPS[:2])
        answers(process, 2)
        assert not has_no_leftovers(database)
        process.send_signal(end)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, out) == (130, "")
    assert err == "scrapy duplicates: interrupted after 2 texts\n"
    assert has_no_leftovers(database)


def test_next_run_removes_index_of_killed_run(
    freshet: Freshet, database: Db, tmp_path: Path
) -> None:
    with piped(freshet, tmp_path) as (process, pipe):
        put(pipe, GROUPS[0])
        answers(process, 1)
        during = written(tmp_path, *GROUPS)
        check(freshet, during)
        assert not has_no_leftovers(database), "a run in progress keeps its index"
        put(pipe, GROUPS[3])
        assert answers(process, 1)[0]["duplicate_of"] == "m1"
        process.kill()
        process.communicate()
    assert not has_no_leftovers(database)
    check(freshet, during)
    assert has_no_leftovers(database)


@pytest.mark.soak
def test_memory_does_not_grow_with_number_of_lines(freshet: Freshet, tmp_path: Path) -> None:
    """Memory after four batches is at most 20 MB above memory after two; caches may grow."""
    rows = [line(number, text(number, words=60)) for number in range(MANY)]

    def size_mb(process: Any) -> float:
        status = Path(f"/proc/{process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    with piped(freshet, tmp_path) as (process, pipe):
        sizes = []
        for start in range(4):
            writer = threading.Thread(target=put, args=(pipe, *rows))
            writer.start()
            answers(process, MANY)
            writer.join()
            sizes.append(size_mb(process))
            rows = [row | {"id": f"{start} {row['id']}"} for row in rows]
    process.communicate(timeout=PATIENCE_SECONDS)
    assert sizes[-1] < sizes[1] + 20
