"""Items under several URLs: pages with the same content and canonical URL are one item."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from crawler.storage import identity
from tests.integration.harness import Db, Freshet, target, urls, visits
from tests.integration.raw_server import RawServer, page
from tests.integration.writing import BEGIN, SITE, process, refused, visit

MONTH = 28 * 24 + 1


def item(title: str, canonical: str) -> bytes:
    return page(f"<head><link rel=canonical href={canonical}></head><h1>{title}</h1>")


def links(*paths: str) -> bytes:
    return page("".join(f"<a href={path}>{path}</a>" for path in paths))


@pytest.fixture
def server() -> Iterator[RawServer]:
    """Serve an item under three URLs, of which two are linked."""
    with RawServer() as server:
        server.answers = {
            "/list": links("/red/item-1", "/item-1?from=list"),
            "/red/item-1": item("One", "/item-1"),
            "/item-1?from=list": item("One", "/item-1"),
            "/item-1": item("One", "/item-1"),
        }
        yield server


@pytest.fixture
def definition(freshet: Freshet, server: RawServer) -> Path:
    """Define the site with an interval of one hour."""
    return freshet.wrapper(
        "shop", start_urls=[f"{server.url}/list"], item_pages="/item-", robots=False,
        fields={"title": "h1"}, item_interval_hours=1, list_interval_hours=1,
    )  # fmt: skip


def asked(server: RawServer) -> list[str]:
    """Return the requested paths of items since the last call."""
    paths = [path for path in server.asked if path != "/list"]
    server.asked.clear()
    return sorted(paths)


def test_item_under_two_urls_is_stored_and_visited_once(
    freshet: Freshet, database: Db, server: RawServer, definition: Path
) -> None:
    freshet.crawl(definition)
    assert database.posts.count_documents({}) == 1
    assert len(asked(server)) == 2
    freshet.crawl(definition, hours=2)
    assert len(asked(server)) == 1
    assert [visit["outcome"] for visit in visits(database, outcome="new")] == ["new", "new"]


def test_target_with_the_canonical_url_becomes_the_item(
    freshet: Freshet, database: Db, server: RawServer, definition: Path
) -> None:
    freshet.crawl(definition)
    server.answers["/list"] = links("/red/item-1", "/item-1?from=list", "/item-1")
    for hours in (2, 4, 6):
        freshet.crawl(definition, hours=hours)
    assert urls(database.posts.find()) == {f"{server.url}/item-1"}
    asked(server)
    freshet.crawl(definition, hours=8)
    assert asked(server) == ["/item-1"]


def test_first_run_stores_an_item_only_under_its_canonical_url(
    freshet: Freshet, database: Db, server: RawServer, definition: Path
) -> None:
    server.answers["/list"] = links("/item-1", "/red/item-1")
    freshet.crawl(definition)
    assert urls(database.posts.find()) == {f"{server.url}/item-1"}
    copy = target(database, f"{server.url}/red/item-1")
    assert copy["alias_of"] == f"{server.url}/item-1"


def test_different_items_with_one_canonical_url_stay_apart(
    freshet: Freshet, database: Db, server: RawServer, definition: Path
) -> None:
    server.answers["/item-1?from=list"] = item("Two", "/item-1")
    freshet.crawl(definition)
    freshet.crawl(definition, hours=2)
    assert sorted(post["title"] for post in database.posts.find()) == ["One", "Two"]
    assert len(asked(server)) == 4


def test_copy_stays_an_alias_after_a_change(
    freshet: Freshet, database: Db, server: RawServer, definition: Path
) -> None:
    freshet.crawl(definition)
    for path in ("/red/item-1", "/item-1?from=list"):
        server.answers[path] = item("Won", "/item-1")
    freshet.crawl(definition, hours=MONTH)
    assert len(asked(server)) == 4
    assert database.posts.distinct("title") == ["Won"]
    assert database.posts.count_documents({}) == 1


def test_copy_that_becomes_a_page_of_its_own_is_stored(
    freshet: Freshet, database: Db, server: RawServer, definition: Path
) -> None:
    freshet.crawl(definition)
    (alias,) = database.targets.find({"alias_of": {"$exists": True}})
    server.answers[alias["url"].removeprefix(server.url)] = page("<h1>One</h1>")
    freshet.crawl(definition, hours=MONTH)
    assert "alias_of" not in target(database, alias["url"])
    assert database.posts.count_documents({"title": "One"}) == 2


def test_few_of_the_pages_that_state_one_url_are_read(
    stored: tuple[Db, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    db, uri = stored
    monkeypatch.setattr(identity, "MAX_STATING", 3)

    async def store(pages: dict[str, str]) -> None:
        async with process(uri, BEGIN) as one:
            batch = []
            for due, text in zip(await one.due(*pages), pages.values(), strict=True):
                batch.append(visit(due, text, BEGIN + timedelta(minutes=1)))
                batch[-1].fetched.canonical_url = f"{SITE}item-9"
            assert not any(refused(await one.store(batch)))

    faulty = {f"item-{n}": f"Page {n}" for n in range(6)}
    asyncio.run(store(faulty | {"item-9": "The item"}))
    db.command("profile", 2)
    asyncio.run(store({"item-10": "The item"}))
    reads = {"command.find": "targets", "command.filter.canonical_url": {"$exists": True}}
    assert [read["nreturned"] for read in db.system.profile.find(reads)] == [3]
    # The target with the canonical URL is read in any case.
    assert target(db, f"{SITE}item-10")["alias_of"] == f"{SITE}item-9"
    assert db.targets.count_documents({"alias_of": {"$exists": True}}) == 1
