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


def ended(process: Process) -> str:
    """Wait for a crawl to succeed and return its log."""
    _, err = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 0, err
    return err


def test_a_second_crawl_of_a_spider_leaves_it_to_the_first(
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
    ended(first)
    assert database.runs.count_documents({}) == 1
    assert asked(site).total() == 21


@pytest.mark.soak
def test_crawls_of_one_spider_into_two_databases_do_not_hinder_each_other(
    freshet: Freshet, databases: Databases, site: RunningSite
) -> None:
    wrapper = big_wrapper(freshet, site, "big", delay_seconds=0.1, concurrency=1)
    first = freshet.start("crawl", "site", "-a", f"wrapper={wrapper}")
    wait_for_requests(site)
    with databases() as (other, uri):
        result = freshet("crawl", "site", "-a", f"wrapper={wrapper}", MONGO_URI=uri)
        assert other.posts.count_documents({}) == 20, result.err
    ended(first)


@pytest.fixture
def alone(mongo: EmbeddedServer, tmp_path: Path) -> Iterator[Freshet]:
    """Yield Freshet without MONGO_URI and with its own data folder."""
    data = Path(tempfile.mkdtemp(prefix="fa-"))
    with Freshet(tmp_path, FRESHET_DATA_DIR=data) as freshet:
        yield freshet
    freshet("db", "stop")
    shutil.rmtree(data)


@pytest.mark.soak
def test_two_spiders_at_once_share_the_server_that_the_first_started(
    alone: Freshet, site: RunningSite
) -> None:
    crawls = [
        alone.start("crawl", "site", "-a", f"wrapper={big_wrapper(alone, site, name)}")
        for name in ("one", "two")
    ]
    for crawl in crawls:
        ended(crawl)
    assert set(asked(site).values()) == {2}, "each spider sends its own requests"
    counts = alone("targets", "--json")
    assert '"targets": 42' in counts.out
    assert '"one": 21' in counts.out
    assert '"two": 21' in counts.out
    assert alone("db", "stop").out == "stopped\n"
