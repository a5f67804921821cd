"""An archive survives a crash at any byte; `scrapy archive verify` finds damage."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from crawler.archive import wacz
from crawler.archive.files import (
    WarcFile,
    check,
    files_of,
    folder_of,
    indexed,
    read_response,
    repair,
)
from crawler.archive.records import Exchange
from crawler.archive.writer import ArchiveWriter
from crawler.config import Config
from crawler.errors import ArchiveError
from crawler.items import Archived
from tests.integration.archived_shop import Shop, definition, folder, of_visit, warcs
from tests.integration.harness import Db, Freshet, visits
from tests.integration.inside import in_json, run

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def exchange(number: int, body: bytes = b"<html>tea</html>", status: int = 200) -> Exchange:
    return Exchange(
        f"http://shop.test/item/{number}", NOW + timedelta(seconds=number), status,
        b"GET / HTTP/1.1", b"HTTP/1.1 200 OK\r\nContent-Type: text/html", body,
    )  # fmt: skip


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config.load(data_dir=tmp_path, mongo_uri=None)


def write(config: Config, *exchanges: Exchange) -> list[Archived]:
    async def written() -> list[Archived]:
        writer = ArchiveWriter(config, "shop")
        await writer.open()
        rows = [await writer.write(one, None) for one in exchanges]
        await writer.close()
        return rows

    return asyncio.run(written())


def cuts(path: Path, n: int) -> Iterator[int]:
    """Yield sizes to cut a file to: all of its last bytes, and some of the others."""
    size = path.stat().st_size
    yield from random.Random(7).sample(range(size), n)
    yield from range(size - 12, size)


def test_a_torn_file_is_cut_off_after_its_last_complete_record(config: Config) -> None:
    rows = write(config, *map(exchange, range(4)))
    (file,) = files_of(folder_of(config, "shop"))
    whole, index = file.path.read_bytes(), file.growing.read_bytes()
    ends = [row.offset + row.length for row in rows]
    for size in cuts(file.path, 30):
        file.path.write_bytes(whole[:size])
        # The index is behind, too, or torn.
        file.growing.write_bytes(index[: size % len(index)])
        descriptor = os.open(file.path, os.O_RDWR)
        repair(file, descriptor)
        os.close(descriptor)
        complete = sum(end <= size for end in ends)
        assert len(list(file.lines())) == complete
        assert list(file.lines()) == list(indexed(file.path, check_digests=True))
        assert file.size <= size
    # A writer goes on after the repair.
    (added,) = write(config, exchange(9))
    assert added.file == file.name
    stored = read_response(file.path.parent, added.file, added.offset, 1000)
    assert stored is not None
    assert stored.body == b"<html>tea</html>"
    assert not check(file.path.parent).problems


def test_a_file_without_an_index_gets_a_new_one(config: Config) -> None:
    write(config, *map(exchange, range(3)))
    (file,) = files_of(folder_of(config, "shop"))
    before = file.growing.read_text()
    file.growing.unlink()
    write(config)
    assert file.growing.read_text() == before


def test_two_processes_write_to_different_files(config: Config) -> None:
    async def both() -> set[str]:
        writers = [ArchiveWriter(config, "shop") for _ in range(2)]
        for writer in writers:
            await writer.open()
        rows = [await writer.write(exchange(1), None) for writer in writers for _ in range(2)]
        for writer in writers:
            await writer.close()
        return {row.file for row in rows}

    assert len(asyncio.run(both())) == 2
    write(config, exchange(2))
    assert len(files_of(folder_of(config, "shop"))) == 2


def test_writers_that_fill_files_at_the_same_time_lose_no_response(config: Config) -> None:
    small = config.model_copy(update={"archive_file_mb": 0.002})

    def writes(first: int) -> list[Archived]:
        return [
            row
            for start in range(first, first + 40, 4)
            for row in write(small, *map(exchange, range(start, start + 4)))
        ]

    with ThreadPoolExecutor(4) as pool:
        rows = [row for part in pool.map(writes, range(0, 400, 100)) for row in part]
    place = folder_of(config, "shop")
    for row in rows:
        stored = read_response(place, row.file, row.offset, 1000)
        assert stored is not None
        assert stored.url == row.url
    result = check(place)
    assert (result.problems, result.responses) == ([], len(rows))


def test_a_response_that_does_not_get_into_the_index_is_not_stored(config: Config) -> None:
    async def written() -> None:
        writer = ArchiveWriter(config, "shop")
        await writer.open()
        await writer.write(exchange(1), None)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        # As on a full disk. Of a long URL, the record is small, and the line of the index large.
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
        try:
            long = replace(exchange(2), url="http://shop.test/" + "x" * 30_000)
            with pytest.raises(ArchiveError, match="archive cannot be written: File too large"):
                await writer.write(long, None)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        await writer.write(exchange(3), None)
        await writer.close()

    asyncio.run(written())
    (file,) = files_of(folder_of(config, "shop"))
    assert [line.fields["url"][-6:] for line in file.lines()] == ["item/1", "item/3"]
    assert list(file.lines()) == list(indexed(file.path))


def test_a_writer_whose_next_file_cannot_be_created_keeps_its_files_whole(config: Config) -> None:
    small = config.model_copy(update={"archive_file_mb": 0.001})

    async def written() -> None:
        writer = ArchiveWriter(small, "shop")
        await writer.open()
        first = await writer.write(exchange(1), None)
        file = WarcFile(folder_of(config, "shop") / first.file.replace("030406", "030407"))
        file.growing.mkdir()
        with pytest.raises(ArchiveError, match="Is a directory"):
            await writer.write(exchange(2), None)
        file.growing.rmdir()
        await writer.write(exchange(2), None)
        await writer.close()

    asyncio.run(written())
    result = check(folder_of(config, "shop"))
    assert (result.problems, result.responses) == ([], 2)


@pytest.mark.parametrize(
    "fields",
    ["{}", '{"offset": "0"}', "[]", '{"offset": 0, "length": "x"}', '"text"', "{" * 100_000],
)
def test_a_damaged_line_of_an_index_ends_what_is_read_of_it(config: Config, fields: str) -> None:
    write(config, *map(exchange, range(2)))
    (file,) = files_of(folder_of(config, "shop"))
    first, _ = before = file.growing.read_text().splitlines(keepends=True)
    file.growing.write_text(f"{first}test,shop)/item/1 20260102030406 {fields}\n")
    assert "".join(map(str, file.lines())) == first
    file.growing.write_text(first.replace(" 2026", " x026"))
    assert list(file.lines()) == []
    write(config)
    assert file.growing.read_text() == "".join(before)


def test_an_export_of_a_file_that_lost_its_end_fails(config: Config, tmp_path: Path) -> None:
    write(config, exchange(1))
    (file,) = files_of(folder_of(config, "shop"))
    os.truncate(file.path, file.size - 5)
    with pytest.raises(ArchiveError, match="5 bytes shorter than its index says"):
        wacz.export(file.path.parent, tmp_path / "a.wacz", "shop", "x", NOW, lambda _: None)
    assert not list(tmp_path.glob("*.wacz"))


def test_damage_is_found(freshet: Freshet, config: Config) -> None:
    rows = write(config, *map(exchange, range(3)))
    env: dict[str, object] = {"FRESHET_DATA_DIR": config.data_dir}
    report = in_json(freshet, "archive", "verify", "shop", **env)
    assert (report["responses"], report["problems"]) == (3, [])
    file = WarcFile(folder_of(config, "shop") / rows[1].file)
    data = bytearray(file.path.read_bytes())
    data[rows[1].offset + rows[1].length // 2] ^= 0xFF
    file.path.write_bytes(data)
    done = run(freshet, "archive", "verify", "shop", **env)
    assert done.code == 1
    assert "damaged record" in done.out
    done = run(freshet, "archive", "verify", "other", **env)
    assert "no archive of 'other'. Sites with an archive: shop" in done.complaint


@pytest.mark.mongo
@pytest.mark.soak
def test_killed_crawls_leave_a_record_for_each_visit(
    freshet: Freshet, database: Db, shop: str
) -> None:
    Shop.titles.update({f"/item/{n}": f"Tea {n}" * 50 for n in range(150)})
    wrapper = definition(freshet, shop, delay_seconds=0.01)
    words = ("crawl", "site", "-a", f"wrapper={wrapper}")
    for kill in range(3):
        process = freshet.start(*words, FRESHET_ARCHIVE_FILE_MB=0.02, FRESHET_COMMIT_MS=1)
        seen = database.visits.count_documents({})
        deadline = time.monotonic() + 20
        while database.visits.count_documents({}) < seen + 20 + 10 * kill:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    freshet.crawl(wrapper, FRESHET_ARCHIVE_FILE_MB=0.02)
    rows = visits(database)
    assert len(rows) >= 151
    for row in rows:
        assert of_visit(freshet, row)[0] == "response"
    result = check(folder(freshet))
    assert result.problems == []
    assert result.responses >= len(rows)
    assert len(warcs(freshet)) == result.files > 3
