"""Pages that attack the parser do not affect other pages, and the log records the cause."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from rapidfuzz.distance import Indel

from tests.conftest import Databases
from tests.integration.harness import Db, Freshet, Pages, Row, visits
from tests.site.hostile_pages import BROKEN, ENDLESS, FINE, HEAD, PARAGRAPH

MEGABYTES = 64
# A spider that logs the longest time for which its event loop was blocked.
TICKING = """
import asyncio, time
from spiders.wrapper import WrapperSpider

class Ticking(WrapperSpider):
    name = "ticking"
    start_urls = ["{url}/list.html"]
    item_pages = "/item/"
    fields = {{"text": {{"css": "p"}}}}
    robots = False
    longest = 0.0

    async def start(self):
        self.ticks = asyncio.ensure_future(self.tick())
        async for request in super().start():
            yield request

    async def tick(self):
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.01)
            self.longest = max(self.longest, time.perf_counter() - began)

    def closed(self, reason):
        self.ticks.cancel()
        self.logger.warning("the loop stood still for %.3f s", self.longest)
"""
TOO_DEEP = "nested more than 2,000 deep"
# Expected error for each unreadable page.
REASONS = dict.fromkeys(BROKEN, TOO_DEEP) | {"memory": f"takes more than {MEGABYTES} MB of memory"}


@dataclass(frozen=True)
class Crawled:
    """Hold the results of a run over some pages."""

    db: Db
    url: str
    log: str

    def visit(self, name: str) -> Row:
        """Return the only visit of a page."""
        (row,) = visits(self.db, target=f"{self.url}/item/{name}.html")
        return row


@contextmanager
def crawled(
    databases: Databases, folder: Path, bodies: Mapping[str, str], main_text: bool, **env: object
) -> Iterator[Crawled]:
    """Run a crawl of pages with these bodies."""
    with databases() as (db, uri), Pages() as pages, Freshet(folder, MONGO_URI=uri) as freshet:
        for name, body in bodies.items():
            pages.file(f"/item/{name}.html", HEAD + body)
        pages.list("/list.html", [f"/item/{name}.html" for name in bodies])
        wrapper = freshet.wrapper(
            "hostile", start_urls=[f"{pages.url}/list.html"], item_pages="/item/",
            main_text=main_text,
            fields={"heading": "h1", "all": {"css": "div.x p", "type": "list"}, "text": "body"},
        )  # fmt: skip
        result = freshet.crawl(wrapper, FRESHET_DATA_DIR=folder / "data", **env)
        yield Crawled(db, pages.url, result.err)


@pytest.fixture(scope="module")
def odd(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crawled]:
    bodies = FINE | BROKEN
    folder, env = tmp_path_factory.mktemp("odd"), {"FRESHET_READ_MB": MEGABYTES}
    with crawled(databases, folder, bodies, main_text=True, **env) as made:
        yield made


@pytest.mark.parametrize("name", BROKEN)
def test_harmful_page_is_an_error_with_reason(odd: Crawled, name: str) -> None:
    visit = odd.visit(name)
    assert (visit["outcome"], visit["reason"]) == ("error", REASONS[name])


@pytest.mark.parametrize("name", FINE)
def test_odd_but_harmless_page_is_read(odd: Crawled, name: str) -> None:
    assert odd.visit(name)["outcome"] == "new", odd.visit(name).get("reason")
    (post,) = odd.db.posts.find({"url": f"{odd.url}/item/{name}.html"})
    assert post["fields"]["heading"] == "Heading"


def test_harmful_pages_do_not_affect_other_pages(odd: Crawled) -> None:
    targets = odd.db.targets.count_documents({})
    assert odd.db.visits.count_documents({}) == targets == 1 + len(BROKEN) + len(FINE)
    assert odd.db.runs.count_documents({"reason": "finished"}) == 1
    assert "Traceback" not in odd.log


@pytest.mark.soak
def test_page_that_takes_too_long_to_read_is_an_error(databases: Databases, tmp_path: Path) -> None:
    bodies = ENDLESS | {"plain": PARAGRAPH}
    env = {"FRESHET_READ_SECONDS": 1}
    with crawled(databases, tmp_path, bodies, main_text=False, **env) as made:
        reasons = {name: made.visit(name).get("reason") for name in bodies}
    too_long = "takes longer than 1 s of processor time"
    assert reasons == dict.fromkeys(ENDLESS, too_long) | {"plain": None}


def test_links_that_attack_patterns_affect_no_page(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    """Bound matches that would backtrack for minutes, in a crawl and in a plan."""
    endless = r"(\w+/?)+/none$|((a{0,7}){0,7}){0,7}x$|.*-.*-.*-.*-.*\.none$"
    traps = [f"/trap/{'a' * 1900}!", f"/trap/{'-a' * 900}", f"/trap/{'a/' * 900}!"]
    pages.list("/list.html", [*traps, "/item/1.html"])
    pages.item("/item/1.html", "One")
    wrapper = freshet.wrapper(
        "trapped", start_urls=[f"{pages.url}/list.html"], list_pages=endless,
        item_pages=["/item/", rf"/trap/.*({endless})"], not_item_pages=endless,
        category={"pattern": endless},
        fields={"title": "h1", "made": {"xpath": r"//p[re:test(., '^(\w+\s?)+$')]"}},
        weights={json.dumps(endless): 3, '"/item/"': 2},
    )  # fmt: skip
    pages.file("/item/1.html", f"{HEAD}<h1>One</h1><p>{'a' * 20_000}!</p><p>word</p>")
    freshet.crawl(wrapper, FRESHET_READ_SECONDS=5)
    reasons = {v["target"].removeprefix(pages.url): v.get("reason") for v in visits(database)}
    assert reasons == dict.fromkeys(("/list.html", "/item/1.html"))
    (post,) = database.posts.find()
    assert post["fields"]["made"] == "word"
    # URLs that a site listed once are matched again in each plan.
    row = database.targets.find_one({"kind": "item"})
    assert row is not None
    longer = [row | {"_id": f"trapped {pages.url}{x}", "url": f"{pages.url}{x}"} for x in traps]
    database.targets.insert_many(longer)
    assert freshet("replan").code == 0
    assert database.targets.count_documents({"plan": {"$exists": True}}) == 5


@pytest.mark.soak
def test_large_change_is_measured_without_blocking_event_loop(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    """Keep the event loop running while the library compares 180,000 characters."""
    numbers = random.Random(1)
    before, after = ("".join(numbers.choices("abcdefgh", k=180_000)) for _ in range(2))
    began = time.perf_counter()
    size = Indel.distance(before, after)
    compared_seconds = time.perf_counter() - began
    pages.list("/list.html", ["/item/1.html"])
    code = TICKING.format(url=pages.url)
    for hours, text in enumerate((before, after)):
        pages.file("/item/1.html", f"{HEAD}<p>{text}</p>")
        result = freshet.crawl_spider(
            code, "ticking", FRESHET_CLOCK_OFFSET_HOURS=100 * hours, FRESHET_LOG_LEVEL="INFO"
        )
    (visit,) = visits(database, outcome="changed")
    assert visit["diff_size"] == size
    (longest,) = re.findall(r"the loop stood still for ([\d.]+) s", result.err)
    assert float(longest) < compared_seconds / 2
