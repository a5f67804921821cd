"""robots.txt is obeyed unless a site definition disables it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.harness import Db, Freshet, Pages, asked, outcomes, visits
from tests.integration.recording import Recorder


@pytest.fixture
def guarded(pages: Pages) -> Pages:
    pages.file("robots.txt", "User-agent: *\nDisallow: /private/\n")
    pages.list("list.html", ["/item-a.html", "/private/item-b.html"])
    pages.item("item-a.html", "A")
    pages.item("private/item-b.html", "B")
    return pages


def wrapper(freshet: Freshet, pages: Pages, **keys: object) -> Path:
    given: dict[str, object] = {"start_urls": [f"{pages.url}/list.html"], "fields": {"title": "h1"}}
    return freshet.wrapper("robots", item_pages="/item-", **given | keys)


def test_disallowed_page_is_blocked_without_request(
    freshet: Freshet, database: Db, guarded: Pages
) -> None:
    freshet.crawl(wrapper(freshet, guarded))
    assert set(asked(guarded)) == {"/list.html", "/item-a.html"}
    (visit,) = visits(database, outcome="blocked")
    assert visit["target"] == f"{guarded.url}/private/item-b.html"
    assert visit["status"] is None
    assert "robots.txt" in visit["reason"]


def test_robots_txt_applies_to_concurrent_requests(
    freshet: Freshet, database: Db, guarded: Pages
) -> None:
    links = [f"/private/item-{i}.html" for i in range(5)]
    guarded.list("list.html", links)
    freshet.crawl(wrapper(freshet, guarded), code=1)
    later = ("-a", "full=1")
    guarded.clear_log()
    freshet.crawl(wrapper(freshet, guarded), *later, hours=200, code=1)
    assert set(asked(guarded)) == {"/list.html"}
    assert outcomes(database)["blocked"] == 10


def test_robots_txt_is_requested_once_per_run(freshet: Freshet, guarded: Pages) -> None:
    freshet.crawl(wrapper(freshet, guarded))
    robots = [request for request in guarded.requests() if request["path"] == "/robots.txt"]
    assert len(robots) == 1


def test_site_definition_may_disable_robots_txt(
    freshet: Freshet, database: Db, guarded: Pages
) -> None:
    freshet.crawl(wrapper(freshet, guarded, robots=False))
    assert set(asked(guarded)) == {"/list.html", "/item-a.html", "/private/item-b.html"}
    assert all(request["path"] != "/robots.txt" for request in guarded.requests())
    assert outcomes(database) == {"new": 3}


def test_rule_for_freshet_user_agent_applies(freshet: Freshet, guarded: Pages) -> None:
    guarded.file("robots.txt", "User-agent: *\nAllow: /\n\nUser-agent: Freshet\nDisallow: /item-\n")
    freshet.crawl(wrapper(freshet, guarded))
    assert set(asked(guarded)) == {"/list.html", "/private/item-b.html"}


def test_robots_txt_is_fetched_through_proxy(
    freshet: Freshet, database: Db, guarded: Pages
) -> None:
    start = ["http://other.test/list.html"]
    freshet.crawl(wrapper(freshet, guarded, start_urls=start, proxy=guarded.url))
    assert "/robots.txt" in {request["path"] for request in guarded.requests()}
    assert outcomes(database) == {"new": 2, "blocked": 1}


def test_contact_is_in_user_agent(freshet: Freshet, guarded: Pages) -> None:
    result = freshet.crawl(wrapper(freshet, guarded), FRESHET_CONTACT="mailto:a@example.org")
    assert "(+mailto:a@example.org)" in result.err


@pytest.fixture
def server() -> Iterator[Recorder]:
    with Recorder() as server:
        server.answers |= {"/list.html": "<a href=/item-1>1</a><a href=/item-2>2</a>"}
        server.answers |= {f"/item-{n}": f"<h1>{n}</h1>" for n in (1, 2)}
        yield server


def paths(server: Recorder) -> list[str]:
    return [path for path, _ in server.asked if path != "/robots.txt"]


@pytest.mark.parametrize("status", [500, 503, 429])
def test_no_page_is_fetched_while_robots_txt_is_unavailable(
    freshet: Freshet, database: Db, server: Recorder, status: int
) -> None:
    server.answers["/robots.txt"] = (status, "/")
    definition = freshet.wrapper(
        "robots", start_urls=[f"{server.url}/list.html"], item_pages="/item-"
    )
    result = freshet.crawl(definition, code=1)
    assert paths(server) == []
    (visit,) = visits(database)
    assert visit["outcome"] == "error"
    assert visit["reason"].startswith(f"{server.url}/robots.txt returned {status}")
    assert result.err.count(f"WARNING: {server.url}/robots.txt returned {status}") == 1
    server.answers["/robots.txt"] = "User-agent: *\nDisallow: /item-2"
    freshet.crawl(definition)
    assert sorted(paths(server)) == ["/item-1", "/list.html"]
