"""An archive survives a crash at any byte; `scrapy archive verify` finds damage."""

from __future__ import annotations

import asyncio
import os
import pickle
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
from crawler.archive.records import Archived, Exchange
from crawler.archive.writer import MAX_WAITING_BYTES, ArchiveWriter, Archiving
from crawler.config import Config
from crawler.errors import ArchiveError
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
        rows = [await writer.add(one, None) for one in exchanges]
        await writer.close()
        return [row.place for row in rows]

    return asyncio.run(written())


def test_invalid_port_in_url_does_not_affect_other_responses(config: Config) -> None:
    urls = ["http://shop.test:99999/a%zb", "http://shop.test/2"]
    write(config, *(replace(exchange(n), url=url) for n, url in enumerate(urls)))
    (file,) = files_of(folder_of(config, "shop"))
    assert [line.key for line in file.lines()] == ["http://shop.test:99999/a%25zb", "test,shop)/2"]
    assert list(file.lines()) == list(indexed(file.path, check_digests=True))


def truncated_sizes(path: Path, n: int) -> Iterator[int]:
    """Yield sizes to truncate a file to: `n` random sizes, and the last 12."""
    size = path.stat().st_size
    yield from random.Random(7).sample(range(size), n)
    yield from range(size - 12, size)


def test_torn_file_is_truncated_after_last_complete_record(config: Config) -> None:
    rows = write(config, *map(exchange, range(4)))
    (file,) = files_of(folder_of(config, "shop"))
    whole, index = file.path.read_bytes(), file.growing.read_bytes()
    ends = [row.offset + row.length for row in rows]
    for size in truncated_sizes(file.path, 30):
        file.path.write_bytes(whole[:size])
        # The index is truncated, too.
        file.growing.write_bytes(index[: size % len(index)])
        descriptor = os.open(file.path, os.O_RDWR)
        repair(file, descriptor)
        os.close(descriptor)
        complete = sum(end <= size for end in ends)
        assert len(list(file.lines())) == complete
        assert list(file.lines()) == list(indexed(file.path, check_digests=True))
        assert file.size <= size
    # After the repair, a writer appends to the file.
    (added,) = write(config, exchange(9))
    assert added.file == file.name
    stored = read_response(file.path.parent, added.file, added.offset, 1000)
    assert stored is not None
    assert stored.body == b"<html>tea</html>"
    assert not check(file.path.parent).problems


def test_missing_index_is_rebuilt(config: Config) -> None:
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
        rows = [await writer.add(exchange(1), None) for writer in writers for _ in range(2)]
        for writer in writers:
            await writer.close()
        return {row.place.file for row in rows}

    assert len(asyncio.run(both())) == 2
    write(config, exchange(2))
    assert len(files_of(folder_of(config, "shop"))) == 2


def test_concurrent_writers_lose_no_response(config: Config) -> None:
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


def test_batch_is_not_stored_if_index_cannot_be_written(config: Config) -> None:
    async def written() -> None:
        writer = ArchiveWriter(config, "shop")
        await writer.open()
        await writer.add(exchange(1), None)
        await writer.flush()
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        # As on a full disk. A long URL is compressed in the record, but not in the index.
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
        long = replace(exchange(2), url="http://shop.test/" + "x" * 30_000)
        try:
            await writer.add(exchange(3), None)
            await writer.add(long, None)
            with pytest.raises(ArchiveError, match="archive cannot be written: File too large"):
                await writer.flush()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        # The places of later responses depend on the batch that was not written.
        await writer.add(exchange(4), None)
        with pytest.raises(ArchiveError, match="archive cannot be written: File too large"):
            await writer.flush()
        await writer.close()

    asyncio.run(written())
    write(config, exchange(5))
    (file,) = files_of(folder_of(config, "shop"))
    assert [line.fields["url"][-6:] for line in file.lines()] == ["item/1", "item/5"]
    assert list(file.lines()) == list(indexed(file.path))


def test_responses_are_written_in_batches(config: Config) -> None:
    async def written() -> None:
        writer = ArchiveWriter(config, "shop")
        await writer.open()
        bodies = [random.Random(n).randbytes(100_000 if n % 5 == 0 else 20) for n in range(20)]
        rows = [await writer.add(exchange(n, body), None) for n, body in enumerate(bodies)]
        folder = folder_of(config, "shop")
        assert files_of(folder) == []
        with pytest.raises(RuntimeError, match="not in the archive yet"):
            _ = rows[0].place
        await asyncio.gather(writer.flush(), writer.flush())
        (file,) = files_of(folder)
        assert file.size == rows[-1].place.offset + rows[-1].place.length
        for n, (row, body) in enumerate(zip(rows, bodies, strict=True)):
            stored = read_response(folder, row.place.file, row.place.offset, 1_000_000)
            assert stored is not None
            assert (stored.url, stored.body) == (exchange(n).url, body)
        before = file.size
        await asyncio.gather(*(writer.add(exchange(1, body), None) for body in bodies * 5))
        assert file.size - before > MAX_WAITING_BYTES, "the size of unwritten responses is limited"
        await writer.close()

    asyncio.run(written())
    assert not check(folder_of(config, "shop")).problems


def test_flush_waits_for_writes_of_canceled_flush(config: Config) -> None:
    small = config.model_copy(update={"archive_file_mb": 0.01})

    async def written() -> None:
        writer = ArchiveWriter(small, "shop")
        await writer.open()
        folder = folder_of(config, "shop")
        for n in range(60):
            body = random.Random(n).randbytes(70_000 if n % 10 == 0 else 100)
            row = await writer.add(exchange(n, body), None)
            canceled = asyncio.ensure_future(writer.flush())
            for _ in range(n % 6):
                await asyncio.sleep(0)
            canceled.cancel()
            await writer.flush()
            stored = read_response(folder, row.place.file, row.place.offset, 100_000)
            assert stored is not None
            assert stored.body == body
        await writer.close()

    asyncio.run(written())
    result = check(folder_of(config, "shop"))
    assert (result.problems, result.responses) == ([], 60)


def test_pickled_copy_shares_place_of_response() -> None:
    added = Archiving()
    copied = pickle.loads(pickle.dumps(added))
    added.set_place(Archived("a.warc.gz", 1, 2, NOW, "http://shop.test/", "sha1:A"))
    assert copied.place == added.place
    data = pickle.dumps(added)
    del added, copied
    with pytest.raises(RuntimeError, match="not in the archive yet"):
        _ = pickle.loads(data).place


def test_failure_to_create_next_file_damages_no_file(config: Config) -> None:
    small = config.model_copy(update={"archive_file_mb": 0.001})

    async def written() -> None:
        writer = ArchiveWriter(small, "shop")
        await writer.open()
        first = await writer.add(exchange(1), None)
        await writer.flush()
        name = first.place.file.replace("030406", "030407")
        file = WarcFile(folder_of(config, "shop") / name)
        file.growing.mkdir()
        await writer.add(exchange(2), None)
        with pytest.raises(ArchiveError, match="Is a directory"):
            await writer.flush()
        file.growing.rmdir()
        await writer.close()

    asyncio.run(written())
    result = check(folder_of(config, "shop"))
    assert (result.problems, result.responses) == ([], 2)


@pytest.mark.parametrize(
    "fields",
    ["{}", '{"offset": "0"}', "[]", '{"offset": 0, "length": "x"}', '"text"', "{" * 100_000],
)
def test_reading_index_stops_at_damaged_line(config: Config, fields: str) -> None:
    write(config, *map(exchange, range(2)))
    (file,) = files_of(folder_of(config, "shop"))
    first, _ = before = file.growing.read_text().splitlines(keepends=True)
    file.growing.write_text(f"{first}test,shop)/item/1 20260102030406 {fields}\n")
    assert "".join(map(str, file.lines())) == first
    file.growing.write_text(first.replace(" 2026", " x026"))
    assert list(file.lines()) == []
    write(config)
    assert file.growing.read_text() == "".join(before)


def test_export_of_truncated_file_fails(config: Config, tmp_path: Path) -> None:
    write(config, exchange(1))
    (file,) = files_of(folder_of(config, "shop"))
    os.truncate(file.path, file.size - 5)
    with pytest.raises(ArchiveError, match="5 bytes shorter than its index states"):
        wacz.export(file.path.parent, tmp_path / "a.wacz", "shop", "x", NOW, lambda _: None)
    assert not list(tmp_path.glob("*.wacz"))


def test_verify_finds_damage(freshet: Freshet, config: Config) -> None:
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


@pytest.mark.soak
def test_killed_crawls_leave_a_record_for_each_visit(
    freshet: Freshet, database: Db, shop: str
) -> None:
    Shop.titles.update({f"/item/{n}": f"Tea {n}" * 50 for n in range(150)})
    wrapper = definition(freshet, shop, delay_seconds=0.01)
    words = ("crawl", "site", "-a", f"wrapper={wrapper}")
    for kill in range(3):
        seen = database.visits.count_documents({})
        process = freshet.start(*words, FRESHET_ARCHIVE_FILE_MB=0.02, FRESHET_COMMIT_MS=1)
        # Few enough that pages are left for the last kill, however late this process sees them.
        while database.visits.count_documents({}) < seen + 10 + 5 * kill:
            assert process.poll() is None, process.communicate()
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
