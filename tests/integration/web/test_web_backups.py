"""Backups in the web app: one is made, listed, restored and deleted."""

from __future__ import annotations

import asyncio
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from crawler.config import Config
from crawler.errors import ServerError
from crawler.storage.store import opened
from crawler.storage.transfer import writers_locked_out
from crawler.web.options import WebOptions
from tests.integration.harness import Db, Freshet
from tests.integration.holding import holding
from tests.integration.inside import run
from tests.integration.web.browser import NOW, Browser, browsers_of

PATIENCE_SECONDS = 120
VISIT = {"spider": "shop", "target": "https://s.example/", "outcome": "new", "changed": 0}
RUN = {"spider": "shop", "started": NOW, "finished": None}


@pytest.fixture
def local(stored: tuple[Db, str], tmp_path: Path) -> Iterator[Browser]:
    """Return a browser of an app whose backups are in the test's folder."""
    with browsers_of(stored[1], WebOptions(), data_dir=tmp_path) as make:
        yield make(address="127.0.0.1")


def state(browser: Browser) -> dict[str, Any]:
    found: dict[str, Any] = browser.get("/api/v1/backups").json()
    return found


def start(browser: Browser) -> Any:
    return browser.post("/backups", {"csrf": browser.token("/backups")})


def wait(browser: Browser, condition: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Wait until the state of the backups fulfills a condition; return the state."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition(found := state(browser)):
        assert time.monotonic() < deadline, found
        browser._loop.run_until_complete(asyncio.sleep(0.1))
    return found


def has_ended(found: dict[str, Any]) -> bool:
    return not found["latest"]["running"]


@pytest.mark.soak
def test_a_backup_is_made_listed_restored_and_deleted(
    local: Browser, database: Db, tmp_path: Path, freshet: Freshet
) -> None:
    database.visits.insert_one(VISIT | {"at": NOW})
    assert "No backups yet" in local.get("/backups").text
    assert start(local).status_code == 303
    found = wait(local, has_ended)
    assert found["latest"]["error"] == ""
    (row,) = found["backups"]
    file = tmp_path / "backups" / row["name"]
    assert (row["name"], row["bytes"]) == (found["latest"]["name"], file.stat().st_size)
    got = local.get("/backups/file", params={"name": row["name"]})
    assert got.content == file.read_bytes()
    assert row["name"] in got.headers["content-disposition"]
    assert local.get("/backups/file?name=../notify.key").status_code == 404
    assert (file.stat().st_mode & 0o077, file.parent.stat().st_mode & 0o077) == (0, 0)
    with zipfile.ZipFile(file) as archive:
        assert "collections/visits.bson" in archive.namelist()
    page = local.get("/backups").text
    assert f"scrapy restore {file} --replace --yes" in page
    assert database.audit.find_one({"action": "POST /backups"})["detail"] == row["name"]
    database.visits.delete_many({})
    restored = run(freshet, "restore", file, "--replace", "--yes")
    assert restored.code == 0, restored.err
    assert database.visits.count_documents({"spider": "shop"}) == 1
    form = {"name": row["name"], "csrf": local.token("/backups")}
    assert local.post("/backups/remove", form).status_code == 303
    assert (state(local)["backups"], list(file.parent.iterdir())) == ([], [])
    assert local.post("/backups/remove", form).status_code == 404


@pytest.mark.soak
def test_a_backup_waits_for_a_crawl_and_is_the_only_one(
    local: Browser, stored: tuple[Db, str]
) -> None:
    stored[0].runs.insert_one(dict(RUN))
    with holding(stored[1], "crawl shop", elsewhere=True):
        assert start(local).status_code == 303
        found = wait(local, lambda found: "waiting" in found["latest"]["progress"])
        assert found["latest"]["progress"] == "waiting: shop is being crawled"
        assert "waiting: shop is being crawled" in local.get("/backups").text
        second = start(local)
        assert second.status_code == 409
        assert "has already started a backup" in second.text
        csrf = {"X-CSRF-Token": local.token("/backups")}
        assert local.request("POST", "/api/v1/backups", headers=csrf).status_code == 409
    found = wait(local, has_ended)
    assert (found["latest"]["error"], len(found["backups"])) == ("", 1)


def test_crawls_that_do_not_end_are_named(stored: tuple[Db, str]) -> None:
    stored[0].runs.insert_one(dict(RUN))
    said: list[str] = []

    async def lock_out(seconds: float) -> None:
        config = Config.load(mongo_uri=stored[1])
        async with opened(config) as db, writers_locked_out(db, config, seconds, said.append):
            pass

    with (
        holding(stored[1], "crawl shop", elsewhere=True),
        pytest.raises(ServerError, match="shop is being crawled on far"),
    ):
        asyncio.run(lock_out(0.1))
    assert said == ["waiting: shop is being crawled"]
    asyncio.run(lock_out(0.0))


@pytest.mark.soak
def test_a_backup_that_fails_says_why(local: Browser, tmp_path: Path) -> None:
    (tmp_path / "backups").write_text("not a folder", encoding="utf-8")
    assert start(local).status_code == 303
    # The folder cannot be listed, either.
    deadline = time.monotonic() + PATIENCE_SECONDS
    while "No backup was made" not in (page := local.get("/backups").text):
        assert time.monotonic() < deadline, page
        local._loop.run_until_complete(asyncio.sleep(0.1))
    assert "File exists" in page


def test_killed_backups_leave_no_files(local: Browser, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    draft = folder / ".freshet-2026-01-01-000000.zip.part"
    draft.write_bytes(b"x")
    (folder / "other.zip").write_bytes(b"x")
    (folder / "freshet-2026-01-01-000000.zip").write_bytes(b"x")
    (row,) = state(local)["backups"]
    assert (row["at"], row["bytes"]) == ("2026-01-01T00:00:00Z", 1)
    start(local)
    wait(local, has_ended)
    assert not draft.exists()


@pytest.mark.parametrize(
    "name", ["other.zip", "../notify.key", "freshet-2026-01-01-000000.zip/..", ".", ""]
)
def test_only_own_backups_are_deleted(local: Browser, tmp_path: Path, name: str) -> None:
    (tmp_path / "backups").mkdir()
    for file in (tmp_path / "notify.key", tmp_path / "backups" / "other.zip"):
        file.write_bytes(b"x")
    form = {"name": name, "csrf": local.token("/backups")}
    assert local.post("/backups/remove", form).status_code == 404
    assert (tmp_path / "notify.key").exists()
    assert (tmp_path / "backups" / "other.zip").exists()


def test_viewers_see_no_backups(vic: Browser) -> None:
    assert vic.get("/backups").status_code == 403
    assert vic.get("/api/v1/backups").status_code == 403
    assert "Backups" not in vic.get("/").text
