"""Misbehaving pages do not affect other pages, and the change log records the cause."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.conftest import Databases
from tests.integration.harness import Db, Freshet, Row, asked, outcomes, target, visits
from tests.site.edge_text import LATIN, TEXTS
from tests.site.running import RunningSite

FIELDS = {
    "title": "h1",
    "price": {"css": "p.price", "type": "price"},
    "stock": {"css": "p.stock", "type": "number"},
    "description": "div.description",
}
LIMITS = {
    "FRESHET_RESPONSE_SECONDS": 2,
    "FRESHET_RESPONSE_MB": 1,
    "FRESHET_BLOCKED_FAILURES": 100,  # so that blocked pages do not block the others
}
SPIDER = """
from spiders.wrapper import WrapperSpider

class Picky(WrapperSpider):
    name = "picky"
    start_urls = ["{url}/big/10/list/1/"]
    item_pages = "/big/10/item/"
    custom_settings = {{"AUTOTHROTTLE_ENABLED": False}}

    def read_item(self, response):
        if "/7.html" in response.url:
            raise KeyError("no such thing\\nas seven")
        return {{"title": response.css("h1::text").get()}}
"""


def edge_wrapper(freshet: Freshet, site: RunningSite, items: str, **keys: object) -> Path:
    """Define a site of the edge pages whose names match `items`."""
    given: dict[str, object] = {"start_urls": [f"{site.url}/edge/"], "fields": FIELDS}
    return freshet.wrapper("edge", **given, item_pages=rf"/edge/item/({items})$", **keys)


@dataclass(frozen=True)
class Edges:
    """Hold the results of a run over all edge pages except those that are always busy."""

    db: Db
    site: RunningSite
    requests: list[Row] = field(repr=False)
    log: str = field(repr=False)
    seconds: float = 0

    def visit(self, name: str) -> Row:
        """Return the only visit of a page."""
        (row,) = visits(self.db, target=f"{self.site.url}/edge/item/{name}")
        return row

    def fields(self, name: str) -> Row:
        """Return the stored fields of a page."""
        (post,) = self.db.posts.find({"url": f"{self.site.url}/edge/item/{name}"})
        return dict(post["fields"])

    def times(self, name: str) -> list[float]:
        """Return the times at which the page was requested."""
        return [r["at"] for r in self.requests if r["path"] == f"/edge/item/{name}"]


@pytest.fixture(scope="module")
def edges(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edges]:
    """Run the crawl once for all read-only tests of this module."""
    folder = tmp_path_factory.mktemp("edges")
    with databases() as (db, uri), RunningSite() as site:
        freshet = Freshet(folder, MONGO_URI=uri, FRESHET_DATA_DIR=folder / "data")
        before = time.monotonic()
        others = "/item/(always-429|gone-after|pdf)"
        wrapper = edge_wrapper(freshet, site, ".*", not_item_pages=others, robots=False)
        result = freshet.crawl(wrapper, **LIMITS)
        seconds = time.monotonic() - before
        yield Edges(db, site, site.requests(), result.err, seconds)


FINE = [
    "plain", "etag-less", "headers-flood", "flaky", "retry-after/2", "retry-after-date",
    *TEXTS, *(f"{name}-undeclared" for name in TEXTS),
]  # fmt: skip
BROKEN = {
    "empty": "empty page",
    "binary": "not a text page",
    "truncated": "ResponseDataLossError",
    "chunked-truncated": "ResponseDataLossError",
    "huge": "1048576",
    "slow": "Timeout",
    "status/500": "status 500",
    "status/503": "status 503",
    "redirect-loop": "max redirections reached",
    "redirect-offsite": "offsite.invalid",
    "no-fields": "none of the fields found: title, price, stock, description",
    "close": "DownloadFailedError",
}


@pytest.mark.parametrize("name", FINE)
def test_readable_page_is_new(edges: Edges, name: str) -> None:
    assert edges.visit(name)["outcome"] == "new"
    assert edges.visit(name)["status"] == 200


@pytest.mark.parametrize("name", BROKEN)
def test_unreadable_page_is_an_error_with_reason(edges: Edges, name: str) -> None:
    visit = edges.visit(name)
    assert visit["outcome"] == "error"
    assert BROKEN[name] in visit["reason"]
    assert "\n" not in visit["reason"]
    assert edges.db.posts.count_documents({"url": visit["target"]}) == 0


def test_status_403_is_blocked(edges: Edges) -> None:
    visit = edges.visit("status/403")
    assert (visit["outcome"], visit["status"], visit["reason"]) == ("blocked", 403, "status 403")


@pytest.mark.parametrize("status", [404, 410])
def test_a_missing_page_is_gone(edges: Edges, status: int) -> None:
    visit = edges.visit(f"status/{status}")
    assert (visit["outcome"], visit["status"]) == ("gone", status)


@pytest.mark.parametrize("code", [301, 302])
def test_redirect_to_another_item_is_an_alias(edges: Edges, code: int) -> None:
    plain = f"{edges.site.url}/edge/item/plain"
    alias = target(edges.db, f"{edges.site.url}/edge/item/redirect/{code}/edge/item/plain")
    assert alias["alias_of"] == plain
    assert edges.visit(f"redirect/{code}/edge/item/plain")["reason"] == f"redirects to {plain}"
    assert edges.db.posts.count_documents({"url": alias["url"]}) == 0


@pytest.mark.parametrize("suffix", ["", "-undeclared"])
@pytest.mark.parametrize("name", TEXTS)
def test_legacy_encodings_are_decoded(edges: Edges, name: str, suffix: str) -> None:
    fields = edges.fields(name + suffix)
    assert fields["title"] == TEXTS[name].title
    assert fields["description"] == " ".join(TEXTS[name].paragraphs)


def test_many_headers_do_not_prevent_reading(edges: Edges) -> None:
    assert edges.fields("headers-flood")["description"] == " ".join(LATIN.paragraphs)


def test_download_of_huge_page_is_aborted(edges: Edges) -> None:
    sent = [r for r in edges.requests if r["path"] == "/edge/item/huge"]
    assert all(request["bytes"] < 20_000_000 for request in sent)
    assert edges.visit("huge")["get_size"] == 0


def test_flaky_page_is_retried_twice(edges: Edges) -> None:
    statuses = [r["status"] for r in edges.requests if r["path"] == "/edge/item/flaky"]
    assert statuses == [503, 503, 200]


@pytest.mark.parametrize("name", ["retry-after/2", "retry-after-date"])
def test_retry_after_delays_retry(edges: Edges, name: str) -> None:
    first, second = edges.times(name)
    min_wait = 2 if name == "retry-after/2" else 1  # a date has no fractions of a second
    assert second - first >= min_wait


def test_blocked_pages_wait_longer_for_retry_than_errors(
    edges: Edges,
) -> None:
    for name, seconds in (("empty", 0.001), ("status/403", 3600), ("status/500", 0.001)):
        row = target(edges.db, f"{edges.site.url}/edge/item/{name}")
        assert row["consecutive_errors"] == 1
        assert (row["next_visit"] - row["visited_at"]).total_seconds() == seconds


def test_each_page_has_one_visit_and_run_ends_in_time(edges: Edges) -> None:
    targets = edges.db.targets.count_documents({})
    assert edges.db.visits.count_documents({}) == targets
    assert edges.db.targets.count_documents({"requested": 1}) == targets
    assert edges.seconds < 30


def test_broken_pages_log_no_tracebacks(edges: Edges) -> None:
    assert "Traceback" not in edges.log


def test_a_site_that_is_down_is_an_error_without_a_traceback(
    freshet: Freshet, database: Db
) -> None:
    down = freshet.wrapper("down", start_urls=["http://127.0.0.1:1/"], item_pages="/item/")
    result = freshet.crawl(down, code=1)
    (visit,) = visits(database)
    assert visit["outcome"] == "error"
    assert "refused" in visit["reason"]
    assert "Traceback" not in result.err


def test_pdf_is_not_stored_as_text(freshet: Freshet, database: Db, site: RunningSite) -> None:
    wrapper = freshet.wrapper("pdf", start_urls=[f"{site.url}/edge/"], item_pages="/pdf$")
    freshet.crawl(wrapper, code=1)
    (visit,) = visits(database, target=f"{site.url}/edge/item/pdf")
    assert (visit["outcome"], visit["reason"]) == ("error", "not a text page: application/pdf")


def test_pages_that_always_return_429_are_blocked(
    freshet: Freshet, database: Db, site: RunningSite
) -> None:
    freshet.crawl(edge_wrapper(freshet, site, "always-429"), code=1)
    (visit,) = visits(database, outcome="blocked")
    assert visit["target"].endswith("/always-429")
    assert visit["reason"] == "status 429"
    assert asked(site)["/edge/item/always-429"] <= 4


def test_host_that_blocks_repeatedly_is_skipped_for_an_hour(
    freshet: Freshet, database: Db, site: RunningSite
) -> None:
    links = "".join(f"{site.url}/edge/item/status/403?{n} " for n in range(30))
    words = ("-a", "name=refused", "-a", f"start_urls={links}", "-a", "item_pages=/none/")
    freshet("crawl", "site", *words, FRESHET_BLOCKED_FAILURES=2)
    first = len(asked(site))
    assert first < 30
    (held,) = database.hosts.find()
    assert held["_id"] == "127.0.0.1"

    site.clear_log()
    freshet("crawl", "site", *words, hours=0.5)
    assert not asked(site), "the host is still skipped"
    freshet("crawl", "site", *words, hours=1.1)
    assert asked(site)


def test_consecutive_errors_double_the_wait(
    freshet: Freshet, database: Db, site: RunningSite
) -> None:
    wrapper = edge_wrapper(freshet, site, "empty")
    waits = []
    for hours in (0, 0, 0, 1.1, 3.2):
        freshet.crawl(wrapper, hours=hours, code=1)
        row = target(database, f"{site.url}/edge/item/empty")
        waits.append((row["next_visit"] - row["visited_at"]).total_seconds() / 3600)
    assert [round(wait, 3) for wait in waits] == [0, 0, 1, 2, 4]


def test_page_is_not_new_after_an_error(freshet: Freshet, database: Db, site: RunningSite) -> None:
    freshet.crawl(edge_wrapper(freshet, site, "plain"))
    unreachable = edge_wrapper(freshet, site, "plain", proxy="http://127.0.0.1:1")
    freshet.crawl(unreachable, hours=25, code=1)
    freshet.crawl(edge_wrapper(freshet, site, "plain"), hours=27)
    url = f"{site.url}/edge/item/plain"
    assert [v["outcome"] for v in visits(database, target=url)] == ["new", "error", "not_modified"]
    assert target(database, url)["consecutive_errors"] == 0


def test_failing_read_item_affects_only_its_page(
    freshet: Freshet, database: Db, site: RunningSite
) -> None:
    freshet.crawl_spider(SPIDER.format(url=site.url), "picky")
    assert outcomes(database) == {"new": 10, "error": 1}
    (visit,) = visits(database, outcome="error")
    assert visit["target"].endswith("/7.html")
    assert visit["reason"] == "KeyError: 'no such thing\\nas seven'"
    assert database.posts.count_documents({}) == 9


def test_unstorable_item_affects_only_its_page(
    freshet: Freshet, database: Db, site: RunningSite
) -> None:
    spider = SPIDER.replace(
        'raise KeyError("no such thing\\nas seven")', 'return {{"title": {{1, 2}}}}'
    )
    result = freshet.crawl_spider(spider.format(url=site.url), "picky")
    assert outcomes(database) == {"new": 10, "error": 1}
    (visit,) = visits(database, outcome="error")
    assert "cannot be stored" in visit["reason"]
    assert "11 visited: 10 new" in result.err
