"""Later runs skip targets that are not due, and log exactly the pages that changed."""

from __future__ import annotations

from datetime import timedelta

import pytest
from rapidfuzz.distance import Indel

from tests.conftest import SITE_ITEMS
from tests.integration.demo import shop_wrapper
from tests.integration.harness import Db, Freshet, Pages, asked, outcomes, urls, visits
from tests.site import big
from tests.site.running import RunningSite
from tests.site.world import START, World

pytestmark = pytest.mark.soak

BIG = {"list_pages": r"/big/\d+/list/", "item_pages": r"/big/\d+/item/", "fields": {
    "title": "h1", "price": "p.price", "stock": {"css": "p.stock", "type": "number"},
}}  # fmt: skip
ITEMS = 40


def pages_wrapper(freshet: Freshet, pages: Pages, **keys: object) -> object:
    given: dict[str, object] = {
        "start_urls": [f"{pages.url}/list.html"],
        "item_pages": r"/item-\w+\.html$",
        "fields": {"title": "h1"},
    }
    return freshet.wrapper("pages", **given | keys)


def test_immediate_second_run_fetches_nothing(
    freshet: Freshet, database: Db, site: RunningSite
) -> None:
    wrapper = shop_wrapper(freshet, site)
    freshet.crawl(wrapper)
    before = database.visits.count_documents({})
    site.clear_log()

    result = freshet.crawl(wrapper, "-O", freshet.folder / "second.jsonl")

    assert site.requests() == []
    assert database.visits.count_documents({}) == before
    assert (freshet.folder / "second.jsonl").read_text() == ""
    assert "shop: nothing visited: nothing was due" in result.err


def test_full_run_of_unchanged_site_gets_only_304(
    freshet: Freshet, database: Db, site: RunningSite
) -> None:
    wrapper = shop_wrapper(freshet, site)
    freshet.crawl(wrapper)
    pages = database.targets.count_documents({})
    site.clear_log()

    freshet.crawl(wrapper, "-a", "full=1")

    answers = [r for r in site.requests() if r["path"] != "/robots.txt"]
    assert {(r["status"], r["conditional"], r["bytes"]) for r in answers} == {(304, True, 0)}
    assert len(answers) == pages
    assert outcomes(database) == {"new": pages, "not_modified": pages}
    assert database.visits.count_documents({"changed": 1}) == 0
    assert database.versions.count_documents({}) == pages


def test_304_keeps_stored_state_of_page(freshet: Freshet, database: Db, pages: Pages) -> None:
    pages.list("list.html", [])
    wrapper = pages_wrapper(freshet, pages)
    freshet.crawl(wrapper, code=1)
    (first,) = database.targets.find()
    freshet.crawl(wrapper, hours=7, code=1)
    (second,) = database.targets.find()
    kept = (
        "content_hash",
        "raw_hash",
        "size",
        "etag",
        "selector_digest",
        "changed_at",
        "first_seen",
    )
    assert {name: second[name] for name in kept} == {name: first[name] for name in kept}
    assert second["requested"] == second["refreshed"] == 2
    last = visits(database)[-1]
    assert (last["outcome"], last["status"], last["get_size"]) == ("not_modified", 304, 0)
    assert last["content_hash"] == first["content_hash"]


def test_a_page_without_validators_is_read_again_and_found_unchanged(
    freshet: Freshet, database: Db
) -> None:
    with Pages(validators=False) as pages:
        pages.list("list.html", ["item-a.html"])
        pages.item("item-a.html", "A")
        wrapper = pages_wrapper(freshet, pages)
        freshet.crawl(wrapper)
        freshet.crawl(wrapper, "-a", "full=1")
        assert not any(request["conditional"] for request in pages.requests())
    assert outcomes(database) == {"new": 2, "unchanged": 2}
    assert database.versions.count_documents({}) == 2


def test_changing_boilerplate_is_not_a_change(freshet: Freshet, database: Db) -> None:
    with Pages(validators=False) as pages:
        pages.list("list.html", ["item-a.html"])
        pages.file("item-a.html", "<h1>A</h1><footer>visit 1</footer>")
        wrapper = pages_wrapper(freshet, pages)
        freshet.crawl(wrapper)
        pages.file("item-a.html", "<h1>A</h1><footer>visit 1000</footer>")
        freshet.crawl(wrapper, "-a", "full=1")
    (last,) = visits(database, target=f"{pages.url}/item-a.html", outcome="unchanged")
    assert (last["changed"], last["diff_size"]) == (0, 0)
    assert last["update_size"] == 3, "the paper's measure counts bytes"


def test_lists_are_due_after_six_hours_and_items_after_a_day(
    freshet: Freshet, site: RunningSite
) -> None:
    wrapper = shop_wrapper(freshet, site)
    freshet.crawl(wrapper)
    everything = set(asked(site))

    for hours, due in (
        (5.9, set()),
        (6.1, {path for path in everything if "/item/" not in path}),
        (24.2, everything),
    ):
        site.clear_log()
        freshet.crawl(wrapper, hours=hours)
        assert set(asked(site)) == due, hours


def test_site_definition_overrides_interval_settings(freshet: Freshet, pages: Pages) -> None:
    pages.list("list.html", ["item-a.html"])
    pages.item("item-a.html", "A")
    wrapper = pages_wrapper(freshet, pages, item_interval_hours=2)
    env = {"FRESHET_LIST_INTERVAL_HOURS": 3, "FRESHET_ITEM_INTERVAL_HOURS": 100}
    freshet.crawl(wrapper, **env)
    pages.clear_log()
    freshet.crawl(wrapper, hours=2.1, **env)
    assert set(asked(pages)) == {"/item-a.html"}
    pages.clear_log()
    freshet.crawl(wrapper, hours=3.1, **env)
    assert set(asked(pages)) == {"/list.html"}


def test_only_edited_pages_are_changed(freshet: Freshet, database: Db, site: RunningSite) -> None:
    wrapper = freshet.wrapper("big", start_urls=[f"{site.url}/big/{ITEMS}/list/1/"], **BIG)
    freshet.crawl(wrapper)
    numbers = {3: 1, 17: 2, 40: 5}  # item: number of edits
    for number, edits in numbers.items():
        for _ in range(edits):
            site.edit(f"/big/{ITEMS}/item/{number}.html")

    freshet.crawl(wrapper, "-O", freshet.folder / "changed.jsonl", hours=25)

    edited = {f"{site.url}/big/{ITEMS}/item/{number}.html": number for number in numbers}
    changed = {visit["target"]: visit for visit in visits(database, changed=1)}
    assert set(changed) == set(edited)
    assert outcomes(database) == {"new": ITEMS + 1, "changed": 3, "not_modified": ITEMS - 2}
    for url, number in edited.items():
        before, after = (big.item_page(number, edits) for edits in (0, numbers[number]))
        assert changed[url]["update_size"] == abs(len(after) - len(before))
        assert changed[url]["get_size"] == len(after)
        assert changed[url]["diff_size"] == Indel.distance(price(before), price(after)) > 0
        (post,) = database.posts.find({"url": url})
        assert post["fields"]["price"] == price(after)
        assert post["changed_at"] == changed[url]["at"] > post["first_seen"]
        assert database.versions.count_documents({"target": url}) == 2
    assert database.versions.count_documents({}) == ITEMS + 1 + 3
    assert (freshet.folder / "changed.jsonl").read_text().count('"changed"') == 3


def price(html: bytes) -> str:
    return html.partition(b'<p class="price">')[2].partition(b"</p>")[0].decode()


def test_reverted_content_adds_no_version(freshet: Freshet, database: Db, pages: Pages) -> None:
    pages.list("list.html", ["item-a.html"])
    wrapper = pages_wrapper(freshet, pages)
    for number, text in enumerate(["first", "second", "first", "second"]):
        pages.item("item-a.html", text)
        freshet.crawl(wrapper, hours=25 * number)
        (post,) = database.posts.find()
        assert post["fields"]["title"] == text
    url = f"{pages.url}/item-a.html"
    assert [visit["outcome"] for visit in visits(database, target=url)] == [
        "new", "changed", "changed", "changed",
    ]  # fmt: skip
    assert [v["content"]["title"] for v in database.versions.find({"target": url}).sort("at")] == [
        "first", "second",
    ]  # fmt: skip


@pytest.mark.parametrize("days", [2, 10])
def test_change_log_matches_changes_of_the_site(
    freshet: Freshet, database: Db, site: RunningSite, days: int
) -> None:
    world, now = World(items=SITE_ITEMS), START + timedelta(days=days)
    wrapper = shop_wrapper(freshet, site)
    freshet.crawl(wrapper)
    site.set_clock(now)
    freshet.crawl(wrapper, hours=24 * days)

    _, run = database.runs.find().sort("started")
    second = visits(database, at={"$gte": run["started"]})

    def seen(outcome: str) -> set[str]:
        rows = [v for v in second if v["outcome"] == outcome and "/item/" in v["target"]]
        return {path.removeprefix(site.url) for path in urls(rows, "target")}

    both = {i.path: i for i in world.items if i.live(START) and i.live(now)}
    assert seen("changed") == {p for p, i in both.items() if i.offer(START) != i.offer(now)}
    assert seen("not_modified") == {p for p, i in both.items() if i.offer(START) == i.offer(now)}
    assert seen("new") == {i.path for i in world.items if i.live(now) and not i.live(START)}
    assert seen("gone") == {i.path for i in world.items if i.live(START) and not i.live(now)}
    unlisted = urls(database.targets.find({"unlisted_at": {"$type": "date"}}))
    assert unlisted == {site.url + path for path in seen("gone")}, "removed items are unlisted"
    prices = {post["url"]: post["fields"]["price"]["amount"] for post in database.posts.find()}
    for item in world.items:
        if item.live(now):
            assert prices[site.url + item.path] == item.offer(now).pence / 100


def test_diff_of_html_field_is_by_word(freshet: Freshet, database: Db, pages: Pages) -> None:
    words = " ".join(f"word{number}" for number in range(3000))
    pages.list("list.html", ["item-a.html"])
    wrapper = pages_wrapper(freshet, pages, fields={"body": {"css": "div", "type": "html"}})
    for number, price in enumerate(("12", "13 \x1b]0;x\x07")):
        pages.file("item-a.html", f"<div><p>{words}</p> <b>price {price}</b> <i>{words}</i></div>")
        freshet.crawl(wrapper, "-a", "full=1", hours=number)
    url = f"{pages.url}/item-a.html"
    shown = freshet("history", url, "--diff").out
    assert "price [-12-]{+13 " in shown
    assert "\x1b" not in shown
    assert "characters …" in shown
    assert len(shown) < 1000
    same = freshet("history", url, "--diff", "1", "1")
    assert (same.code, "no difference between version 1," in same.out) == (0, True)
