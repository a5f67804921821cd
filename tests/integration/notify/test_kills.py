"""Delivery loses and invents no notifications when crawls, deliverers and MongoDB are killed.

Five channels over HTTP: one works, one is slow, one has no server, one answers 404, one flaps.
"""

from __future__ import annotations

import base64
import json
import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from pymongo import MongoClient

from crawler.storage.outbox import message_id
from tests.faults.servers import Mongo
from tests.integration.forked import Process, python
from tests.integration.harness import Db, Row
from tests.integration.notify.webhooks import Hooks, Receiver, serving, status
from tests.integration.notify.worker import EVENTS_PER_KILL
from tests.integration.pushing import free_port

# Kills of each victim.
KILLS = int(os.environ.get("KILLS", "2"))
VICTIMS = ("crawl", "deliver", "mongod")
LIMIT_SECONDS = 900
WORK_SECONDS = 10.0
FLAP_SECONDS = 1.0
CHANNELS = ("works", "slow", "refuses", "missing", "flaps")
# Channels that accept every message in the end.
WORKING = ("works", "slow", "flaps")
RULE = '[[rules]]\nname = "all"\nevents = ["new", "changed"]\nchannels = {}\n'
CHANNEL = """
[channels.{}]
webhook = "http://127.0.0.1:{}/{}"
secret = "${{HOOK_SECRET}}"
max_per_hour = 3600
retry_hours = {}
"""


class Channels:
    """Receivers of the channels, and what they accepted: id, time of the event and URL, in order.

    `refuses` has no server, `missing` answers 404, `flaps` is unavailable every other second.
    """

    def __init__(self, hooks: Hooks) -> None:
        self.accepted: defaultdict[str, list[tuple[str, str, str]]] = defaultdict(list)
        self._hooks = hooks
        hooks.answers = [self.answer]

    def answer(self, request: Receiver) -> None:
        name = request.path[1:]
        if name == "missing":
            return status(404)(request)
        if name == "flaps" and time.time() % (2 * FLAP_SECONDS) < FLAP_SECONDS:
            return status(503)(request)
        if name == "slow":
            time.sleep(0.02)
        (event,) = request.body["data"]["events"]
        key = request.headers["webhook-id"]
        self.accepted[name].append((key, event["at"], event["url"]))
        return status(204)(request)

    def write(self, path: Path) -> None:
        """Write `notify.toml` with all channels and one rule."""
        parts = [RULE.format(json.dumps(CHANNELS))]
        for name in CHANNELS:
            port = free_port() if name == "refuses" else self._hooks.server_port
            # Messages of the other channels are dead-lettered after about a second.
            hours = 72 if name in WORKING else 1 / 3600
            parts.append(CHANNEL.format(name, port, name, hours))
        path.write_text("".join(parts), encoding="utf-8")


class Workers:
    """One crawl and one deliverer, restarted after they exit."""

    def __init__(self, uri: str, file: Path) -> None:
        self._folder = file.parent
        self._arguments = [uri, str(self._folder), str(EVENTS_PER_KILL * KILLS)]
        secret = "whsec_" + base64.b64encode(b"s" * 32).decode()
        self._env = os.environ | {
            "FRESHET_NOTIFY_FILE": str(file), "FRESHET_DUPLICATES": "off", "HOOK_SECRET": secret,
        }  # fmt: skip
        self.running: dict[str, Process] = {}
        self.has_crawled = False

    def keep(self) -> None:
        """Start processes that are not running, until the crawl has stored all its events."""
        for role in ("crawl", "deliver"):
            process = self.running.get(role)
            if process is not None and process.poll() is None:
                continue
            if process is not None:
                process.communicate()
                err = self._errors(role).read_text()
                assert "Traceback" not in err, err
            if role == "crawl" and process is not None and process.returncode == 0:
                self.has_crawled = True
                continue
            module = "tests.integration.notify.worker"
            # An unread pipe would block a deliverer that logs a lot.
            with self._errors(role).open("w") as errors:
                self.running[role] = python(
                    module, [role, *self._arguments], self._env, stderr=errors
                )

    def _errors(self, role: str) -> Path:
        return self._folder / f"{role}.log"

    def end(self) -> None:
        for process in self.running.values():
            process.kill()
            process.communicate()


def wait_for_progress(workers: Workers, channels: Channels, db: Db, victim: str) -> bool:
    """Wait until a victim makes progress; return whether it did within the time limit."""

    def done() -> int:
        if victim == "crawl":
            return db.visits.estimated_document_count()
        return sum(len(channels.accepted[name]) for name in WORKING)

    before, deadline = done(), time.monotonic() + WORK_SECONDS
    while done() == before and time.monotonic() < deadline:
        workers.keep()
        time.sleep(0.02)
    return done() > before


def wait_until_delivered(workers: Workers, db: Db) -> None:
    """Wait until the crawl has ended and the working channels have no messages waiting."""
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


@pytest.fixture
def channels() -> Iterator[Channels]:
    with serving() as hooks:
        yield Channels(hooks)


@pytest.mark.soak
def test_every_event_reaches_each_working_channel(tmp_path: Path, channels: Channels) -> None:
    rng = random.Random(7)
    kills: Counter[str] = Counter()
    channels.write(tmp_path / "notify.toml")
    with (
        Mongo(tmp_path / "mongo") as mongo,
        MongoClient[Row](mongo.uri("kills"), tz_aware=True) as client,
    ):
        db = client.get_default_database()
        workers = Workers(mongo.uri("kills"), tmp_path / "notify.toml")
        try:
            for victim in VICTIMS * KILLS:
                kills[victim] += wait_for_progress(workers, channels, db, victim)
                time.sleep(rng.uniform(0.0, 0.1))
                if victim == "mongod":
                    mongo.kill()
                    mongo.start()
                else:
                    workers.running[victim].kill()
            (tmp_path / "end").touch()
            wait_until_delivered(workers, db)
            visits = [row["_id"] for row in db.visits.find({"events": {"$exists": True}})]
            stored = Counter(row["channel"] for row in db.outbox.find())
        finally:
            workers.end()
    acknowledged = set((tmp_path / "acknowledged").read_text().split())
    assert len(visits) >= EVENTS_PER_KILL * KILLS
    assert acknowledged <= set(map(str, visits))
    # Nearly all kills interrupted work.
    assert min(kills[victim] for victim in VICTIMS) >= int(0.9 * KILLS), kills
    assert stored == dict.fromkeys(CHANNELS, len(visits))
    for name in WORKING:
        accepted = channels.accepted[name]
        # Exactly the events of the stored visits.
        assert {key for key, *_ in accepted} == {
            message_id(f"visits {key}", "all", name) for key in visits
        }
        first = {key: (url, at) for key, at, url in reversed(accepted)}
        seen: dict[str, str] = {}
        for key in dict.fromkeys(key for key, *_ in accepted):
            url, at = first[key]
            assert seen.get(url, "") < at, "a later message of a page came first"
            seen[url] = at
        print(f"{name}: {len(first)} messages, {len(accepted) - len(first)} repeated")
        assert len({(url, at) for _, at, url in accepted}) == len(visits)
    print(f"{len(visits)} visits, {len(acknowledged)} of them acknowledged to their crawl; {kills}")
    for name in set(CHANNELS) - set(WORKING):
        assert channels.accepted[name] == []
