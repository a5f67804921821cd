"""A crawl or a deliverer in its own process, for tests that kill it.

Arguments: role, URI of the database, folder, number of events.

crawl    stores changes of pages, each batch in its own run, until it has stored this number of
events and the file `end` is in the folder; appends the id of each acknowledged visit to
`acknowledged`
deliver  runs rounds of notifications until it is killed
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pymongo.errors import PyMongoError

from crawler.config import Config
from crawler.errors import StorageError
from crawler.items import Fetched, Target, Visit
from crawler.notify import channels, rounds
from crawler.storage.client import MongoRetry
from crawler.storage.store import Store
from pipelines.change_detection import decide
from tests.integration.writing import BEGIN, HOUR, RULES, WRAPPER, process

EVENTS_PER_KILL, PAGES = 100, 50
# Later batches are small: kills interrupt them, but a channel has at most 3,600 messages an hour.
LATE_PAGES = 1
PAUSE_SECONDS = 0.3
RETRY_SECONDS = 60.0


async def deliver(uri: str) -> None:
    """Deliver until killed."""
    # Compress days of retries into seconds: paused channels are retried several times a second.
    channels.FIRST_WAIT, channels.LONGEST_WAIT = timedelta(seconds=0.05), timedelta(seconds=1)
    rounds.ROUND_SECONDS = 0.2
    config = Config.load(mongo_uri=uri, mongo_timeout_seconds=1)
    patience = MongoRetry(RETRY_SECONDS)
    store = await patience.ask(lambda: Store.open(config))
    while True:
        await rounds.deliver_due(store.db, config, patience, lambda: datetime.now(UTC))
        await asyncio.sleep(0.05)


async def crawl(uri: str, folder: Path, enough: int) -> None:
    """Store changes until there are enough events; exit if the server is unavailable."""
    n_events = 0
    while n_events < enough or not (folder / "end").exists():
        await asyncio.sleep(PAUSE_SECONDS)
        pages = PAGES if n_events < enough else LATE_PAGES
        async with process(uri, BEGIN) as reader:
            last = await reader.db.targets.find_one({}, sort=[("visited_at", -1)])
        started = ((last or {}).get("visited_at") or BEGIN) + HOUR
        async with process(uri, started) as run:
            await run.begin()
            found = await run.due(*(f"item-{page}" for page in range(pages)))
            visits = [changed(target, started) for target in found]
            results = await run.store(visits)
            pairs = zip(visits, results, strict=True)
            with (folder / "acknowledged").open("a", encoding="utf-8") as file:
                file.writelines(f"{visit.id}\n" for visit, error in pairs if error is None)
            if failed := [result for result in results if result is not None]:
                raise failed[0]
            n_events = await run.db.visits.count_documents({"events": {"$exists": True}})


def changed(target: Target, at: datetime) -> Visit:
    """Return a visit that found changed content."""
    text = f"{target.url} at {at}"
    fetched = Fetched(target, at, WRAPPER.selector_digest(target.kind), 200, size=len(text))
    fetched.content = {"title": text}
    fetched.content_hash = fetched.raw_hash = hashlib.sha256(text.encode()).hexdigest()
    return decide(fetched, RULES)


if __name__ == "__main__":
    role, address, place, number = sys.argv[1:]
    try:
        crawling = role == "crawl"
        asyncio.run(crawl(address, Path(place), int(number)) if crawling else deliver(address))
    except (StorageError, PyMongoError) as error:
        sys.exit(f"{role}: {error}")
