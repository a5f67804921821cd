"""No notification is lost or invented when crawls, deliverers and MongoDB are killed."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest
from pymongo import MongoClient

from crawler.storage.outbox import message_id
from tests.faults.servers import Mongo
from tests.integration.forked import Process, python
from tests.integration.harness import Db, Row
from tests.integration.notify.worker import CHANNELS, EVENTS, WORKING

KILLS = 20
LIMIT_SECONDS = 120
WORK_SECONDS = 3.0
RULE = '[[rules]]\nname = "all"\nevents = ["new", "changed"]\nchannels = "works"\n'


class Workers:
    """One crawl and one deliverer, which are started again when they have ended."""

    def __init__(self, uri: str, folder: Path) -> None:
        self._args = [uri, str(folder)]
        (folder / "notify.toml").write_text(RULE, encoding="utf-8")
        file = str(folder / "notify.toml")
        self._env = os.environ | {"FRESHET_NOTIFY_FILE": file, "FRESHET_DUPLICATES": "off"}
        self.running: dict[str, Process] = {}
        self.has_crawled = False

    def keep(self) -> None:
        """Start what is not running, until the crawl has stored all its events."""
        for role in ("crawl", "deliver"):
            process = self.running.get(role)
            if process is not None and process.poll() is None:
                continue
            if process is not None:
                _, err = process.communicate()
                assert "Traceback" not in err, err
            if role == "crawl" and process is not None and process.returncode == 0:
                self.has_crawled = True
                continue
            module = "tests.integration.notify.worker"
            self.running[role] = python(module, [role, *self._args], self._env)

    def end(self) -> None:
        for process in self.running.values():
            process.kill()
            process.communicate()


def received(folder: Path, channel: str) -> list[tuple[str, str, str]]:
    """Return what a channel accepted: id, time and target, in order."""
    file = folder / channel
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [(id_, at, target) for id_, at, target in (line.split("\t") for line in lines)]


def until_work(workers: Workers, folder: Path, db: Db, victim: str) -> bool:
    """Wait until a victim has done some work since now; return whether it did."""

    def done() -> int:
        if victim == "crawl":
            return db.visits.estimated_document_count()
        return sum(len(received(folder, channel)) for channel in WORKING)

    before, deadline = done(), time.monotonic() + WORK_SECONDS
    while done() == before and time.monotonic() < deadline:
        workers.keep()
        time.sleep(0.02)
    return done() > before


def until_delivered(workers: Workers, db: Db) -> None:
    """Wait until the crawl has ended and no message waits for a working channel."""
    deadline = time.monotonic() + LIMIT_SECONDS
    waiting = {"state": "waiting", "channel": {"$in": list(WORKING)}}
    while not (
        workers.has_crawled
        and db.visits.count_documents({"notify": True}) == 0
        and db.outbox.count_documents(waiting) == 0
    ):
        assert time.monotonic() < deadline, db.outbox.count_documents(waiting)
        workers.keep()
        time.sleep(0.1)


@pytest.mark.soak
def test_every_event_reaches_each_working_channel(tmp_path: Path) -> None:
    rng = random.Random(7)
    kills: Counter[str] = Counter()
    with (
        Mongo(tmp_path / "mongo") as mongo,
        MongoClient[Row](mongo.uri("kills"), tz_aware=True) as client,
    ):
        uri, db = mongo.uri("kills"), client.get_default_database()
        workers = Workers(uri, tmp_path)
        try:
            for number in range(KILLS):
                victim = ("crawl", "deliver", "mongod")[number % 3]
                is_working = until_work(workers, tmp_path, db, victim)
                time.sleep(rng.uniform(0.0, 0.1))
                kills[victim] += is_working
                if victim == "mongod":
                    mongo.kill()
                    mongo.start()
                else:
                    workers.running[victim].kill()
            until_delivered(workers, db)
            visits = [row["_id"] for row in db.visits.find({"events": {"$exists": True}})]
            stored = Counter(row["channel"] for row in db.outbox.find())
        finally:
            workers.end()
    assert len(visits) >= EVENTS
    assert kills["deliver"] > 4, kills
    assert stored == dict.fromkeys(CHANNELS, len(visits))
    for channel in WORKING:
        accepted = received(tmp_path, channel)
        # Each event of an acknowledged visit, and no other one.
        assert {id_ for id_, *_ in accepted} == {
            message_id(f"visits {key}", "all", channel) for key in visits
        }
        first = {id_: (target, at) for id_, at, target in reversed(accepted)}
        seen: dict[str, str] = {}
        for id_ in dict.fromkeys(id_ for id_, *_ in accepted):
            target, at = first[id_]
            assert seen.get(target, "") < at, "a later message of a page came first"
            seen[target] = at
        print(f"{channel}: {len(first)} messages, {len(accepted) - len(first)} repeated; {kills}")
    for channel in set(CHANNELS) - set(WORKING):
        assert received(tmp_path, channel) == []
