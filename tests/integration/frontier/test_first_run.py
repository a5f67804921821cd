"""The first crawl run of the demo shop and blog, compared with the world that generated them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.conftest import Databases
from tests.integration.demo import demo_wrapper, list_paths
from tests.integration.harness import Db, Freshet, Pages, Row, asked, target, urls
from tests.site.running import RunningSite
from tests.site.world import START, World

WORLD = World()
LIVE = set(WORLD.paths(START))
LISTS = list_paths(WORLD, START)


@dataclass(frozen=True)
class FirstRun:
    """The results of the run: the database, the site's log, the exported items."""

    db: Db
    site: RunningSite
    requests: list[Row] = field(repr=False)
    exported: list[Row] = field(repr=False)
    log: str = field(repr=False)

    def url(self, path: str) -> str:
        """Return the URL of a path of the site."""
        return self.site.url + path


@pytest.fixture(scope="module")
def done(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FirstRun]:
    """Crawl once for all tests of this file, which only read the results."""
    folder = tmp_path_factory.mktemp("first")
    with databases() as (db, uri), RunningSite() as site:
        freshet = Freshet(
            folder,
            MONGO_URI=uri,
            FRESHET_DATA_DIR=folder / "data",
            FRESHET_DUPLICATES="characters",
        )
        out = folder / "items.jsonl"
        result = freshet.crawl(demo_wrapper(freshet, site), "-O", out)
        yield FirstRun(db, site, site.requests(), _lines(out), result.err)


def _lines(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_item_and_post_of_the_site_is_found(done: FirstRun) -> None:
    assert urls(done.db.posts.find()) == {done.url(path) for path in LIVE}


def test_each_item_and_list_and_no_other_page_is_fetched_once(done: FirstRun) -> None:
    assert asked(done.site) == Counter(dict.fromkeys(LIVE | LISTS, 1))


def test_about_cart_and_login_are_never_fetched(done: FirstRun) -> None:
    assert not {"/about/", "/cart/", "/login/"} & set(asked(done.site))


def test_campaign_parameters_add_no_targets(done: FirstRun) -> None:
    assert not done.db.targets.count_documents({"url": {"$regex": "utm_"}})
    assert urls(done.db.targets.find()) == {done.url(path) for path in LIVE | LISTS}


def test_items_have_the_categories_of_the_lists_that_show_them(done: FirstRun) -> None:
    expected = {item.path: sorted(item.categories) for item in WORLD.items if item.live(START)}
    expected |= {post.path: sorted(post.tags) for post in WORLD.posts if post.published <= START}
    targets = done.db.targets.find({"kind": "item"})
    assert {
        t["url"].removeprefix(done.site.url): sorted(t["categories"]) for t in targets
    } == expected


def test_stored_fields_match_the_page(done: FirstRun) -> None:
    item = next(item for item in WORLD.items if item.live(START) and item.offer(START).stock)
    (post,) = done.db.posts.find({"url": done.url(item.path)})
    assert post["fields"]["title"] == post["title"] == item.title
    assert post["fields"]["price"] == {"amount": item.offer(START).pence / 100, "currency": "£"}
    assert post["fields"]["stock"] == item.offer(START).stock
    assert post["fields"]["added"] == datetime.combine(item.appears, datetime.min.time(), UTC)


def test_export_contains_exactly_the_new_items(done: FirstRun) -> None:
    assert urls(done.exported) == {done.url(path) for path in LIVE}
    assert {row["outcome"] for row in done.exported} == {"new"}
    titles = {post["url"]: post["fields"]["title"] for post in done.db.posts.find()}
    assert {row["url"]: row["title"] for row in done.exported} == titles


def test_exported_categories_belong_to_their_items(done: FirstRun) -> None:
    named = {item.path: set(item.categories) for item in WORLD.items if item.live(START)}
    exported = {row["url"]: set(row["categories"]) for row in done.exported}
    assert all(exported[done.url(path)] <= categories for path, categories in named.items())


def test_stored_items_have_categories_of_all_lists(
    done: FirstRun,
) -> None:
    of_targets = {t["url"]: sorted(t["categories"]) for t in done.db.targets.find({"kind": "item"})}
    of_posts = {post["url"]: sorted(post["categories"]) for post in done.db.posts.find()}
    assert of_posts == of_targets


def test_the_change_log_has_one_new_visit_of_each_page(done: FirstRun) -> None:
    visits = list(done.db.visits.find())
    assert urls(visits, "target") == {done.url(path) for path in LIVE | LISTS}
    assert {(v["outcome"], v["status"], v["changed"]) for v in visits} == {("new", 200, 0)}
    assert {(v["update_size"], v["diff_size"]) for v in visits} == {(0, 0)}


def test_get_size_equals_bytes_sent_by_server(done: FirstRun) -> None:
    sent = {done.url(r["path"]): r["bytes"] for r in done.requests if r["path"] != "/robots.txt"}
    assert {v["target"]: v["get_size"] for v in done.db.visits.find()} == sent


def test_each_target_stores_its_last_visit(done: FirstRun) -> None:
    for visit in done.db.visits.find():
        row = target(done.db, visit["target"])
        assert row["last_visit"]["_id"] == visit["_id"]
        assert row["visited_at"] == visit["at"] < row["next_visit"]
        assert (row["requested"], row["refreshed"]) == (1, 1)
        assert row["content_hash"] == visit["content_hash"]


def test_each_page_has_one_version_and_each_item_one_post(done: FirstRun) -> None:
    versions = {v["target"]: v["content_hash"] for v in done.db.versions.find()}
    assert versions == {v["target"]: v["content_hash"] for v in done.db.visits.find()}
    assert done.db.versions.count_documents({}) == len(versions)
    assert all(post["content_hash"] == versions[post["url"]] for post in done.db.posts.find())


def test_counts_of_run_match_visits(done: FirstRun) -> None:
    (run,) = done.db.runs.find()
    pages = len(LIVE | LISTS)
    assert (run["spider"], run["reason"]) == ("mill", "finished")
    assert run["started"] <= run["finished"]
    counts = run["counts"]
    assert counts["visits"] == counts["new"] == pages
    assert (counts["item_pages"], counts["list_pages"]) == (len(LIVE), len(LISTS))
    assert counts["discovered"] == pages - 1, "all but the start URL"
    assert counts["bytes"] == sum(visit["get_size"] for visit in done.db.visits.find())


def test_summary_is_one_log_line(done: FirstRun) -> None:
    pages = len(LIVE | LISTS)
    assert f"mill: {pages} visited: {pages} new, 0 changed" in done.log


def test_the_category_map_has_an_edge_for_every_link_of_a_list(done: FirstRun) -> None:
    edges = {(edge["list"], edge["item"]) for edge in done.db.listings.find({"shown": True})}
    assert {item for _, item in edges} == {done.url(path) for path in LIVE}
    live = [item for item in WORLD.items if item.live(START)]
    kitchen = {item for page, item in edges if page.startswith(done.url("/shop/kitchen/"))}
    assert kitchen == {done.url(i.path) for i in live if "kitchen" in i.categories}


def test_targets_skipped_by_limit_do_not_count_as_saved(freshet: Freshet, pages: Pages) -> None:
    names = [f"/item-{n}.html" for n in range(4)]
    pages.list("list.html", names)
    for name in names:
        pages.item(name, "A title")
    keys = {"start_urls": [f"{pages.url}/list.html"], "item_pages": "/item-", "robots": False}
    wrapper = freshet.wrapper("shop", **keys)
    done = freshet.crawl(wrapper, "-a", "limit=3", "-s", "LOG_LEVEL=INFO")
    for figure in ("'freshet/targets': 5", "'freshet/due': 2", "'freshet/saved': 0"):
        assert figure in done.err
