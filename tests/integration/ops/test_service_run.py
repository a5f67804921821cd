"""`scrapy refresh run`: a service that visits due targets and shuts down cleanly."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

import pymongo
import pytest

from crawler.config import Config
from crawler.items import Kind
from crawler.storage import due as duetimes
from crawler.storage import targets
from crawler.storage.embedded import EmbeddedServer
from crawler.storage.store import opened
from crawler.utils.time import EPOCH, Clock
from tests.integration.harness import (
    LIMIT_SECONDS,
    Db,
    Freshet,
    Pages,
    Row,
    asked,
    outcomes,
    target,
)
from tests.integration.notify.webhooks import serving

pytestmark = pytest.mark.soak

SHORT = {"FRESHET_LIST_INTERVAL_HOURS": 0.0002, "FRESHET_ITEM_INTERVAL_HOURS": 0.0002}
ITEMS = 60
SLOW = {"delay_seconds": 0.04, "concurrency": 2}
NAMED = "books, feeds, quotes"


class Service:
    """Run the service; end it by SIGTERM and check that it succeeds."""

    def __init__(self, freshet: Freshet, *words: object, **env: object) -> None:
        self.process = freshet.start("refresh", "run", "--json", *words, **env)
        self.err = ""
        self.done: Row = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.terminate()
        out, self.err = self.process.communicate(timeout=LIMIT_SECONDS)
        if exception[0] is None:
            assert self.process.returncode == 0, self.err
            assert "Traceback" not in self.err, self.err
            self.done = json.loads(out)

    def of(self, name: str) -> Row:
        """Return the totals of a spider."""
        (row,) = [row for row in self.done["spiders"] if row["name"] == name]
        return row


def until(condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def wrapper(freshet: Freshet, pages: Pages, name: str, **keys: object) -> Path:
    """Define a site with a list and its items below `/NAME/`."""
    given = {"start_urls": [f"{pages.url}/{name}/list.html"], "item_pages": f"/{name}/item"}
    return freshet.wrapper(name, **given | {"fields": {"title": "h1"}, "robots": False} | keys)


def write(pages: Pages, name: str, items: int = ITEMS) -> None:
    """Write the list and the items of such a site."""
    paths = [f"/{name}/item-{k}.html" for k in range(items)]
    pages.list(f"/{name}/list.html", paths)
    for path in paths:
        pages.item(path, path)


def check_request_log(db: Db, pages: Pages, name: str, items: int = ITEMS) -> None:
    """Check that the stored visits of each page match the site's own request log."""
    answered = {f"{pages.url}{path}": n for path, n in asked(pages).items() if f"/{name}/" in path}
    stored = {row["_id"]: row["n"] for row in db.visits.aggregate(
        [{"$match": {"spider": name}}, {"$group": {"_id": "$target", "n": {"$sum": 1}}}]
    )}  # fmt: skip
    assert stored == answered
    assert len(stored) == items + 1
    assert db.runs.count_documents({"finished": None}) == 0


def test_change_is_found_at_the_next_visit(freshet: Freshet, database: Db, pages: Pages) -> None:
    names = ("shop", "news")
    files = []
    for name in names:
        write(pages, name, items=2)
        files.append(wrapper(freshet, pages, name))
    with Service(freshet, *files, **SHORT) as service:
        until(lambda: outcomes(database)["new"] == 6)
        pages.item("/shop/item-0.html", "changed")
        until(lambda: outcomes(database, spider="shop")["changed"] == 1)
        until(lambda: outcomes(database, spider="news")["not_modified"] > 3)
    assert target(database, f"{pages.url}/shop/item-0.html")["refreshed"] > 1
    for name in names:
        check_request_log(database, pages, name, items=2)
        sums = service.of(name)
        assert sums["runs"] == database.runs.count_documents({"spider": name})
        assert sums["visits"] == database.visits.count_documents({"spider": name})
        assert (sums["failed"], sums["new"]) == (0, 3)
    assert service.of("shop")["changed"] == 1
    assert len(service.err.splitlines()) <= sum(row["runs"] for row in service.done["spiders"])


def test_pages_over_the_hourly_cap_of_a_site_are_fetched_in_the_next_hour(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    write(pages, "shop", items=9)
    now = datetime.now(UTC)
    # The service begins in the last seconds of an hour.
    offset = (now.replace(minute=59, second=40, microsecond=0) - now) / timedelta(hours=1)
    site = wrapper(freshet, pages, "shop", requests_per_hour=6)
    with Service(freshet, site, FRESHET_CLOCK_OFFSET_HOURS=offset):
        until(lambda: database.visits.count_documents({}) == 10, seconds=120)
    check_request_log(database, pages, "shop", items=9)
    hours = Counter(visit["at"].hour for visit in database.visits.find())
    assert sorted(hours.values()) == [4, 6]


def test_sigterm_finishes_requests_in_flight(freshet: Freshet, database: Db, pages: Pages) -> None:
    write(pages, "shop")
    with Service(freshet, wrapper(freshet, pages, "shop", **SLOW)):
        until(lambda: asked(pages).total() > 4)
        began = time.monotonic()
    assert time.monotonic() - began < 10
    visited = database.visits.count_documents({})
    assert visited == asked(pages).total() < ITEMS + 1
    (run,) = database.runs.find()
    assert (run["reason"], run["counts"]["visits"]) == ("shutdown", visited)


def test_slices_end_runs_without_losing_visits(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    write(pages, "shop")
    # A slice that is too short for a visit on a busy machine would be followed by a long pause.
    slow = wrapper(freshet, pages, "shop", delay_seconds=0.1, concurrency=2)
    with Service(freshet, slow, "--slice", "0.03m"):
        until(lambda: database.visits.count_documents({}) == ITEMS + 1, seconds=120)
        until(lambda: database.runs.count_documents({"finished": None}) == 0)
    check_request_log(database, pages, "shop")
    assert set(asked(pages).values()) == {1}
    reasons = [run["reason"] for run in database.runs.find()]
    assert reasons.count("closespider_timeout") >= 2


def test_slice_is_longer_than_the_delay_of_a_site(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    """A slice that ends before the first page has been fetched would be followed by another."""
    write(pages, "shop", items=0)
    slow = wrapper(freshet, pages, "shop", delay_seconds=1.5, robots=True)
    with Service(freshet, slow, "--slice", "0.01m"):
        until(lambda: database.visits.count_documents({}) == 1)
    paths = [request["path"] for request in pages.requests()]
    assert paths == ["/robots.txt", "/shop/list.html"]


def test_restart_resumes_after_kill(freshet: Freshet, database: Db, pages: Pages) -> None:
    write(pages, "shop")
    file = wrapper(freshet, pages, "shop", **SLOW)
    first = Service(freshet, file)
    until(lambda: database.visits.count_documents({}) > 4)
    first.process.kill()
    first.process.communicate()
    assert database.runs.count_documents({"finished": None}) == 1
    with Service(freshet, file):
        until(lambda: outcomes(database)["new"] == ITEMS + 1)
        until(lambda: database.runs.count_documents({"finished": None}) == 0)
    reasons = {run["reason"] for run in database.runs.find()}
    assert "interrupted" in reasons
    assert len(database.visits.distinct("target")) == ITEMS + 1
    assert database.visits.count_documents({}) == ITEMS + 1, "a stored visit was repeated"


def test_broken_spider_is_retried_and_others_continue(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    write(pages, "shop", items=2)
    write(pages, "news", items=2)
    shop, news = wrapper(freshet, pages, "shop"), wrapper(freshet, pages, "news")
    good = news.read_text(encoding="utf-8")
    news.write_text("name = ", encoding="utf-8")
    code = (
        "from spiders.wrapper import WrapperSpider\n"
        "class Bug(WrapperSpider):\n"
        "    name = 'bug'\n    start_urls = ['http://x.test/']\n    item_pages = '/i'\n"
        "    def configure(self, crawler):\n        raise TypeError('a bug')\n"
    )
    (freshet.folder / "bugs_of_test.py").write_text(code, encoding="utf-8")
    words = ("bug", news, shop, "-s", "SPIDER_MODULES=spiders,bugs_of_test")
    with Service(freshet, *words, PYTHONPATH=freshet.folder, **SHORT) as service:
        until(lambda: outcomes(database, spider="shop")["not_modified"] > 3)
        # In one step: a run that began in between would read an empty file.
        mended = news.with_suffix(".new")
        mended.write_text(good, encoding="utf-8")
        mended.replace(news)
        until(lambda: outcomes(database, spider="news")["new"] == 3)
    lines = [line for line in service.err.splitlines() if " failed, retrying in 5 s: " in line]
    failed = [line for line in lines if f" 5 s: {news}: not valid TOML" in line]
    assert any("TypeError: a bug (" in line for line in lines)
    # On a slow machine, a second run may fail before the file is mended.
    assert service.of("news")["failed"] == len(failed) >= 1
    assert service.of("bug")["failed"] >= 1
    assert service.of("shop")["failed"] == 0


def test_crawl_and_service_exclude_each_other(freshet: Freshet, database: Db, pages: Pages) -> None:
    write(pages, "shop")
    file = wrapper(freshet, pages, "shop", **SLOW)
    crawl = "crawl", "site", "-a", f"wrapper={file}"
    with Service(freshet, file):
        until(lambda: asked(pages).total() > 2)
        second = freshet(*crawl)
        assert second.code == 0
        assert second.complaint.startswith("scrapy crawl: shop is already being crawled on ")
        until(lambda: database.visits.count_documents({}) == ITEMS + 1)
        until(lambda: database.runs.count_documents({"finished": None}) == 0)
    first = freshet.start(*crawl, "-a", "full=1")
    until(lambda: asked(pages).total() > ITEMS + 3)
    before = database.runs.count_documents({})
    with Service(freshet, file) as service:
        _, err = first.communicate(timeout=LIMIT_SECONDS)
        assert first.returncode == 0, err
        until(lambda: database.runs.count_documents({}) > before)
    assert service.err.count("shop is already being crawled on ") == 1
    assert service.of("shop")["failed"] == 0
    check_request_log(database, pages, "shop")


def test_for_option_ends_the_service(freshet: Freshet, pages: Pages) -> None:
    write(pages, "shop", items=2)
    done = freshet("refresh", "run", wrapper(freshet, pages, "shop"), "--for", "0.08m")
    assert done.code == 0, done.err
    assert done.complaint.endswith(" s"), "one log line for the run"
    assert done.out.splitlines() == ["shop: 1 run, 3 visits, 3 new", "0 replans, 0 prunes; 5 s"]


@pytest.mark.usefixtures("warm")
def test_replan_uses_the_given_budget(freshet: Freshet, database: Db, pages: Pages) -> None:
    write(pages, "shop", items=2)
    words = (wrapper(freshet, pages, "shop"), "--replan", "0.03m", "-s", "FRESHET_BUDGET=7")
    with Service(freshet, *words) as service:
        until(lambda: database.plans.count_documents({"state": "active"}) > 1, LIMIT_SECONDS)
    plan = database.plans.find_one({"state": "active"})
    assert plan is not None
    assert plan["budget_per_day"] == 7
    assert service.done["replans"] >= 1
    assert "scrapy replan finished" in service.err


def test_service_delivers_notifications(
    freshet: Freshet, database: Db, pages: Pages, tmp_path: Path
) -> None:
    rule = '[[rules]]\nname = "all"\nchannels = "team"\n'
    with serving() as hooks:
        channel = f'[channels.team]\napprise = "json://{hooks.place}"\n'
        (tmp_path / "notify.toml").write_text(rule + channel, encoding="utf-8")
        freshet.env["FRESHET_NOTIFY_FILE"] = str(tmp_path / "notify.toml")
        write(pages, "shop", items=2)
        file = wrapper(freshet, pages, "shop")
        freshet.crawl(file)
        # Nobody is told of the pages of the first crawl.
        write(pages, "shop", items=3)
        database.targets.update_many({}, {"$set": {"next_visit": EPOCH}})
        with Service(freshet, file):
            until(lambda: hooks.received != [])
            until(lambda: database.outbox.count_documents({"state": "waiting"}) == 0)
    delivered = database.outbox.count_documents({"state": "delivered"})
    assert delivered == len(hooks.received) > 0
    assert database.visits.count_documents({"notify": True}) == 0


def test_earliest_due_time_of_a_spider(stored: tuple[Db, str]) -> None:
    db, uri = stored
    now = Clock().now()
    hour = timedelta(hours=1)

    async def earliest() -> datetime | None:
        async with opened(Config.load(mongo_uri=uri)) as own:
            return await duetimes.earliest(own, "shop", now)

    def put(url: str, due: datetime) -> None:
        db.targets.insert_one(targets.new_document("shop", url, Kind.ITEM, due, now))

    assert asyncio.run(earliest()) is None
    put("http://held.example/", now - hour)
    put("http://open.example/", now + hour)
    assert asyncio.run(earliest()) == now - hour
    db.hosts.insert_one({"_id": "held.example", "hold_until": now + hour})
    assert asyncio.run(earliest()) == now + hour, "the host is on hold"
    row = {"spider": "shop", "url": "x", "at": now, "content_type": "", "size": 0, "body": b""}
    db.pushes.insert_one(row)
    assert asyncio.run(earliest()) == now, "a push is due immediately"


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    config = Config.load(data_dir=tmp_path_factory.mktemp("d"), mongo_uri=None, mongo_cache_gb=0.25)
    made = EmbeddedServer.of(config)
    yield made
    made.stop()


def test_service_survives_kill_of_the_embedded_server(
    server: EmbeddedServer, tmp_path: Path, pages: Pages
) -> None:
    write(pages, "shop", items=2)
    env = {"FRESHET_MONGO_CACHE_GB": 0.25, "FRESHET_MONGO_TIMEOUT_SECONDS": 1}
    freshet = Freshet(tmp_path, FRESHET_DATA_DIR=server.folder, **env)
    with freshet, Service(freshet, wrapper(freshet, pages, "shop"), **SHORT):
        until(lambda: asked(pages).total() > 5)
        pid = server.pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        until(lambda: server.pid() not in (None, pid))
        before = asked(pages).total()
        until(lambda: asked(pages).total() > before + 5)
    client: pymongo.MongoClient[Row]
    with pymongo.MongoClient(server.start()) as client:
        check_request_log(client.get_default_database(), pages, "shop", items=2)


def test_without_names_refreshes_stored_sites(freshet: Freshet, database: Db, pages: Pages) -> None:
    """Sites with targets are refreshed; examples that were never crawled are not."""
    write(pages, "shop", items=2)
    file = wrapper(freshet, pages, "shop")
    freshet.crawl(file)
    file.unlink()
    with Service(freshet, "-L", "INFO", **SHORT) as service:
        until(lambda: outcomes(database)["new"] == 3)
        pages.item("/shop/item-0.html", "changed")
        database.targets.update_many({}, {"$set": {"next_visit": datetime(2020, 1, 1)}})
        until(lambda: outcomes(database, spider="shop")["changed"] == 1)
    assert service.of("shop")["changed"] == 1
    assert {row["name"] for row in service.done["spiders"]} == {"shop"}
    assert "was removed; using the site definition stored at" in service.err


def test_site_is_added_when_it_gets_targets(freshet: Freshet, database: Db, pages: Pages) -> None:
    write(pages, "shop", items=2)
    file = wrapper(freshet, pages, "shop")
    with Service(freshet, "-L", "INFO", FRESHET_REFRESH_SITES_SECONDS=0.2, **SHORT) as service:
        until(lambda: database.leases.find_one({"_id": "service"}))
        freshet.crawl(file)
        before = len(list(database.runs.find({"spider": "shop"})))
        database.targets.update_many({}, {"$set": {"next_visit": datetime(2020, 1, 1)}})
        until(lambda: database.runs.count_documents({"spider": "shop"}) > before)
    assert "Site shop added: it has targets now" in service.err


def test_accepts_the_name_of_a_stored_site(freshet: Freshet, database: Db, pages: Pages) -> None:
    write(pages, "shop", items=2)
    freshet.crawl(wrapper(freshet, pages, "shop"))
    done = freshet("refresh", "run", "shop", "--for", "0.02m", "--json")
    assert done.code == 0, done.err
    assert [row["name"] for row in json.loads(done.out)["spiders"]] == ["shop"]


@pytest.mark.parametrize("words", [["nosuch"], ["--spider", "site"]])
def test_unknown_names_are_one_line_errors(words: list[str], freshet: Freshet) -> None:
    done = freshet("refresh", "run", *words)
    message = f"site not found: {words[-1]!r}. Available: {NAMED}; or name a .toml file"
    assert (done.code, done.out, done.complaint) == (1, "", f"scrapy refresh: {message}")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["/nosuch.toml"], "/nosuch.toml: no such file"),
        (
            ["-L", "LOUD"],
            "LOG_LEVEL: 'LOUD' is not a log level. Choices: DEBUG, INFO, WARNING, ERROR, CRITICAL",
        ),
        (["--logfile", "/nosuch/x.log"], "LOG_FILE /nosuch/x.log: No such file or directory"),
        (["--for", "1y"], "--for: invalid duration: '1y'. Examples: 30s, 5m, 2h, 1d, 1w"),
        (["--slice", "0"], "--slice: invalid duration: '0'. Examples: 30s, 5m, 2h, 1d, 1w"),
        (
            ["--replan", "daily"],
            "--replan: invalid duration: 'daily'. Examples: 30s, 5m, 2h, 1d, 1w",
        ),
    ],
)
def test_invalid_options_are_one_line_errors(
    words: list[str], complaint: str, tmp_path: Path
) -> None:
    done = Freshet(tmp_path)("refresh", "run", *words)
    assert (done.code, done.out, done.complaint) == (1, "", f"scrapy refresh: {complaint}")


@pytest.mark.parametrize("words", [["run", "--fro", "1h"], ["runs"], []])
def test_invalid_usage_exits_with_2(words: list[str], tmp_path: Path) -> None:
    done = Freshet(tmp_path)("refresh", *words)
    assert done.code == 2
    assert "Traceback" not in done.err


def test_unreachable_database_is_a_one_line_error(tmp_path: Path) -> None:
    env = {"MONGO_URI": "mongodb://127.0.0.1:9/x", "FRESHET_MONGO_TIMEOUT_SECONDS": 0.3}
    done = Freshet(tmp_path, **env)("refresh", "run", "books")
    assert done.code == 1
    assert done.complaint.startswith("scrapy refresh: ")
