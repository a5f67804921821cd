"""Long pages are read in subprocesses, with the same results as in the crawl process."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.harness import Db, Freshet, Pages, visits

pytestmark = pytest.mark.soak

ITEMS = 12
SENTENCE = "The ferry to the islands leaves at noon, and the fog over the harbor is slow to lift. "


def long_page(number: int) -> str:
    """Return an article of about 100 kB with a link to the next one."""
    paragraphs = "\n".join(
        f"<p>Part {number}.{part} {SENTENCE * 8}</p>" for part in range(140 - number)
    )
    link = f'<a href="/article/{number + 1}.html">next</a>'
    title = f"<title>Ferry {number}</title>"
    return f"{title}<body><h1>Ferry {number}</h1><article>{paragraphs}</article>{link}</body>"


def results(freshet: Freshet, database: Db, pages: Pages, **env: object) -> Any:
    """Return the posts and outcomes that a crawl of long pages stores, and its log."""
    wrapper = freshet.wrapper(
        "ferries", start_urls=[f"{pages.url}/list.html"], list_pages="/list", item_pages="/article/"
    )
    log = freshet.crawl(wrapper, **env).err
    fields = {"_id": 1, "title": 1, "text": 1, "fields": 1, "content_hash": 1}
    posts = list(database.posts.find({}, fields).sort("_id"))
    outcomes = sorted((row["target"], row["outcome"], row["get_size"]) for row in visits(database))
    for name in ("targets", "posts", "visits", "versions", "runs", "listings", "sites"):
        database[name].delete_many({})
    return posts, outcomes, log


def test_results_do_not_depend_on_number_of_processes(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    for number in range(ITEMS):
        pages.file(f"/article/{number}.html", long_page(number))
    pages.list("/list.html", [f"/article/{number}.html" for number in range(ITEMS)])
    without_processes = results(freshet, database, pages, FRESHET_READ_PROCESSES=0)
    posts, outcomes, log = results(freshet, database, pages, FRESHET_READ_PROCESSES=2)
    assert (posts, outcomes) == without_processes[:2]
    assert len(posts) == ITEMS
    assert all(len(post["text"]) > 80_000 for post in posts)
    assert {outcome for _, outcome, _ in outcomes} == {"new"}
    assert "ERROR" not in log
