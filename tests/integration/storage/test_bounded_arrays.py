"""Arrays of a target that third-party pages fill are bounded: the newest entries are kept."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from crawler.feeds.subscriptions import MAX_FEED_CATEGORIES
from crawler.storage.targets import MAX_ALIASES, MAX_CATEGORIES
from tests.integration.harness import Db, Freshet, Pages, target
from tests.integration.inside import run

EXTRA = 5
OLD = [f"http://old.example/{n}" for n in range(MAX_ALIASES)]


def blog(freshet: Freshet, pages: Pages) -> Path:
    """Write a site definition with lists named after categories, and items that are folders."""
    return freshet.wrapper(
        "blog",
        start_urls=[f"{pages.url}/list.html"],
        list_pages=r"/tag-(?P<category>\d+)\.html$",
        item_pages=r"/item/\w+/?$",
        fields={"title": "h1"},
    )


@pytest.mark.soak
def test_page_in_many_lists_keeps_its_newest_categories(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    tags = [f"{n:03}" for n in range(MAX_CATEGORIES + EXTRA)]
    pages.list("list.html", [f"/tag-{tag}.html" for tag in tags])
    for tag in tags:
        pages.list(f"tag-{tag}.html", ["/item/a/"])
    pages.item("item/a/index.html", "A")
    wrapper = blog(freshet, pages)
    freshet.crawl(wrapper)
    url = f"{pages.url}/item/a/"
    assert len(target(database, url)["categories"]) == MAX_CATEGORIES
    (post,) = database.posts.find()
    assert len(post["categories"]) == MAX_CATEGORIES

    pages.list("list.html", [*(f"/tag-{tag}.html" for tag in tags), "/tag-999.html"])
    pages.list("tag-999.html", ["/item/a/"])
    freshet.crawl(wrapper, "-a", "full=1", hours=25)
    for row in (target(database, url), *database.posts.find()):
        assert len(row["categories"]) == len(set(row["categories"])) == MAX_CATEGORIES
        assert row["categories"][-1] == "999"

    for tag in tags[: MAX_CATEGORIES // 2]:
        pages.list(f"tag-{tag}.html", [])
    freshet.crawl(wrapper, "-a", "full=1", hours=50)
    left = [*tags[MAX_CATEGORIES // 2 :], "999"]
    assert sorted(target(database, url)["categories"]) == left, "has categories of old lists"


@pytest.mark.parametrize("links", [["/item/a"], ["/item/a", "/item/a/"]], ids=["final", "both"])
def test_page_with_many_aliases_keeps_the_newest(
    freshet: Freshet, database: Db, pages: Pages, links: list[str]
) -> None:
    """Aliases come from the URL of a redirect target and from URLs that redirect to the page."""
    pages.list("list.html", links)
    pages.item("item/a/index.html", "A")
    wrapper = blog(freshet, pages)
    freshet.crawl(wrapper)
    owner = f"{pages.url}{links[-1]}"
    aliases = target(database, owner)["aliases"]
    assert len(aliases) == 1
    database.targets.update_one({"url": owner}, {"$set": {"aliases": OLD}})
    database.targets.update_many({}, {"$set": {"next_visit": datetime.now(UTC)}})
    freshet.crawl(wrapper, hours=200)
    assert target(database, owner)["aliases"] == [*OLD[1:], *aliases]


def test_feed_in_many_folders_keeps_the_newest_categories(
    freshet: Freshet, database: Db, tmp_path: Path
) -> None:
    def imported(tags: list[str]) -> list[str]:
        feed = '<outline text="A" xmlUrl="https://a.example/feed"/>'
        rows = "".join(f'<outline text="{tag}">{feed}</outline>' for tag in tags)
        path = tmp_path / "list.opml"
        path.write_text(f'<opml version="2.0"><body>{rows}</body></opml>', encoding="utf-8")
        assert run(freshet, "feeds", "import", path).code == 0
        found: list[str] = target(database, "https://a.example/feed")["categories"]
        return found

    tags = [f"{n:03}" for n in range(MAX_CATEGORIES + EXTRA)]
    for start in range(0, len(tags), MAX_FEED_CATEGORIES):
        imported(tags[start : start + MAX_FEED_CATEGORIES])
    assert imported(["new", *tags[-3:]]) == [*tags[EXTRA + 1 :], "new"]


def test_repeatedly_moved_feed_keeps_its_newest_aliases(freshet: Freshet, database: Db) -> None:
    now = datetime.now(UTC)
    old, new = "http://127.0.0.1:9/old", "http://127.0.0.1:9/new"
    made = {
        "_id": f"feeds {old}", "spider": "feeds", "url": old, "host": "127.0.0.1", "kind": "feed",
        "start": False, "categories": [], "first_seen": now, "visited_at": now, "requested": 1,
        "refreshed": 1, "consecutive_errors": 0, "consecutive_gone": 0, "next_visit": now,
        "moved_to": new, "moves": 100, "aliases": [*OLD[1:], new],
    }  # fmt: skip
    database.targets.insert_one(made)
    freshet("crawl", "feeds")
    assert target(database, new)["aliases"] == [*OLD[1:], old]
