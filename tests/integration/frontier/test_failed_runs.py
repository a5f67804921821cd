"""Failed runs: exit code 1, one line in the log, `failed` in `runs`."""

from __future__ import annotations

import re

import pytest

from tests.integration.harness import Db, Freshet, Pages, Result, outcomes
from tests.integration.storage.test_refused_writes import refuse

DUPLICATES = "characters"
pytestmark = pytest.mark.soak
ITEMS = 12
HEAD = """
from scrapy import Request, signals
from spiders.wrapper import WrapperSpider
from crawler.frontier.session import Session

class Shop(WrapperSpider):
    name = "shop"
    start_urls = ["{url}/list.html"]
    item_pages = r"/item-\\d+\\.html$"
    throttle = False
    concurrency = 16
"""
# By the failing part: code, expected message, and whether the run still does all its work.
SPIDERS: dict[str, tuple[str, str, bool]] = {
    "start": (
        """
    async def start(self):
        raise LookupError("no start")
        yield
""",
        "Error while reading start items and requests: LookupError: no start",
        False,
    ),
    "start, later": (
        """
    async def start(self):
        async for request in super().start():
            yield request
        raise LookupError("late in start")
""",
        "Error while reading start items and requests: LookupError: late in start",
        True,
    ),
    "request": (
        """
    def request(self, target):
        if "item-7" in target.url:
            raise LookupError("no request")
        return super().request(target)
""",
        "the run failed: LookupError: no request",
        False,
    ),
    "callback of a page": (
        """
    def parse_target(self, response):
        if "item-7" in response.url:
            raise LookupError("no item")
        return super().parse_target(response)
""",
        "item-7.html: LookupError: no item",
        False,
    ),
    "custom callback": (
        """
    async def start(self):
        yield Request("{url}/item-3.html", self.own, dont_filter=True)
        async for request in super().start():
            yield request

    def own(self, response):
        raise LookupError("own")
""",
        "the run failed: the spider raised LookupError",
        True,
    ),
    "pipeline": (
        """
    custom_settings = {"ITEM_PIPELINES": {"MODULE.Pipeline": 50}}

class Pipeline:
    def process_item(self, item):
        if "item-7" in item.target.url:
            raise LookupError("no pipeline")
        return item
""",
        "item-7.html: LookupError: no pipeline",
        False,
    ),
    "pipeline's opening": (
        """
    custom_settings = {"ITEM_PIPELINES": {"MODULE.Pipeline": 50}}

class Pipeline:
    def open_spider(self):
        raise LookupError("no opening")

    def process_item(self, item):
        return item
""",
        "",
        False,
    ),
    "pipeline's closing": (
        """
    custom_settings = {"ITEM_PIPELINES": {"MODULE.Pipeline": 50}}

class Pipeline:
    def close_spider(self):
        raise LookupError("no closing")

    def process_item(self, item):
        return item
""",
        "the run failed: Scraper close failure: LookupError: no closing",
        True,
    ),
    "writer": (
        """
    custom_settings = {"EXTENSIONS": {"MODULE.Extension": 60}}

def no_writer(batch, seconds):
    raise LookupError("no writer")

class Extension:
    @classmethod
    def from_crawler(cls, crawler):
        self = cls()
        self.crawler = crawler
        crawler.signals.connect(self.begin, signals.engine_started)
        return self

    def begin(self):
        Session.of(self.crawler).writer.on_stored = no_writer
""",
        "LookupError: no writer",
        False,
    ),
    "an extension": (
        """
    custom_settings = {"EXTENSIONS": {"MODULE.Extension": 60}}

class Extension:
    @classmethod
    def from_crawler(cls, crawler):
        self = cls()
        crawler.signals.connect(self.begin, signals.spider_opened)
        return self

    def begin(self, spider):
        raise LookupError("no extension")
""",
        "LookupError: no extension",
        True,
    ),
}


@pytest.fixture
def site(pages: Pages) -> Pages:
    pages.list("list.html", [f"item-{i}.html" for i in range(ITEMS)])
    for i in range(ITEMS):
        pages.item(f"item-{i}.html", f"Item {i}")
    return pages


def crawl(
    freshet: Freshet, site: Pages, more: str, *args: object, hours: float = 0, **env: object
) -> Result:
    """Run a spider with a fault."""
    module = "shops" if not more else f"shops{abs(hash(more))}"
    code = (HEAD + more).replace("{url}", site.url).replace("MODULE", module)
    (freshet.folder / f"{module}.py").write_text(code, encoding="utf-8")
    words = ("crawl", "shop", "-s", f"SPIDER_MODULES={module}", *args)
    return freshet(*words, hours=hours, PYTHONPATH=str(freshet.folder), **env)


def assert_failed(result: Result, db: Db, message: str) -> None:
    assert result.code == 1, result.err
    lines = [line for line in result.err.splitlines() if "[crawler.frontier.run] ERROR" in line]
    assert len(lines) == 1, result.err
    assert message in lines[0], result.err
    run = db.runs.find_one(sort=[("started", -1)])
    assert run is not None
    assert run["reason"] == "failed"
    assert message in run["error"]


def assert_next_run_succeeds(freshet: Freshet, site: Pages, db: Db, **env: object) -> None:
    """Check that the next run does the remaining work and succeeds."""
    good = crawl(freshet, site, "", "-a", "full=1", hours=1, **env)
    assert good.code == 0, good.err
    run = db.runs.find_one(sort=[("started", -1)])
    assert run is not None
    assert (run["reason"], "error" in run) == ("finished", False)
    assert db.runs.count_documents({"finished": None}) == 0
    assert db.runs.count_documents({"reason": "failed"}) == 1
    assert db.posts.count_documents({}) == ITEMS


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("fault", SPIDERS)
def test_exception_in_custom_code_fails_the_run(
    fault: str, workers: int, freshet: Freshet, database: Db, site: Pages,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    code, message, is_done = SPIDERS[fault]
    env = {"REDIS_URL": request.getfixturevalue("redis")} if workers > 1 else {}
    result = crawl(freshet, site, code, **env)
    if not message:
        # Scrapy itself reports the error before the run begins.
        assert result.code == 1
        assert "no opening" in result.err
        return
    assert_failed(result, database, message)
    if is_done:
        assert outcomes(database)["new"] == ITEMS + 1
    assert_next_run_succeeds(freshet, site, database, **env)


@pytest.mark.parametrize("collection", ["runs", "sites", "meta"])
def test_rejected_database_write_fails_the_run(
    collection: str, freshet: Freshet, database: Db, site: Pages
) -> None:
    """These collections belong to the run, not to a single page."""
    # A text that is long enough to be compared with other posts.
    site.item("item-0.html", "A kettle of polished copper that holds two liters and whistles")
    assert crawl(freshet, site, "").code == 0
    site.item("item-0.html", "Item 0 changed")
    if collection == "meta":
        # A document whose required fields are missing.
        database.meta.update_one({"_id": "duplicates"}, {"$unset": {"scheme": ""}})
    elif collection == "sites":
        database.sites.delete_many({})
        refuse(database, "sites", never=True)
    else:
        # The run can begin but cannot end.
        refuse(database, "runs", finished=None)
    failed = crawl(freshet, site, "", "-a", "full=1", hours=1)
    assert failed.code == 1, failed.err
    assert sum("[crawler.frontier.run] ERROR" in line for line in failed.err.splitlines()) == 1


def test_a_full_disk_of_exported_items_is_one_line(
    freshet: Freshet, database: Db, site: Pages
) -> None:
    wrapper = freshet.wrapper("shop", start_urls=[f"{site.url}/list.html"], item_pages="/item-")
    result = freshet.crawl(wrapper, "-o", "/dev/full:jsonlines", "-L", "WARNING", code=1)
    assert result.complaint.endswith(
        "] ERROR: shop: the run ended early: items could not be exported: No space left on device. "
        "All items that were read are stored in MongoDB; scrapy export posts FOLDER writes them"
    )
    assert outcomes(database)["new"]


def test_an_unwritable_file_of_items_is_refused_before_the_run(
    freshet: Freshet, database: Db, site: Pages
) -> None:
    wrapper = freshet.wrapper("shop", start_urls=[f"{site.url}/list.html"], item_pages="/item-")
    (freshet.folder / "file").touch()
    for name, cause in (
        (f"{freshet.folder}/file/items.csv", "Not a directory. Name a file that you can write"),
        ("/proc/no/items.csv", "No such file or directory"),
        ("/proc:csv", "Is a directory"),
    ):
        result = freshet.crawl(wrapper, "-O", name, code=1)
        assert result.complaint.startswith(f"scrapy crawl: {name.removesuffix(':csv')}: {cause}")
    assert database.visits.count_documents({}) == 0
    file = freshet.folder / "new" / "items.jsonl"
    freshet.crawl(wrapper, "-o", file)
    assert len(file.read_text(encoding="utf-8").splitlines()) == ITEMS


def test_error_in_lease_loop_fails_the_run(
    freshet: Freshet, database: Db, site: Pages, redis: str
) -> None:
    broken = """
    def parse_target(self, response):
        import redis
        with redis.Redis.from_url("REDIS") as client:
            for key in client.keys("{freshet:%s:shop}:*" % "DATABASE"):
                client.set(key, "what stood here is gone")
        return super().parse_target(response)
""".replace("REDIS", redis).replace("DATABASE", database.name)
    result = crawl(freshet, site, broken, REDIS_URL=redis)
    assert result.code == 1, result.err
    lines = [line for line in result.err.splitlines() if "[crawler.frontier.run] ERROR" in line]
    assert len(lines) == 1, result.err
    assert re.search("WRONGTYPE|Redis", lines[0])


def test_traceback_is_logged_at_debug_level(freshet: Freshet, site: Pages) -> None:
    code = SPIDERS["request"][0]
    quiet = crawl(freshet, site, code)
    assert "Traceback" not in quiet.err
    verbose = crawl(freshet, site, code, "--loglevel", "DEBUG", hours=1)
    assert "Traceback" in verbose.err
