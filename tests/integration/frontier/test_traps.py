"""Endless sites: caps stop crawls of calendars, facets and growing paths."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from crawler.items import Kind
from crawler.storage.targets import new_document
from tests.integration.harness import Db, Freshet, Pages, outcomes, target, urls, visits

pytestmark = pytest.mark.soak

Links = Callable[[str], list[str]]
NAMESPACE = "http://www.sitemaps.org/schemas/sitemap/0.9"


class Endless(BaseHTTPRequestHandler):
    """A server where any path is a page with an ETag and links derived from the path."""

    links: Links
    asked: list[str]

    def do_GET(self) -> None:
        if self.path == "/robots.txt":
            self.send_error(404)
            return
        body = "".join(f'<p><a href="{x}">{x}</a></p>' for x in type(self).links(self.path))
        page = f"<h1>{self.path}</h1>{body}".encode()
        tag = f'"{hash(page)}"'
        is_known = self.headers.get("If-None-Match") == tag
        type(self).asked.append(self.path)
        self.send_response(304 if is_known else 200)
        self.send_header("ETag", tag)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(b"" if is_known else page)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def endless(links: Links) -> Iterator[tuple[str, list[str]]]:
    """Run an endless site; yield its URL and the requested paths."""
    asked: list[str] = []
    pages = type("Site", (Endless,), {"links": staticmethod(links), "asked": asked})
    with ThreadingHTTPServer(("127.0.0.1", 0), pages) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()


def calendar(path: str) -> list[str]:
    """Return links to the next month, forever, and to an event of each month."""
    month = int(path.strip("/").rpartition("/")[2] or 0)
    return [f"/calendar/{month + 1}/", f"/event/{month}"] if "event" not in path else []


def calendar_wrapper(freshet: Freshet, url: str, **keys: object) -> Path:
    given: dict[str, object] = {
        "start_urls": [f"{url}/"], "list_pages": "/calendar/", "item_pages": "/event/",
        "fields": {"title": "h1"},
    }  # fmt: skip
    return freshet.wrapper("agenda", **given | keys)


def lines_with(text: str, words: str) -> list[str]:
    """Return the lines of a log that contain a text."""
    return [line for line in text.splitlines() if words in line]


def test_depth_limit_ends_calendar_and_higher_limit_extends_it(
    freshet: Freshet, database: Db
) -> None:
    with endless(calendar) as (url, asked):
        result = freshet.crawl(calendar_wrapper(freshet, url, max_depth=3))
        found = {row["url"].removeprefix(url): row["depth"] for row in database.targets.find()}
        months = {"/": 0, "/calendar/1/": 1, "/calendar/2/": 2, "/calendar/3/": 3}
        assert found == months | {"/event/0": 1, "/event/1": 2, "/event/2": 3}
        assert urls(visits(database), "target") == {f"{url}{path}" for path in found}
        first = database.runs.find_one()
        asked.clear()
        freshet.crawl(calendar_wrapper(freshet, url), hours=30, FRESHET_MAX_DEPTH=3)
        assert len(asked) == 7, "nothing new under the same cap"
        assert outcomes(database, at={"$gt": last_begin(database)}) == {"not_modified": 7}
        freshet.crawl(calendar_wrapper(freshet, url, max_depth=6), hours=60)
    # By their texts: the second of their times may end between the two.
    left_out = lines_with(result.err, "left out, and others like it")
    of_lists, of_items = sorted(left_out, key=lambda line: "/event/" in line)
    assert f"{url}/calendar/4/ left out, and others like it: more than 3 pages away" in of_lists
    assert "max_depth in the site definition, or FRESHET_MAX_DEPTH" in of_lists
    assert f"{url}/event/3 left out" in of_items
    assert lines_with(result.err, "; 2 links skipped")
    assert first is not None
    assert first["counts"]["left_out"] == 2
    assert database.targets.count_documents({"kind": "list"}) == 7, (
        "even though no page has changed"
    )
    scheme = target(database, f"{url}/calendar/2/")["selector_digest"]
    assert target(database, f"{url}/calendar/3/")["selector_digest"] == scheme, (
        "all its links are stored now"
    )
    assert target(database, f"{url}/calendar/6/")["selector_digest"].startswith(f"{scheme}+")


def last_begin(db: Db) -> object:
    """Return the start of the last run."""
    return db.runs.find_one({}, sort=[("started", -1)])["started"]  # type: ignore[index]


def test_depth_is_shortest_path_through_lists_and_sitemaps(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    chain = [f"/list/{n}.html" for n in range(3)]
    pages.list(chain[0], [chain[1]])
    pages.list(chain[1], [chain[2]])
    pages.list(chain[2], ["/item/1.html"])
    pages.item("/item/1.html", "One")
    pages.item("/item/2.html", "Two")
    part = f"<sitemap><loc>{pages.url}/part.xml</loc></sitemap>"
    pages.file("/index.xml", f'<sitemapindex xmlns="{NAMESPACE}">{part}</sitemapindex>')
    entry = f"<url><loc>{pages.url}/item/2.html</loc></url>"
    pages.file("/part.xml", f'<urlset xmlns="{NAMESPACE}">{entry}</urlset>')
    starts = [f"{pages.url}{chain[0]}", f"{pages.url}/index.xml"]
    wrapper = freshet.wrapper(
        "chain", start_urls=starts, list_pages="/list/", item_pages="/item/", fields={"title": "h1"}
    )
    freshet.crawl(wrapper)
    depths = {row["url"].removeprefix(pages.url): row["depth"] for row in database.targets.find()}
    assert depths == {
        "/list/0.html": 0, "/list/1.html": 1, "/list/2.html": 2, "/item/1.html": 3,
        "/index.xml": 0, "/part.xml": 1, "/item/2.html": 2,
    }  # fmt: skip
    pages.list(chain[0], [chain[1], "/item/1.html"])
    freshet.crawl(wrapper, hours=7)
    assert target(database, f"{pages.url}/item/1.html")["depth"] == 1


def test_target_without_stored_depth_counts_as_depth_zero(freshet: Freshet, database: Db) -> None:
    now = datetime.now(UTC)
    with endless(calendar) as (url, _):
        old = new_document("agenda", f"{url}/calendar/50/", Kind.LIST, now, now)
        database.targets.insert_one(old)
        freshet.crawl(calendar_wrapper(freshet, url, max_depth=3), hours=1)
    found = {row["url"].removeprefix(url): row.get("depth") for row in database.targets.find()}
    assert (found["/calendar/50/"], found["/calendar/51/"], found["/calendar/53/"]) == (None, 1, 3)
    assert "/calendar/54/" not in found
    assert "/calendar/4/" not in found


def facets(path: str) -> list[str]:
    """Return links that add one facet to those of a page: no URL is deep or repeats itself."""
    chosen = [part for part in path.split("/")[2:] if part]
    more = [f"{name}{n}" for n in range(4) for name in "abcdefgh"]
    return [f"/shop/{'/'.join([*chosen, one])}/" for one in more if one not in chosen]


def test_limit_of_lists_per_pattern_ignores_deleted_targets(freshet: Freshet, database: Db) -> None:
    with endless(facets) as (url, asked):
        keys = {"start_urls": [f"{url}/shop/"], "list_pages": "/shop/"}
        wrapper = calendar_wrapper(freshet, url, **keys)
        result = freshet.crawl(wrapper, code=1, FRESHET_MAX_PATTERN_LISTS=15)
        assert len(asked) == 16
        gone = [row["_id"] for row in database.targets.find({"start": False}).limit(5)]
        database.targets.delete_many({"_id": {"$in": gone}})
        freshet.crawl(wrapper, hours=30, code=1, FRESHET_MAX_PATTERN_LISTS=16)
    (line,) = lines_with(result.err, "left out, and others like it")
    assert "already 15 list pages match '/shop/'" in line
    assert "max_pattern_lists in the site definition, or FRESHET_MAX_PATTERN_LISTS" in line
    assert database.targets.count_documents({"start": False}) == 16
    (site,) = database.sites.find()
    assert list(site["patterns"].values()) == [16]


def chained(path: str) -> list[str]:
    """Return links from items to other items, forever."""
    number = int(path.rpartition("/")[2] or 0)
    return [f"/event/{number * 3 + n}" for n in (1, 2, 3)]


def test_endless_links_between_items_are_limited(freshet: Freshet, database: Db) -> None:
    with endless(chained) as (url, asked):
        wrapper = calendar_wrapper(freshet, url, follow_item_links=True, max_pattern_items=20)
        result = freshet.crawl(wrapper)
    assert len(asked) == 21
    assert lines_with(result.err, "already 20 items match '/event/'")
    assert database.listings.count_documents({"item": {"$nin": items_of(database)}}) == 0, (
        "the category map contains only targets"
    )


def items_of(db: Db) -> list[str]:
    return [row["url"] for row in db.targets.find({"kind": "item"})]


def test_workers_share_limit_of_lists_per_pattern(
    freshet: Freshet, database: Db, redis: str
) -> None:
    with endless(facets) as (url, _):
        keys = {"start_urls": [f"{url}/shop/"], "list_pages": "/shop/", "max_pattern_lists": 40}
        wrapper = calendar_wrapper(freshet, url, **keys)
        words = ("crawl", "site", "-a", f"wrapper={wrapper}")
        crawls = [freshet.start(*words, REDIS_URL=redis) for _ in range(2)]
        codes = [crawl.communicate(timeout=60) and crawl.returncode for crawl in crawls]
        assert 1 in codes, "the worker that ends the run reports that no item was found"
    count = database.targets.count_documents({"start": False})
    assert 40 <= count <= 40 + 32, "the other worker adds at most one page of links"


# A list of five pages with ten items each. `shown` are the items of the pages after the last one.
PAGES, PAGE_ITEMS = 5, 10


def pager(shown: Callable[[int], Iterable[int]]) -> Links:
    """Return the links of a list whose every page links to a next one, also after the last page."""

    def links(path: str) -> list[str]:
        if "event" in path:
            return []
        if path == "/":
            return ["/calendar/1/"]
        page = int(path.strip("/").rpartition("/")[2])
        is_real = page <= PAGES
        items = range((page - 1) * PAGE_ITEMS, page * PAGE_ITEMS) if is_real else shown(page)
        return [f"/calendar/{page + 1}/", *(f"/event/{item}" for item in items)]

    return links


def nothing(page: int) -> Iterable[int]:
    return ()


def last_page(page: int) -> Iterable[int]:
    return range((PAGES - 1) * PAGE_ITEMS, PAGES * PAGE_ITEMS)


def shuffled(page: int) -> Iterable[int]:
    return random.sample(range(PAGES * PAGE_ITEMS), PAGE_ITEMS)


@pytest.mark.parametrize("shown", [nothing, last_page, shuffled])
def test_pages_after_the_end_of_a_list_are_limited_and_visited_rarely(
    freshet: Freshet, database: Db, shown: Callable[[int], Iterable[int]]
) -> None:
    with endless(pager(shown)) as (url, asked):
        wrapper = calendar_wrapper(freshet, url, max_redundant_lists=20)
        result = freshet.crawl(wrapper)
        assert len(items_of(database)) == PAGES * PAGE_ITEMS
        lists = [path for path in asked if "event" not in path]
        assert len(lists) == PAGES + 22
        asked.clear()
        for visit in range(1, 7):
            freshet.crawl(wrapper, hours=6.01 * visit)
        of_pages = Counter(asked)
    (line,) = lines_with(result.err, "left out, and others like it")
    assert f"{url}/calendar/{PAGES + 22}/ left out" in line
    assert "20 pages of a list in a row show no new item" in line
    assert "max_redundant_lists in the site definition, or FRESHET_MAX_REDUNDANT_LISTS" in line
    assert line.endswith("exclude such URLs with not_list_pages)")
    assert all(of_pages[f"/calendar/{page}/"] == 6 for page in range(1, PAGES + 1))
    late = [of_pages[f"/calendar/{page}/"] for page in range(PAGES + 5, PAGES + 22)]
    assert max(late) <= 2, "after 6 and 18 hours"
    assert len(items_of(database)) == PAGES * PAGE_ITEMS
    assert database.targets.count_documents({"kind": "list"}) == PAGES + 22


def test_new_item_after_redundant_pages_is_found_and_lists_after_it_are_followed(
    freshet: Freshet, database: Db
) -> None:
    extra: dict[int, list[int]] = {}
    with endless(pager(lambda page: extra.get(page, []))) as (url, _):
        wrapper = calendar_wrapper(freshet, url, max_redundant_lists=4)
        freshet.crawl(wrapper)
        assert database.targets.count_documents({"kind": "list"}) == PAGES + 6
        extra[PAGES + 5] = [1000]
        extra[PAGES + 6] = [1001]
        freshet.crawl(wrapper, "-a", "full=1", hours=1)
    assert {f"{url}/event/{item}" for item in (1000, 1001)} <= set(items_of(database))
    found = database.targets.count_documents({"kind": "list"})
    assert found == PAGES + 6 + 6, "four more after the new item, and the first of them"


@pytest.mark.parametrize("category", ["[a-z]+", "(?P<category>[a-z]+)"])
def test_list_is_followed_to_its_end_although_another_list_shows_its_items(
    freshet: Freshet, database: Db, category: str
) -> None:
    def links(path: str) -> list[str]:
        if "event" in path:
            return []
        name, _, page = path.removeprefix("/calendar/").strip("/").partition("/")
        if not page:
            return ["/calendar/all/1/", "/calendar/odd/1/"]
        number = int(page)
        pages = [f"/calendar/{name}/{number + 1}/"] if number < 8 else []
        own = [2 * number + 1] if name == "odd" else [2 * number, 2 * number + 1]
        # The last page of the second list has an item that no other page has.
        last = ["/event/100"] if name == "odd" and number == 8 else []
        return [*pages, *(f"/event/{item}" for item in own), *last]

    with endless(links) as (url, _):
        keys = {"list_pages": f"/calendar/{category}/", "max_redundant_lists": 1}
        result = freshet.crawl(calendar_wrapper(freshet, url, **keys))
    assert "left out" not in result.err
    assert f"{url}/event/100" in items_of(database)
    assert database.targets.count_documents({"kind": "list"}) == 17


@pytest.mark.parametrize("group", ["", "?P<category>"])
def test_months_without_events_are_limited_although_all_months_have_a_sidebar(
    freshet: Freshet, database: Db, group: str
) -> None:
    """Months 1 to 30 have an event each and all months a sidebar; months have no end."""
    months = 30

    def links(path: str) -> list[str]:
        if "event" in path:
            return []
        year, _, month = path.removeprefix("/calendar/").strip("/").partition("/")
        number = 12 * int(year) + int(month) if month else 0
        own = [f"/event/{number}"] if 0 < number <= months else []
        following = number + 1
        return [
            f"/calendar/{(following - 1) // 12}/{(following - 1) % 12 + 1:02}/",
            *own, *(f"/event/popular-{n}" for n in range(3)),
        ]  # fmt: skip

    with endless(links) as (url, _):
        keys = {"list_pages": rf"/calendar/({group}\d+/\d+)/", "max_redundant_lists": 5}
        result = freshet.crawl(calendar_wrapper(freshet, url, **keys, max_depth=100))
    (line,) = lines_with(result.err, "left out, and others like it")
    assert "5 pages of a list in a row show no new item" in line
    assert f"{url}/event/{months}" in items_of(database)
    assert database.targets.count_documents({"kind": "list"}) == 1 + months + 6


def test_last_pages_of_a_growing_list_are_not_redundant(freshet: Freshet, database: Db) -> None:
    newest = 4

    def links(path: str) -> list[str]:
        if "event" in path:
            return []
        page = int(path.partition("/calendar/")[2].strip("/") or 1)
        first = newest - 2 * (page - 1)
        more = [f"/calendar/{page + 1}/"] if first > 2 else []
        return [*more, *(f"/event/{item}" for item in (first, first - 1) if item > 0)]

    with endless(links) as (url, _):
        wrapper = calendar_wrapper(freshet, url, max_redundant_lists=1)
        freshet.crawl(wrapper)
        for newest in range(5, 11):
            result = freshet.crawl(wrapper, "-a", "full=1", hours=6 * newest)
            assert "left out" not in result.err
    assert database.targets.count_documents({"kind": "list"}) == 5
    assert len(items_of(database)) == 10
    assert database.targets.count_documents({"unlisted_at": {"$type": "date"}}) == 0


def test_indexes_of_lists_are_followed_although_they_show_no_items(
    freshet: Freshet, database: Db
) -> None:
    def links(path: str) -> list[str]:
        if "event" in path:
            return []
        if path.startswith("/calendar/of/"):
            return [f"/event/{path.strip('/').rpartition('/')[2]}"]
        page = int(path.partition("/calendar/")[2].strip("/") or 0)
        more = [f"/calendar/{page + 1}/"] if page < 6 else []
        return [*more, *(f"/calendar/of/{page}{name}/" for name in "abcdefghijkl")]

    with endless(links) as (url, _):
        result = freshet.crawl(calendar_wrapper(freshet, url, max_redundant_lists=2))
    assert "left out" not in result.err
    assert len(items_of(database)) == 7 * 12


def test_run_warns_about_lists_that_only_sort_and_filter_other_lists(
    freshet: Freshet, database: Db
) -> None:
    def links(path: str) -> list[str]:
        if "event" in path:
            return []
        chosen = path.partition("?")[2].split("&") if "?" in path else []
        items = [f"/event/{item}" for item in range(5)]
        more = [f"{name}=1" for name in "abcdef" if f"{name}=1" not in chosen]
        return [*items, *(f"/calendar/?{'&'.join(sorted([*chosen, name]))}" for name in more)]

    with endless(links) as (url, _):
        wrapper = calendar_wrapper(freshet, url)
        result = freshet.crawl(wrapper)
        again = freshet.crawl(wrapper, hours=7)
    (line,) = lines_with(result.err, "show only items that other list pages show as well")
    assert "63 new list pages show only" in line
    assert f"for example {url}/calendar/?" in line
    assert "exclude them with not_list_pages" in line
    assert "show only items" not in again.err
    assert database.runs.find_one({}, sort=[("started", 1)])["counts"]["copied_lists"] == 63  # type: ignore[index]
