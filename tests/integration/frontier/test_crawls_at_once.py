"""Concurrent crawls: one per spider, any number of spiders, one server for all."""

from __future__ import annotations

import re
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from crawler.storage.embedded import EmbeddedServer
from tests.conftest import Databases
from tests.integration.forked import Process
from tests.integration.harness import LIMIT_SECONDS, Db, Freshet, asked
from tests.site.running import RunningSite


def big_wrapper(freshet: Freshet, site: RunningSite, name: str, **keys: object) -> Path:
    return freshet.wrapper(
        name,
        start_urls=[f"{site.url}/big/20/list/1/"],
        item_pages="/big/20/item/",
        fields={"title": "h1"},
        **keys,
    )


def wait_for_requests(site: RunningSite) -> None:
    """Wait until the site has received a request."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not (site.log.exists() and site.log.stat().st_size):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def wait_for_success(process: Process) -> str:
    """Wait for a crawl to succeed and return its log."""
    _, err = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 0, err
    return err


def test_second_crawl_of_running_spider_exits(
    freshet: Freshet, database: Db, site: RunningSite
) -> None:
    wrapper = big_wrapper(freshet, site, "big", delay_seconds=0.1, concurrency=1)
    first = freshet.start("crawl", "site", "-a", f"wrapper={wrapper}")
    wait_for_requests(site)
    # Another data folder simulates another machine.
    words = ("crawl", "site", "-a", f"wrapper={wrapper}")
    second = freshet(*words, FRESHET_DATA_DIR=freshet.folder / "other")
    assert first.poll() is None, "the first is still running"
    assert (second.code, second.out) == (0, "")
    assert re.fullmatch(
        rf"scrapy crawl: big is already being crawled on {re.escape(socket.gethostname())} "
        rf"\(process {first.pid}\) since [\d :-]{{19}}, until [\d :-]{{19}} UTC if not renewed; "
        "nothing to do",
        second.complaint,
    )
    wait_for_success(first)
    assert database.runs.count_documents({}) == 1
    assert asked(site).total() == 21


@pytest.mark.soak
def test_one_spider_crawls_into_two_databases_concurrently(
    freshet: Freshet, databases: Databases, site: RunningSite
) -> None:
    wrapper = big_wrapper(freshet, site, "big", delay_seconds=0.1, concurrency=1)
    first = freshet.start("crawl", "site", "-a", f"wrapper={wrapper}")
    wait_for_requests(site)
    with databases() as (other, uri):
        result = freshet("crawl", "site", "-a", f"wrapper={wrapper}", MONGO_URI=uri)
        assert other.posts.count_documents({}) == 20, result.err
    wait_for_success(first)


@pytest.fixture
def standalone(mongo: EmbeddedServer, tmp_path: Path) -> Iterator[Freshet]:
    """Yield Freshet without MONGO_URI and with its own data folder."""
    data = Path(tempfile.mkdtemp(prefix="fa-"))
    with Freshet(tmp_path, FRESHET_DATA_DIR=data) as freshet:
        yield freshet
    freshet("db", "stop")
    shutil.rmtree(data)


@pytest.mark.soak
def test_concurrent_spiders_share_one_embedded_server(
    standalone: Freshet, site: RunningSite
) -> None:
    crawls = [
        standalone.start("crawl", "site", "-a", f"wrapper={big_wrapper(standalone, site, name)}")
        for name in ("one", "two")
    ]
    for crawl in crawls:
        wait_for_success(crawl)
    assert set(asked(site).values()) == {2}, "each spider sends its own requests"
    counts = standalone("targets", "--json")
    assert '"targets": 42' in counts.out
    assert '"one": 21' in counts.out
    assert '"two": 21' in counts.out
    assert standalone("db", "stop").out == "stopped\n"
