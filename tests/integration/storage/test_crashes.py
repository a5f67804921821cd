"""After any kill, the next run repairs the database, which then matches the site's request log."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymongo
import pytest

from crawler.config import Config
from crawler.storage.embedded import EmbeddedServer
from tests.integration.forked import Process, python
from tests.site.running import RunningSite

DUPLICATES = "characters"

ITEMS = 500
LISTS = ITEMS // 100
WRAPPER = """
name = "crash"
start_urls = ["{url}/big/{items}/list/1/"]
list_pages = '/big/\\d+/list/\\d+/'
item_pages = '/big/\\d+/item/\\d+\\.html'
throttle = false
robots = false
category = {{ css = "h2.category" }}
[fields]
title = "h1"
price = {{ css = "p.price", type = "price" }}
"""


class Crashing:
    """A site, its definition and an embedded server; tests can kill crawl and server."""

    def __init__(self, folder: Path, site: RunningSite) -> None:
        self.site = site
        self.data = folder / "data"
        self.server = EmbeddedServer.of(Config.load(data_dir=self.data))
        self.clients: list[pymongo.MongoClient[dict[str, Any]]] = []
        self.wrapper = folder / "crash.toml"
        self.wrapper.write_text(WRAPPER.format(url=site.url, items=ITEMS))

    def start(self) -> Process:
        """Start a crawl."""
        env = os.environ | {"FRESHET_DATA_DIR": str(self.data)}
        env.pop("MONGO_URI", None)
        return python("scrapy", ["crawl", "site", "-a", f"wrapper={self.wrapper}"], env)

    def finish(self) -> None:
        """Run a crawl from start to end."""
        crawl = self.start()
        _, err = crawl.communicate(timeout=120)
        assert crawl.returncode == 0, err

    def database(self) -> Any:
        """Return the database; restart the server if it is not running."""
        self.clients.append(pymongo.MongoClient(self.server.start()))
        return self.clients[-1].get_default_database()

    def acknowledged(self) -> dict[str, Any]:
        """Return the visits stored in the targets, by URL."""
        found = self.database().targets.find({"requested": {"$gt": 0}})
        return {target["url"]: target["last_visit"]["_id"] for target in found}

    def wait_for_visits(self, visits: int, seconds: float = 20) -> None:
        """Wait until the server has answered `visits` more requests."""
        before, deadline = len(self.site.requests()), time.monotonic() + seconds
        while len(self.site.requests()) < before + visits and time.monotonic() < deadline:
            time.sleep(0.01)


@pytest.fixture
def crashing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crashing]:
    folder = tmp_path_factory.mktemp("c")
    with RunningSite("--log-big") as site:
        state = Crashing(folder, site)
        yield state
        for client in state.clients:
            client.close()
        state.server.stop()


def check_consistent(crashing: Crashing, ever_acknowledged: dict[str, Any]) -> None:
    """Check that every page is stored exactly once, as in the site's request log."""
    db = crashing.database()
    answered = Counter(
        crashing.site.url + request["path"]
        for request in crashing.site.requests()
        if request["status"] == 200
    )
    logged = Counter(visit["target"] for visit in db.visits.find())

    assert db.posts.count_documents({}) == ITEMS
    assert len(db.posts.distinct("url")) == ITEMS
    assert db.versions.count_documents({}) == ITEMS + LISTS
    assert db.targets.count_documents({}) == ITEMS + LISTS
    assert set(logged) == set(answered), "visits differ from the requested pages"
    assert set(logged.values()) == {1}, "a visit is stored twice"
    assert all(answered[url] >= 1 for url in logged)

    final = {visit["target"]: visit["_id"] for visit in db.visits.find()}
    lost = {url for url, visit in ever_acknowledged.items() if final.get(url) != visit}
    assert not lost, "an acknowledged visit was lost"
    assert db.runs.count_documents({"finished": None}) == 0
    assert db.listings.count_documents({"shown": True}) == ITEMS


@pytest.mark.soak
def test_ten_crawl_kills_lose_and_repeat_no_visit(crashing: Crashing) -> None:
    chance = random.Random(20130531)
    crashing.server.start()
    acknowledged: dict[str, Any] = {}
    for _ in range(10):
        crawl = crashing.start()
        crashing.wait_for_visits(chance.randint(1, ITEMS // 10))
        time.sleep(chance.random() / 20)
        crawl.kill()
        crawl.communicate()
        for url, visit in crashing.acknowledged().items():
            assert acknowledged.setdefault(url, visit) == visit, "a page was visited twice"
    assert crashing.database().visits.count_documents({}) < ITEMS + LISTS, "the run was complete"
    crashing.finish()
    check_consistent(crashing, acknowledged)


@pytest.mark.soak
def test_three_mongod_kills_lose_and_repeat_no_visit(crashing: Crashing) -> None:
    chance = random.Random(644)
    crashing.server.start()
    acknowledged: dict[str, Any] = {}
    for _ in range(3):
        crawl = crashing.start()
        crashing.wait_for_visits(chance.randint(50, ITEMS // 5))
        pid = crashing.server.pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        time.sleep(0.5)
        acknowledged |= crashing.acknowledged()
        crawl.kill()
        crawl.communicate()
    crashing.finish()
    check_consistent(crashing, acknowledged)


@pytest.mark.soak
def test_crawl_survives_kill_of_the_embedded_server(crashing: Crashing) -> None:
    crashing.server.start()
    crawl = crashing.start()
    crashing.wait_for_visits(ITEMS // 5)
    pid = crashing.server.pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    _, err = crawl.communicate(timeout=120)
    assert crawl.returncode == 0, err
    assert "Traceback" not in err
    check_consistent(crashing, {})
