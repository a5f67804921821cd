"""`scrapy changes`: events found by runs, newest first, with a one-line summary."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from crawler.storage import visits
from crawler.storage.client import Database
from crawler.storage.schema import prepare
from tests.conftest import Databases
from tests.integration.harness import Db, Freshet, Pages, Row
from tests.integration.inside import run
from tests.integration.known_pages import on
from tests.integration.once import Left, left_by, put_into

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def events(freshet: Freshet, *words: object) -> list[Row]:
    done = run(freshet, "changes", *words, "--json")
    assert (done.code, done.err) == (0, "")
    rows: list[Row] = json.loads(done.out)
    return rows


def summarized(rows: list[Row]) -> list[tuple[str, str, str]]:
    """Return outcomes, last parts of URLs, and summaries."""
    return [(row["outcome"], row["url"].rpartition("/")[2], row["summary"]) for row in rows]


@pytest.fixture(scope="module")
def served() -> Iterator[Pages]:
    with Pages() as pages:
        yield pages


def write(pages: Pages) -> None:
    pages.list("/list.html", ["/item/a", "/item/b"])
    pages.item("/item/a", "Apple</h1><b>10</b><i>red</i><h1>")
    pages.item("/item/b", "Pear</h1><b>3</b><h1>")


def first_crawl(freshet: Freshet, pages: Pages) -> None:
    """Crawl a site with a list and two items."""
    fields = {
        "title": "h1", "price": {"css": "b", "type": "number"}, "body": "main",
        "tags": {"css": "i", "type": "list"},
    }  # fmt: skip
    keys = {"start_urls": [f"{pages.url}/list.html"], "item_pages": "/item/", "robots": False}
    write(pages)
    freshet.crawl(freshet.wrapper("shop", **keys, fields=fields))


@pytest.fixture(scope="module")
def left(served: Pages, databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Left:
    return left_by(lambda freshet: first_crawl(freshet, served), databases, tmp_path_factory)


@pytest.fixture
def shop(
    freshet: Freshet, served: Pages, left: Left, stored: tuple[Db, str]
) -> tuple[Freshet, Pages]:
    """Return a site that was crawled once."""
    write(served)
    put_into(*stored, left)
    return freshet, served


def crawl(freshet: Freshet) -> None:
    assert freshet("crawl", "shop", "-a", "full=1").code == 0


def test_page_that_comes_back_with_other_content_was_gone(shop: tuple[Freshet, Pages]) -> None:
    freshet, pages = shop
    pages.remove("/item/b")
    crawl(freshet)
    pages.item("/item/b", "Pear</h1><b>4</b><h1>")
    crawl(freshet)
    ((outcome, _, summary),) = summarized(events(freshet)[:1])
    assert outcome == "changed"
    assert summary.startswith("the page was gone before this visit; price: 3 -> 4")
    history = json.loads(run(freshet, "history", f"{pages.url}/item/b", "--json").out)
    assert history["visits"][-1]["reason"] == "the page was gone before this visit"


def test_changes_lists_new_changed_gone_and_restored_pages(shop: tuple[Freshet, Pages]) -> None:
    freshet, pages = shop
    new = summarized(events(freshet))
    assert sorted(new) == [
        ("new", "a", "Apple"), ("new", "b", "Pear"), ("new", "list.html", "2 links"),
    ]  # fmt: skip
    pages.item("/item/a", "Apple</h1><b>12</b><i>red</i><i>sweet</i><h1>")
    pages.remove("/item/b")
    crawl(freshet)
    crawl(freshet)
    gone, changed = sorted(events(freshet)[:2], key=lambda row: str(row["outcome"]), reverse=True)
    assert summarized([gone]) == [("gone", "b", "1 of 3 confirmations")]
    assert "price: 10 -> 12; body: Apple 10red -> Apple 12redsweet; tags: +1" in changed["summary"]
    assert len(events(freshet)) == 5, "a page that is still gone is not a new event"
    pages.item("/item/b", "Pear</h1><b>3</b><h1>")
    crawl(freshet)
    assert summarized(events(freshet)[:1]) == [("back", "b", "the page was gone before this visit")]
    assert len(events(freshet, "--match", "ITEM/*")) == 5
    assert [row["url"] for row in events(freshet, "--match", "nosuch")] == []
    assert len(events(freshet, "shop", "--limit", "2")) == 2
    assert events(freshet, "--since", "1h") == events(freshet)
    assert events(freshet, "--until", "1h") == []


def test_page_whose_earlier_version_was_pruned_does_not_look_new(
    shop: tuple[Freshet, Pages], database: Db
) -> None:
    freshet, pages = shop
    pages.item("/item/a", "Apple</h1><b>12</b><i>red</i><h1>")
    crawl(freshet)
    assert database.versions.delete_one({"content.price": 10}).deleted_count == 1
    (row,) = events(freshet, "--match", "item/a", "--limit", "1")
    assert (row["outcome"], row["summary"]) == ("changed", f"{row['diff_size']} characters differ")


def test_text_output_prints_number_of_omitted_changes(shop: tuple[Freshet, Pages]) -> None:
    done = run(shop[0], "changes", "--limit", "1")
    first, summary, last = done.out.splitlines()
    assert first.split()[2] == "new"
    assert summary.startswith("    ")
    assert last.startswith("1 change in shop, times in UTC. 2 more with --limit N or --until 20")


def test_the_suggested_time_leaves_no_change_out(shop: tuple[Freshet, Pages]) -> None:
    freshet, _ = shop
    newest, *older = events(freshet)
    until = run(freshet, "changes", "--limit", "1").out.split()[-1]
    assert events(freshet, "--until", until) in (older, [newest, *older])


def test_empty_result_suggests_next_step(freshet: Freshet, shop: tuple[Freshet, Pages]) -> None:
    done = run(freshet, "changes", "--until", "2020-01-01")
    assert done.code == 0
    assert done.out == (
        "no changes found in shop. Try a longer time or another --match, or run scrapy crawl NAME\n"
    )
    unknown = run(freshet, "changes", "shpo")
    assert unknown.complaint == ("scrapy changes: no targets of 'shpo'. Did you mean shop?")


def test_error_without_targets_suggests_a_crawl(freshet: Freshet) -> None:
    done = run(freshet, "changes")
    assert (done.code, done.complaint) == (
        1, "scrapy changes: no site has targets yet. Run scrapy crawl NAME first",
    )  # fmt: skip


def test_reverted_content_is_compared_with_previous_version(
    shop: tuple[Freshet, Pages],
) -> None:
    freshet, pages = shop
    for price in (11, 10, 11):
        pages.item("/item/a", f"Apple</h1><b>{price}</b><i>red</i><h1>")
        crawl(freshet)
    summaries = [row["summary"].partition(";")[0] for row in events(freshet, "--match", "/item/a")]
    assert summaries == ["price: 10 -> 11", "price: 11 -> 10", "price: 10 -> 11", "Apple"]


def test_summary_of_feed_names_new_posts(freshet: Freshet, database: Db, pages: Pages) -> None:
    items = "".join(
        f"<item><title>Post {k}</title><guid>{k}</guid><link>{pages.url}/{k}</link></item>"
        for k in range(5)
    )
    pages.file("/feed.xml", f"<rss version='2.0'><channel>{items}</channel></rss>")
    assert freshet("feeds", "add", f"{pages.url}/feed.xml").code == 0
    assert freshet("crawl", "feeds").code == 0
    (row,) = events(freshet, "feeds")
    assert row["summary"].startswith("5 new posts: Post ")
    assert row["summary"].count(";") == 2, "the summary names only some of the posts"


def test_command_reads_events_from_index(stored: tuple[Db, str]) -> None:
    """Read ten rows for ten events; each of 20 spiders has 200 visits with 20 events."""
    db, uri = stored
    on(uri, prepare)
    names = [f"s{k}" for k in range(20)]
    db.visits.insert_many(
        {
            "spider": name, "target": f"https://x/{k}", "at": NOW + k * HOUR, "outcome": "new",
            "changed": 0,
        }
        | ({"event": True} if k % 10 == 0 else {})
        for name in names
        for k in range(200)
    )  # fmt: skip

    async def latest(there: Database) -> tuple[list[Row], int, bool]:
        return await visits.latest(there, names, (NOW, None), None, 10)

    db.command("profile", 2)
    rows, total, is_cut = on(uri, latest)
    db.command("profile", 0)
    assert [row["at"] for row in rows] == [NOW + 190 * HOUR] * 10
    assert (total, is_cut) == (400, False)
    done = list(db.system.profile.find({"command.aggregate": "visits"}))
    assert len(done) == 2
    for operation in done:
        is_count = "$group" in operation["command"]["pipeline"][-1]
        assert operation["docsExamined"] == (0 if is_count else 10)
        assert "hasSortStage" not in operation
