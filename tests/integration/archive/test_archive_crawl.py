"""A crawl with `archive = true` keeps each response as received."""

from __future__ import annotations

import gzip
import resource

import pytest

from crawler.archive.files import check
from tests.integration.archived_shop import (
    SECRET,
    Shop,
    definition,
    folder,
    of_visit,
    records,
    warcs,
)
from tests.integration.harness import Db, Freshet, outcomes, target, visits

pytestmark = pytest.mark.soak


def test_responses_are_archived_unmodified(freshet: Freshet, database: Db, shop: str) -> None:
    Shop.titles.update({"/item/a": "Tea", "/item/moved": "-", "/item/new": "Cup"})
    freshet.crawl(definition(freshet, shop))
    (file,) = warcs(freshet)
    rows = records(file.path)
    assert SECRET.encode() not in gzip.decompress(file.path.read_bytes())
    assert f"{shop}/robots.txt" not in {url for _, url, *_ in rows}
    kinds = [kind for kind, *_ in rows]
    assert kinds.count("response") == kinds.count("request") == len(kinds) // 2 == 5
    for visit in visits(database, outcome="new"):
        kind, url, _, http, body = of_visit(freshet, visit)
        assert (kind, url) == ("response", visit.get("final_url", visit["target"]))
        names = [name for name, _ in http.headers]
        assert names[:5] == ["Server", "Date", "Content-Type", "x-ODD-name", "Set-Cookie"]
        assert http.get_header("x-odd-name") == "kept   as it  came"
        if visit["target"].endswith("/list"):
            assert http.get_header("X-Crawler-Transfer-Encoding") == "chunked"
            assert body.startswith(b"<html><a href=/item/a>")
        else:
            assert http.get_header("Content-Encoding") == "gzip"
            assert gzip.decompress(body).startswith(b"<html><h1>")
    redirect = next(row for row in rows if row[0] == "response" and row[1].endswith("/item/moved"))
    assert (redirect[3].get_statuscode(), redirect[4]) == ("301", b"moved")


def test_pages_parsed_in_subprocesses_are_archived(
    freshet: Freshet, database: Db, shop: str
) -> None:
    Shop.etags = False
    deep = "<b>" * 100 + "<br>" * 6000
    Shop.titles.update({"/item/deep": f"{deep}Tea", "/item/long": "Tea, hot and black. " * 3000})
    freshet.crawl(definition(freshet, shop, fields={}))
    assert outcomes(database) == {"new": 3}
    for visit in visits(database):
        assert of_visit(freshet, visit)[0:2] == ("response", visit["target"])


@pytest.mark.parametrize("etags", [True, False])
def test_unchanged_pages_are_stored_as_revisit_records(
    freshet: Freshet, database: Db, shop: str, etags: bool
) -> None:
    Shop.titles["/item/a"], Shop.etags = "Tea", etags
    wrapper = definition(freshet, shop)
    for day in range(2):
        freshet.crawl(wrapper, hours=25 * day)
    first, second = visits(database, target=f"{shop}/item/a")
    assert second["outcome"] == ("not_modified" if etags else "unchanged")
    assert second["archived"]["revisit"] is True
    _, _, warc, http, body = of_visit(freshet, second)
    profile = "server-not-modified" if etags else "identical-payload-digest"
    assert warc.get_header("WARC-Profile").endswith(f"/revisit/{profile}")
    assert warc.get_header("WARC-Refers-To-Target-URI") == f"{shop}/item/a"
    original = of_visit(freshet, first)[2]
    assert warc.get_header("WARC-Refers-To-Date") == original.get_header("WARC-Date")
    assert warc.get_header("WARC-Payload-Digest") == original.get_header("WARC-Payload-Digest")
    assert body == b""
    if etags:
        path = folder(freshet) / second["archived"]["file"]
        (headers,) = [row for row in records(path) if row[0] == "metadata"]
        assert headers[4].startswith(b"HTTP/1.1 304 Not Modified\r\n")
    else:
        assert http.get_header("x-odd-name") == "kept   as it  came"
    assert len(warcs(freshet)) == 1, "the second run appends to the file of the first"


def test_a_page_without_a_record_is_fetched_in_full(
    freshet: Freshet, database: Db, shop: str
) -> None:
    Shop.titles["/item/a"] = "Tea"
    freshet.crawl(definition(freshet, shop, archive=False))
    assert "archived" not in target(database, f"{shop}/item/a")
    freshet.crawl(definition(freshet, shop), hours=25)
    visit = visits(database, target=f"{shop}/item/a")[-1]
    assert visit["outcome"] == "unchanged"
    assert of_visit(freshet, visit)[0] == "response"
    for file in warcs(freshet):
        file.delete()
    freshet.crawl(definition(freshet, shop), hours=50)
    visit = visits(database, target=f"{shop}/item/a")[-1]
    assert (visit["outcome"], "revisit" in visit["archived"]) == ("unchanged", False)


def test_size_limit_deletes_oldest_files(freshet: Freshet, shop: str) -> None:
    Shop.titles.update({f"/item/{n}": f"Tea {n}" for n in range(30)})
    wrapper = definition(freshet, shop)
    freshet.crawl(wrapper, FRESHET_ARCHIVE_FILE_MB=0.005)
    before = warcs(freshet)
    assert len(before) > 3
    assert all(file.is_full for file in before[:-1])
    limit_mb = sum(file.size for file in before) / 2 / 1024**2
    limits = {"FRESHET_ARCHIVE_FILE_MB": 0.005, "FRESHET_MAX_ARCHIVE_MB": limit_mb}
    done = freshet.crawl(wrapper, hours=25, **limits)
    after = warcs(freshet)
    assert sum(file.size for file in after) <= limit_mb * 1024**2
    assert before[0].name not in {file.name for file in after}
    assert not before[0].index.exists()
    assert "FRESHET_MAX_ARCHIVE_MB" in done.err


def test_run_fails_if_archive_cannot_be_written(freshet: Freshet, database: Db, shop: str) -> None:
    Shop.titles["/item/a"] = "Tea"
    folder(freshet).parent.mkdir(parents=True)
    folder(freshet).write_text("a file, not a folder", encoding="utf-8")
    done = freshet.crawl(definition(freshet, shop), code=1)
    assert "archive cannot be written" in done.err
    assert outcomes(database) == {}
    folder(freshet).unlink()
    freshet.crawl(definition(freshet, shop), hours=1)
    assert outcomes(database) == {"new": 2}


def test_a_visit_whose_response_cannot_be_written_is_not_stored(
    freshet: Freshet, database: Db, shop: str
) -> None:
    Shop.titles.update({f"/item/{n}": f"Tea {n}" * 50 for n in range(60)})
    words = ("crawl", "site", "-a", f"wrapper={definition(freshet, shop)}")
    process = freshet.start(*words, FRESHET_COMMIT_SIZE=5, FRESHET_COMMIT_MS=1)
    # As on a full disk; only the archive grows by this much.
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (20_000, most))
    _, err = process.communicate()
    assert process.returncode == 1
    assert err.count("archive cannot be written: File too large") == 1
    rows = visits(database)
    assert 0 < len(rows) < 61
    for row in rows:
        assert of_visit(freshet, row)[0] == "response"
    freshet.crawl(definition(freshet, shop))
    assert outcomes(database) == {"new": 61}
    for row in visits(database):
        assert of_visit(freshet, row)[0] == "response"
    assert check(folder(freshet)).problems == []
