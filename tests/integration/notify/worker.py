"""A crawl or a deliverer in a process of its own, which a test kills.

Arguments: role, URI of the database, folder for what the channels accept.

crawl    stores changes of pages until there are EVENTS, each batch in a run of its own
deliver  applies the rule and delivers to five channels, until it is killed
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pymongo.errors import PyMongoError

from crawler.config import Config
from crawler.errors import StorageError
from crawler.items import Fetched, Target, Visit
from crawler.notify.deliverer import Deliverer, Failure
from crawler.storage.client import Document
from crawler.storage.outages import MongoRetry
from crawler.storage.store import Store
from pipelines.outcomes import decide
from tests.integration.notify.outlets import expand_all, rule_set
from tests.integration.writing import BEGIN, HOUR, RULES, WRAPPER, process

EVENTS, PAGES = 2000, 50
CHANNELS = ("works", "slow", "refuses", "missing", "flaps")
# Channels that accept every message in the end.
WORKING = ("works", "slow", "flaps")
RETRY_SECONDS = 60.0
FLAP_SECONDS = 1.0


@dataclass
class FileOutlet:
    """A channel that appends what it accepts to a file: id, time of the event, target."""

    name: str
    folder: Path

    async def send(self, message: Document) -> Failure | None:
        if self.name in ("refuses", "missing"):
            return Failure("connection refused" if self.name == "refuses" else "status 404")
        if self.name == "flaps" and time.time() % (2 * FLAP_SECONDS) < FLAP_SECONDS:
            return Failure("status 503")
        if self.name == "slow":
            await asyncio.sleep(0.02)
        line = f"{message['_id']}\t{message['at'].isoformat()}\t{message['target']}\n"
        with (self.folder / self.name).open("a", encoding="utf-8") as file:
            file.write(line)
        return None

    def next_attempt(self, attempts: int, first_at: datetime, now: datetime) -> datetime | None:
        if self.name not in WORKING and attempts >= 3:
            return None
        return now + timedelta(seconds=min(1.0, 0.05 * 2**attempts))


async def deliver(uri: str, folder: Path) -> None:
    """Deliver until killed."""
    config = Config.load(mongo_uri=uri, mongo_timeout_seconds=1)
    patience = MongoRetry(RETRY_SECONDS)
    store = await patience.ask(lambda: Store.open(config))
    outlets = [FileOutlet(name, folder) for name in CHANNELS]
    deliverer = Deliverer(store.db, config, patience, lambda: datetime.now(UTC))
    while True:
        await patience.ask(lambda: expand_all(store.db, rule_set(*CHANNELS)))
        await deliverer.deliver(outlets)
        await asyncio.sleep(0.05)


async def crawl(uri: str) -> None:
    """Store changes until there are enough events; an unavailable server ends the process."""
    n_events = 0
    while n_events < EVENTS:
        async with process(uri, BEGIN) as reader:
            last = await reader.db.targets.find_one({}, sort=[("visited_at", -1)])
        started = ((last or {}).get("visited_at") or BEGIN) + HOUR
        async with process(uri, started) as run:
            await run.begin()
            found = await run.due(*(f"item-{page}" for page in range(PAGES)))
            results = await run.store([changed(target, started) for target in found])
            if failed := [result for result in results if result is not None]:
                raise failed[0]
            n_events = await run.db.visits.count_documents({"events": {"$exists": True}})


def changed(target: Target, at: datetime) -> Visit:
    """Return a visit that found other content than the one before."""
    text = f"{target.url} at {at}"
    fetched = Fetched(target, at, WRAPPER.selector_digest(target.kind), 200, size=len(text))
    fetched.content = {"title": text}
    fetched.content_hash = fetched.raw_hash = hashlib.sha256(text.encode()).hexdigest()
    return decide(fetched, RULES)


if __name__ == "__main__":
    role, address, place = sys.argv[1:]
    try:
        asyncio.run(crawl(address) if role == "crawl" else deliver(address, Path(place)))
    except (StorageError, PyMongoError) as error:
        sys.exit(f"{role}: {error}")
