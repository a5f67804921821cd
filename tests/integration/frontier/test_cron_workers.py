"""`scrapy cron` for several workers, and for folders of site definitions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.harness import Freshet
from tests.integration.inside import run


@pytest.fixture
def runner(tmp_path: Path) -> Freshet:
    """Return Freshet without a database, because cron needs none."""
    return Freshet(tmp_path, FRESHET_DATA_DIR=tmp_path / "data")


def test_worker_option_prints_unit_for_workers(runner: Freshet) -> None:
    done = run(runner, "cron", "--systemd", "--worker", REDIS_URL="redis://r")
    assert (done.code, done.err) == (0, "")
    assert " refresh run --replan 0 --no-prune -L WARNING\n" in done.out
    assert "Description=Freshet, worker %i (" in done.out


def test_workers_need_redis(runner: Freshet) -> None:
    refused = run(runner, "cron", "--systemd", "--worker")
    assert refused.code == 1
    assert "workers share a crawl run through Redis, but REDIS_URL is" in refused.complaint
    assert "--worker requires --systemd" in run(runner, "cron", "--worker").err


def test_folder_has_one_line_per_site_definition(runner: Freshet, tmp_path: Path) -> None:
    for name in ("shop", "blog"):
        runner.wrapper(name, start_urls=["https://s.example/"], item_pages="/item")
    done = run(runner, "cron", f"{tmp_path}/")
    crawls = [line for line in done.out.splitlines() if " crawl site -a wrapper=" in line]
    assert [line.partition("wrapper=")[2].split()[0] for line in crawls] == [
        f"{tmp_path}/blog.toml", f"{tmp_path}/shop.toml",
    ]  # fmt: skip
    assert f"{tmp_path}/ -L" not in done.out
    unit = run(runner, "cron", "--systemd", f"{tmp_path}/")
    assert f" -L WARNING {tmp_path}/\n" in unit.out
